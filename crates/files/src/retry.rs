//! Additions to the retries of `object_store`, and error messages with advice.
//!
//! The library repeats a request after 429, 5xx and broken connections, and waits longer each time.
//! If the store gave the object an etag, the library resumes an interrupted response at the byte
//! where it stopped. It stops a fixed time after the request began. [`RetryState`] adds three
//! things:
//! - The time is measured from the last byte that arrived, so downloading a large object may take
//!   as long as it needs.
//! - An interrupted page of a list, or an interrupted part of an object without an etag, is
//!   requested again.
//! - An upload whose connection broke after the time limit is sent once more, so that a slow
//!   connection gets a second attempt.
//!
//! Out of scope: the requests (`remote`, `upload`), and the setup of the library (`connect`).

use std::error::Error as StdError;
use std::future::Future;
use std::io;
use std::time::{Duration, Instant};

use fulmen_durable::messages::duration;
use object_store::Error as StoreError;
use object_store::client::{HttpError, HttpErrorKind};

use super::object_path::ObjectPath;
use crate::Error;

/// The wait before a retry of [`RetryState`].
const PAUSE: Duration = Duration::from_millis(100);

const CREDENTIALS_ADVICE: &str = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or GOOGLE_APPLICATION_CREDENTIALS; for a public \
     bucket AWS_SKIP_SIGNATURE=true or GOOGLE_SKIP_SIGNATURE=true";

/// `object_store`'s message for a redirect without an address. S3 sends it if a bucket is in
/// another region.
const BARE_REDIRECT: &str = "redirect without LOCATION";

/// The state of a request that may be retried: when it began, and when data last arrived.
pub(super) struct RetryState {
    object: ObjectPath,
    doing: String,
    limit: Duration,
    start: Instant,
    last_progress: Instant,
    /// Whether data has arrived since the last failure.
    has_progressed: bool,
    /// Whether one more attempt is allowed after the time limit.
    extra_attempt: bool,
}

impl RetryState {
    pub(super) fn new(object: ObjectPath, doing: String, limit: Duration) -> RetryState {
        let now = Instant::now();
        RetryState {
            object,
            doing,
            limit,
            start: now,
            last_progress: now,
            has_progressed: false,
            extra_attempt: false,
        }
    }

    /// Allows another attempt, for an upload, whose progress is not visible while it is sent.
    pub(super) fn with_extra_attempt(self) -> RetryState {
        RetryState { extra_attempt: true, ..self }
    }

    /// Records that data has arrived.
    pub(super) fn progress(&mut self) {
        self.last_progress = Instant::now();
        self.has_progressed = true;
    }

    /// Waits before the next attempt, or returns an error if there is none.
    pub(super) async fn failed(&mut self, error: StoreError) -> Result<(), Error> {
        let in_time =
            self.last_progress.elapsed() < self.limit || std::mem::take(&mut self.extra_attempt);
        let may_retry =
            std::mem::take(&mut self.has_progressed) || in_time && is_broken(&error).is_some();
        if !may_retry {
            return Err(self.explain(&error));
        }
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }

    /// Makes a request until it succeeds.
    pub(super) async fn retry<T, F>(mut self, mut attempt: impl FnMut() -> F) -> Result<T, Error>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        loop {
            match attempt().await {
                Ok(answer) => return Ok(answer),
                Err(error) => self.failed(error).await?,
            }
        }
    }

    /// Makes the error for the user, with advice.
    pub(super) fn explain(&self, error: &StoreError) -> Error {
        let text = text(error);
        let doing = &self.doing;
        // The library may have wrapped one of its own errors.
        let cause = chain(error).find_map(|error| {
            error
                .downcast_ref::<StoreError>()
                .filter(|error| !matches!(error, StoreError::Generic { .. }))
        });
        match cause {
            Some(StoreError::NotFound { .. }) => {
                let source = io::Error::new(io::ErrorKind::NotFound, text);
                return self.object.io(&format!("{doing}: the object does not exist"), source);
            }
            Some(StoreError::Precondition { .. }) => {
                let reason =
                    "the object changed while it was read; read it again from the beginning";
                return self.object.error(format!("{doing}: {reason} ({text})"));
            }
            Some(StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. })
                if !self.object.is_web() =>
            {
                return self.object.error(format!(
                    "{doing}: the store rejected the credentials, or there were none; {CREDENTIALS_ADVICE} ({text})"
                ));
            }
            _ => {}
        }
        if text.contains(BARE_REDIRECT) {
            let reason = "the bucket is in another region; set AWS_REGION to the bucket's region";
            return self.object.error(format!("{doing}: {reason} ({text})"));
        }
        if text.contains("169.254.169.254") || text.contains("metadata.google.internal") {
            return self.no_credentials(&text);
        }
        let silent = match is_broken(error) {
            Some(HttpErrorKind::Timeout) => ", no data for some time",
            // The text alone already shows the number of retries, which counts a retry that was
            // about to be made.
            None if ![" retries, ", "status code: 5", "status code: 429"]
                .iter()
                .any(|mark| text.contains(mark)) =>
            {
                return self.object.error(format!("{doing}: {text}"));
            }
            _ => "",
        };
        self.object.error(format!(
            "{doing}: given up after {}, {} without progress{silent}: {text}; check that the store can be \
             reached; StoreOptions::give_up_after sets how long to retry",
            duration(self.start.elapsed().as_secs_f64()),
            duration(self.last_progress.elapsed().as_secs_f64()),
        ))
    }

    /// The error for missing credentials.
    pub(super) fn no_credentials(&self, text: &str) -> Error {
        let doing = &self.doing;
        self.object
            .error(format!("{doing}: no credentials were found, and this machine has none of its own; {CREDENTIALS_ADVICE} ({text})"))
    }
}

fn chain<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// How the connection broke; `None` if it did not, since the store answered.
fn is_broken(error: &StoreError) -> Option<HttpErrorKind> {
    chain(error).find_map(|error| error.downcast_ref::<HttpError>()).map(HttpError::kind)
}

/// The text of the error and its sources. Most errors repeat the text of their sources.
fn text(error: &StoreError) -> String {
    chain(error).map(ToString::to_string).fold(String::new(), |text, source| {
        if text.contains(&source) {
            text
        } else if text.is_empty() {
            source
        } else {
            format!("{text}: {source}")
        }
    })
}
