//! Trying again: which failures pass, how long to wait between attempts, and when to give up.
//!
//! Not here: the requests themselves (`remote`).

use std::error::Error as StdError;
use std::future::Future;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::time::{Duration, Instant};

use super::location::ObjectPath;
use fulmen_data::Error;

/// The first wait, and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// A connection on which nothing moves for so long is given up, and the request made again.
pub(super) const SILENCE: Duration = Duration::from_secs(30);

/// So long an attempt may be silent in any case, the last one too, that is made when patience has come to its end.
const SHORTEST: Duration = Duration::from_secs(1);

/// Where there are no keys, a machine in the cloud is asked for its own; elsewhere nobody answers.
const NO_KEYS: Duration = Duration::from_secs(15);

const NO_KEYS_FOUND: &str = "no keys were found, and this machine has none of its own; set AWS_ACCESS_KEY_ID and \
     AWS_SECRET_ACCESS_KEY, or GOOGLE_APPLICATION_CREDENTIALS; for a public bucket AWS_SKIP_SIGNATURE=true or \
     GOOGLE_SKIP_SIGNATURE=true";

/// What `object_store` says where a store sends it elsewhere and does not say where: S3 does, of a bucket of another region.
const BARE_REDIRECT: &str = "redirect without LOCATION";

/// What became of one attempt.
pub(super) enum Failure {
    Store(object_store::Error),
    Silence(Duration),
    /// The store ended the answer before it was complete.
    Short,
}

impl From<object_store::Error> for Failure {
    fn from(error: object_store::Error) -> Failure {
        Failure::Store(error)
    }
}

impl Failure {
    fn text(&self) -> String {
        match self {
            Failure::Store(error) => {
                // The parts of a chain mostly repeat what is inside them.
                let mut text = error.to_string();
                let mut inner = error.source();
                while let Some(error) = inner {
                    let more = error.to_string();
                    if !text.contains(&more) {
                        text = format!("{text}: {more}");
                    }
                    inner = error.source();
                }
                text
            }
            Failure::Silence(time) => format!("nothing came for {:.0} s", time.as_secs_f64()),
            Failure::Short => "the answer ended before it was complete".to_owned(),
        }
    }

    /// Whether the same request may succeed a little later.
    fn passes(&self, text: &str) -> bool {
        use object_store::Error as Store;
        match self {
            Failure::Silence(_) | Failure::Short => true,
            Failure::Store(
                Store::NotFound { .. }
                | Store::InvalidPath { .. }
                | Store::NotSupported { .. }
                | Store::AlreadyExists { .. }
                | Store::Precondition { .. }
                | Store::NotModified { .. }
                | Store::NotImplemented { .. }
                | Store::PermissionDenied { .. }
                | Store::Unauthenticated { .. }
                | Store::UnknownConfigurationKey { .. },
            ) => false,
            Failure::Store(_) if text.contains(BARE_REDIRECT) => false,
            // The status stands in the text alone. A client's fault stays one, but for those that are about time, and what is
            // elsewhere stays there.
            Failure::Store(_) => match text.split_once("status code: ").and_then(|(_, rest)| rest.get(..3)) {
                Some("408" | "425" | "429") => true,
                Some("400") => text.contains("RequestTimeout"),
                Some(status) => !status.starts_with(['3', '4']),
                None => true,
            },
        }
    }
}

/// How often and for how long a request has failed.
pub(super) struct Patience<'a> {
    object: &'a ObjectPath,
    doing: String,
    limit: Duration,
    began: Instant,
    /// When something arrived last.
    progress: Instant,
    failures: u32,
    /// Failures since something arrived.
    in_a_row: u32,
    /// An attempt may take longer than patience lasts.
    sends: bool,
}

impl<'a> Patience<'a> {
    pub(super) fn new(object: &'a ObjectPath, doing: String, limit: Duration) -> Patience<'a> {
        let now = Instant::now();
        Patience { object, doing, limit, began: now, progress: now, failures: 0, in_a_row: 0, sends: false }
    }

    /// For sending: how far that has come is not seen, so that an attempt is not cut short, however long it takes, and the
    /// first failure may come when patience is over already.
    pub(super) fn sending(self) -> Patience<'a> {
        Patience { sends: true, ..self }
    }

    /// Something arrived.
    pub(super) fn progress(&mut self) {
        self.progress = Instant::now();
        self.in_a_row = 0;
    }

    /// For how long an attempt may be silent: hardly longer than patience lasts, unless it sends.
    pub(super) fn silence(&self, most: Duration) -> Duration {
        if self.sends {
            return most;
        }
        most.min(self.limit.saturating_sub(self.progress.elapsed())).max(SHORTEST)
    }

    /// Waits before the next attempt, or says that there will be none.
    pub(super) async fn failed(&mut self, failure: Failure) -> Result<(), Error> {
        let text = failure.text();
        self.failures += 1;
        self.in_a_row += 1;
        let keyless = text.contains("169.254.169.254") || text.contains("metadata.google.internal");
        if !failure.passes(&text) {
            return Err(self.refused(&failure, &text, keyless));
        }
        let limit = if keyless { self.limit.min(NO_KEYS) } else { self.limit };
        let wait = FIRST_WAIT.saturating_mul(1 << (self.in_a_row - 1).min(10)).min(LONGEST_WAIT).mul_f64(jitter());
        let left = limit.saturating_sub(self.progress.elapsed());
        if left.is_zero() && !(self.sends && self.failures == 1) {
            return Err(self.given_up(&text, keyless));
        }
        // What is left of the time is waited for, and then it is tried once more.
        tokio::time::sleep(wait.min(left)).await;
        Ok(())
    }

    fn refused(&self, failure: &Failure, text: &str, keyless: bool) -> Error {
        let doing = &self.doing;
        match failure {
            Failure::Store(object_store::Error::NotFound { .. }) => {
                let source = io::Error::new(io::ErrorKind::NotFound, text.to_owned());
                self.object.io(&format!("{doing}: there is no such object"), source)
            }
            Failure::Store(object_store::Error::Precondition { .. }) => self.object.error(format!(
                "{doing}: the object changed while it was read; read it again from the beginning ({text})"
            )),
            Failure::Store(
                object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. },
            ) => self.object.error(format!(
                "{doing}: the store refuses; look at the keys and rights that it is asked with: AWS_ACCESS_KEY_ID and \
                 AWS_SECRET_ACCESS_KEY, or GOOGLE_APPLICATION_CREDENTIALS; for public buckets AWS_SKIP_SIGNATURE=true or \
                 GOOGLE_SKIP_SIGNATURE=true ({text})"
            )),
            _ if text.contains(BARE_REDIRECT) => self.object.error(format!(
                "{doing}: the bucket is not in the region that was asked; set AWS_REGION to the bucket's ({text})"
            )),
            _ if keyless => self.object.error(format!("{doing}: {NO_KEYS_FOUND} ({text})")),
            _ => self.object.error(format!("{doing}: {text}")),
        }
    }

    fn given_up(&self, text: &str, keyless: bool) -> Error {
        let advice = match keyless {
            true => NO_KEYS_FOUND,
            false => "look whether the store can be reached; StoreOptions::give_up_after sets how long it is tried",
        };
        self.object.error(format!(
            "{}: given up after {} attempts in {:.1} s, {:.1} s without progress; the last one: {text}; {advice}",
            self.doing,
            self.failures,
            self.began.elapsed().as_secs_f64(),
            self.progress.elapsed().as_secs_f64(),
        ))
    }
}

/// Between a half and one, so that many clients do not come again at the same time.
fn jitter() -> f64 {
    // The keys of the hasher are random, and no two have the same.
    let random = RandomState::new().build_hasher().finish();
    0.5 + (random >> 12) as f64 / (1u64 << 53) as f64
}

/// Makes a request until it succeeds. `silence` is how long one attempt may take.
pub(super) async fn persist<T, F>(
    mut patience: Patience<'_>,
    silence: Duration,
    mut attempt: impl FnMut() -> F,
) -> Result<T, Error>
where
    F: Future<Output = object_store::Result<T>>,
{
    loop {
        let time = patience.silence(silence);
        let failure = match tokio::time::timeout(time, attempt()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error.into(),
            Err(_) => Failure::Silence(time),
        };
        patience.failed(failure).await?;
    }
}
