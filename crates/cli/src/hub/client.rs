//! Requests to the hub: redirects, repetitions, and what the hub's refusals mean.
//!
//! A redirect to another host, where large files are, is followed without the token.
//!
//! Out of scope: which requests to make (`listing`, `download`).

use std::io::Read;
use std::time::{Duration, Instant};

use fulmen_data::{Error, Result};
use fulmen_durable::messages::duration;
use reqwest::blocking::Response;
use reqwest::header::{self, HeaderMap};
use reqwest::{StatusCode, Url, redirect};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::path::{HubPath, Kind};
use super::settings::Settings;
use crate::pack::Progress;

/// How long to wait for a connection, and for the next bytes.
const TIME_OUT: Duration = Duration::from_secs(30);

const MAX_REDIRECTS: usize = 10;

/// The limit on an answer with a listing.
const MAX_JSON_BYTES: u64 = 256 << 20;

/// The limits on the wait that the hub asks for.
const MAX_RATE_LIMITS: usize = 10;
const MAX_RATE_WAIT: Duration = Duration::from_secs(900);

/// Why a request failed.
pub(super) enum Failure {
    /// It would fail again.
    Final(Error),
    /// The connection or the server failed.
    Broken(String),
    /// The hub asks to wait.
    TooMany(String, Option<Duration>),
}

/// A client of the hub.
pub(super) struct Client {
    http: reqwest::blocking::Client,
    settings: Settings,
}

impl Client {
    pub(super) fn new() -> Result<Client> {
        let settings = Settings::read(&|name| std::env::var_os(name))?;
        // An error means that a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::blocking::Client::builder()
            .timeout(TIME_OUT)
            .connect_timeout(TIME_OUT)
            .redirect(redirect::Policy::none())
            .user_agent(concat!("fulmen/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| Error::runtime("cannot start an HTTP client", error))?;
        Ok(Client { http, settings })
    }

    /// The address of the hub's description of a repository.
    pub(super) fn api(&self, path: &HubPath, what: &str, revision: &str) -> Url {
        let kind = if path.kind() == Kind::Model { "models" } else { "datasets" };
        self.address(["api", kind].into_iter().chain(path.id().split('/')).chain([what, revision]))
    }

    /// The address of a file.
    pub(super) fn file_address(&self, path: &HubPath, commit: &str, file: &str) -> Url {
        let kind = (path.kind() == Kind::Dataset).then_some("datasets");
        let repository = kind.into_iter().chain(path.id().split('/'));
        self.address(repository.chain(["resolve", commit]).chain(file.split('/')))
    }

    /// The address of the repository's page.
    fn page(&self, path: &HubPath) -> Url {
        let kind = (path.kind() == Kind::Dataset).then_some("datasets");
        self.address(kind.into_iter().chain(path.id().split('/')))
    }

    fn address<'a>(&self, parts: impl Iterator<Item = &'a str>) -> Url {
        let mut url = self.settings.endpoint.clone();
        // An address of the web has a path.
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(parts);
        }
        url
    }

    pub(super) fn patience<'a>(&self, progress: &'a dyn Progress) -> Patience<'a> {
        let now = Instant::now();
        let limit = self.settings.give_up;
        Patience {
            limit,
            since: now,
            pause: FIRST_PAUSE,
            rate_limits: 0,
            has_said: false,
            progress,
        }
    }

    /// Requests JSON. Also returns the query of the next page, if there is one.
    pub(super) fn json<T: DeserializeOwned>(
        &self,
        url: Url,
        path: &HubPath,
        progress: &dyn Progress,
    ) -> Result<(T, Option<String>)> {
        let mut patience = self.patience(progress);
        loop {
            let answer = self.get(&url, path, 0, &mut patience)?;
            let next = next_query(answer.headers(), &url);
            let mut bytes = Vec::new();
            if let Err(error) = answer.take(MAX_JSON_BYTES).read_to_end(&mut bytes) {
                patience.failed(path, Failure::Broken(chain(&error)))?;
                continue;
            }
            let value = serde_json::from_slice(&bytes).map_err(|error| {
                let text = "the answer is not the JSON of a hub; check HF_ENDPOINT";
                Error::new(format!("{}: {url}: {text} ({error})", path.repository()))
            });
            return Ok((value?, next));
        }
    }

    /// Requests the bytes from `from` on, until the hub answers.
    pub(super) fn get(
        &self,
        url: &Url,
        path: &HubPath,
        from: u64,
        patience: &mut Patience<'_>,
    ) -> Result<Response> {
        loop {
            match self.attempt(url, path, from) {
                Ok(answer) => return Ok(answer),
                Err(failure) => patience.failed(path, failure)?,
            }
        }
    }

    /// Makes a request and follows its redirects.
    fn attempt(
        &self,
        url: &Url,
        path: &HubPath,
        from: u64,
    ) -> std::result::Result<Response, Failure> {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let is_hub = url.origin() == self.settings.endpoint.origin();
            let mut request =
                self.http.get(url.clone()).header(header::ACCEPT_ENCODING, "identity");
            if let Some(token) = self.settings.token.as_ref().filter(|_| is_hub) {
                request = request.header(header::AUTHORIZATION, token.clone());
            }
            if from > 0 {
                request = request.header(header::RANGE, format!("bytes={from}-"));
            }
            // An address of large files has a signature, which is not shown.
            let answer = request.send().map_err(|error| {
                Failure::Broken(format!("{}: {}", host(&url), chain(&error.without_url())))
            })?;
            if answer.status().is_success() {
                return Ok(answer);
            }
            if !answer.status().is_redirection() {
                return Err(self.refusal(path, answer, &url, is_hub));
            }
            let to = answer.headers().get(header::LOCATION).and_then(|to| to.to_str().ok());
            let to = to.and_then(|to| url.join(to).ok()).filter(|to| {
                to.scheme() == "https" || to.scheme() == "http" && url.scheme() == "http"
            });
            url = to.ok_or_else(|| {
                let text = format!("{} redirects to an address that is not https", host(&url));
                Failure::Final(Error::new(format!("{}: {text}", path.repository())))
            })?;
        }
        let text = format!("{} redirects more than {MAX_REDIRECTS} times", host(&url));
        Err(Failure::Final(Error::new(format!("{}: {text}", path.repository()))))
    }

    /// What an answer that is not a success means.
    fn refusal(&self, path: &HubPath, answer: Response, url: &Url, is_hub: bool) -> Failure {
        let status = answer.status();
        let wait = asked_wait(answer.headers());
        let code = text_of(answer.headers(), "x-error-code").unwrap_or_default().to_owned();
        let message = message(answer);
        let says = format!("{} answers HTTP {}: {message}", host(url), status.as_u16());
        if status == StatusCode::TOO_MANY_REQUESTS {
            return Failure::TooMany(says, wait);
        }
        // The address of a large file is made for each request: the next one may be valid.
        if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT || !is_hub {
            return Failure::Broken(says);
        }
        let repository = path.repository();
        let page = self.page(path);
        Failure::Final(match (status.as_u16(), code.as_str()) {
            (401 | 403, "GatedRepo") => Error::new(format!(
                "{repository}: {says}; accept the conditions on {page} with your account, and set HF_TOKEN to a token \
                 of this account"
            )),
            (401 | 403, _) if self.settings.token.is_none() => Error::new(format!(
                "{repository}: {says}; it does not exist, or is private: check the name, or set HF_TOKEN to a token \
                 that may read it"
            )),
            (401 | 403, _) => Error::new(format!(
                "{repository}: {says}; it does not exist, or the token of HF_TOKEN or of the token file may not read \
                 it: check the name, and the token's permissions"
            )),
            (404, "RevisionNotFound") => Error::missing(format!(
                "{repository}: {says}; it has no revision `{}`: {page} lists its branches and tags",
                path.revision()
            )),
            (404, _) => Error::missing(format!(
                "{path}: {says}; check the name: a model is hf:OWNER/NAME, a dataset hf:datasets/OWNER/NAME"
            )),
            _ => Error::new(format!("{path}: {says}")),
        })
    }
}

/// How long to repeat a request.
pub(super) struct Patience<'a> {
    limit: Duration,
    /// When bytes last arrived.
    since: Instant,
    pause: Duration,
    /// How often in a row the hub asked to wait.
    rate_limits: usize,
    has_said: bool,
    progress: &'a dyn Progress,
}

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(10);

impl Patience<'_> {
    /// Bytes have arrived.
    pub(super) fn progress(&mut self) {
        self.since = Instant::now();
        self.pause = FIRST_PAUSE;
        self.rate_limits = 0;
    }

    /// Waits before the next attempt, or returns the error.
    pub(super) fn failed(&mut self, path: &HubPath, failure: Failure) -> Result<()> {
        let fail = |text: &str| Err(Error::new(format!("{}: {text}", path.repository())));
        match failure {
            Failure::Final(error) => return Err(error),
            Failure::TooMany(says, wait) => {
                let wait = wait.unwrap_or(self.pause);
                if wait > MAX_RATE_WAIT || self.rate_limits >= MAX_RATE_LIMITS {
                    let wait = duration(wait.as_secs_f64());
                    return fail(&format!(
                        "{says}; it asks to wait {wait}: run the same command again then, or set HF_TOKEN for a \
                         higher limit"
                    ));
                }
                self.rate_limits += 1;
                let seconds = duration(wait.as_secs_f64());
                self.progress.note(&format!("{says}; waiting {seconds}"));
                std::thread::sleep(wait);
                self.since = Instant::now();
            }
            Failure::Broken(says) => {
                let limit = duration(self.limit.as_secs_f64());
                if self.since.elapsed() >= self.limit {
                    return fail(&format!(
                        "{says}; gave up after {limit} without progress: run the same command again to continue"
                    ));
                }
                if !std::mem::replace(&mut self.has_said, true) {
                    self.progress.note(&format!("{says}; trying again for {limit}"));
                }
                let left = self.limit.saturating_sub(self.since.elapsed());
                std::thread::sleep(self.pause.min(left));
            }
        }
        self.pause = (2 * self.pause).min(MAX_PAUSE);
        Ok(())
    }
}

fn host(url: &Url) -> &str {
    url.host_str().unwrap_or_default()
}

/// An error with its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn text_of<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The wait that the headers `Retry-After` or `RateLimit` (`"api";r=0;t=55`) ask for.
fn asked_wait(headers: &HeaderMap) -> Option<Duration> {
    let after = text_of(headers, "retry-after").and_then(|text| text.trim().parse().ok());
    let reset = || {
        let parts = text_of(headers, "ratelimit")?.split(';');
        parts.filter_map(|part| part.trim().strip_prefix("t=")).find_map(|time| time.parse().ok())
    };
    after.or_else(reset).map(Duration::from_secs)
}

/// The query of the address that the header `Link` calls the next one.
fn next_query(headers: &HeaderMap, url: &Url) -> Option<String> {
    let mut links = text_of(headers, "link")?.split(',');
    let next = links.find(|link| link.replace(['"', ' '], "").contains(";rel=next"))?;
    let address = next.split_once('<')?.1.split_once('>')?.0;
    url.join(address).ok()?.query().map(str::to_owned)
}

/// The hub's message, in one short line.
fn message(answer: Response) -> String {
    #[derive(Deserialize)]
    struct Body {
        error: String,
    }
    let reason = answer.status().canonical_reason().unwrap_or("no reason");
    let named = text_of(answer.headers(), "x-error-message").map(str::to_owned);
    let named = named.or_else(|| {
        let mut bytes = Vec::new();
        answer.take(64 << 10).read_to_end(&mut bytes).ok()?;
        serde_json::from_slice(&bytes).ok().map(|Body { error }| error)
    });
    let text = named.unwrap_or_else(|| reason.to_owned());
    let line: String =
        text.chars().map(|it| if it.is_control() { ' ' } else { it }).take(300).collect();
    line.trim().trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::HeaderName::from_static(name), value.parse().unwrap())])
    }

    #[test]
    fn the_next_page_is_that_of_the_header_link() {
        let url = Url::parse("https://hub/api/models/a/b/tree/0?recursive=true").unwrap();
        for (link, expected) in [
            (
                "<https://hub/api?recursive=true&cursor=a%3D>; rel=\"next\"",
                Some("recursive=true&cursor=a%3D"),
            ),
            ("</api?p=1>; rel=\"prev\", </api?p=3>; rel=\"next\"", Some("p=3")),
            ("</api?p=1>; rel=\"prev\"", None),
            ("<next; rel=\"next\"", None),
        ] {
            assert_eq!(next_query(&headers("link", link), &url).as_deref(), expected, "{link}");
        }
    }

    #[test]
    fn the_hub_says_how_long_to_wait() {
        let seconds = |name, value| asked_wait(&headers(name, value)).map(|wait| wait.as_secs());
        assert_eq!(seconds("retry-after", "7"), Some(7));
        assert_eq!(seconds("ratelimit", "\"api\";r=0;t=55"), Some(55));
        assert_eq!(seconds("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT"), None);
    }
}
