//! Options for object stores: settings, retries, reading ahead.
//!
//! Out of scope: the objects to access (`location`).

use std::fmt;
use std::time::Duration;

#[cfg(feature = "cloud")]
use crate::{Error, Result};

/// The environment variable with the time without progress, in seconds, after which a request
/// fails.
#[cfg(feature = "cloud")]
const GIVE_UP_VARIABLE: &str = "FULMEN_STORE_GIVE_UP_SECONDS";

/// Options for object stores. Settings that are not set here come from the usual environment
/// variables: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`,
/// `AWS_ENDPOINT_URL`, `AWS_SKIP_SIGNATURE` (public buckets) and the other `AWS_...` variables;
/// `GOOGLE_APPLICATION_CREDENTIALS`, `GOOGLE_SERVICE_ACCOUNT`, `GOOGLE_SKIP_SIGNATURE` and the
/// other `GOOGLE_...` variables. A cloud machine uses its service account by default.
///
/// ```
/// use std::time::Duration;
/// use fulmen_files::{Location, StoreOptions};
///
/// let options = StoreOptions::new().set("aws_endpoint_url", "http://localhost:9000").give_up_after(Duration::from_secs(20));
/// let shards = Location::from("s3://images/train").with_options(options);
/// assert_eq!(shards.join("train-000000.tar").to_string(), "s3://images/train/train-000000.tar");
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StoreOptions {
    settings: Vec<(String, String)>,
    /// The value of [`give_up_after`](StoreOptions::give_up_after), if it was called.
    give_up_after: Option<Duration>,
    chunks: usize,
    chunk_bytes: usize,
}

impl StoreOptions {
    /// The default options. Settings come from the environment. A request fails after three minutes
    /// without progress; `FULMEN_STORE_GIVE_UP_SECONDS` changes this time, and an invalid value is
    /// an error when the store is first used. Files are read ahead in four chunks of 8 MiB.
    pub fn new() -> StoreOptions {
        StoreOptions { settings: Vec::new(), give_up_after: None, chunks: 4, chunk_bytes: 8 << 20 }
    }

    /// Sets one setting, named like its environment variable in lower or upper case. An unknown
    /// name is an error when the store is first used.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> StoreOptions {
        let name = name.to_ascii_lowercase();
        self.settings.retain(|(setting, _)| *setting != name);
        self.settings.push((name, value.to_owned()));
        self
    }

    /// How long to retry a request while no data arrives because the store answers 429 or 5xx,
    /// drops the connection or does not answer.
    #[must_use]
    pub fn give_up_after(mut self, time: Duration) -> StoreOptions {
        self.give_up_after = Some(time);
        self
    }

    /// The number and the size in bytes of the parts that are fetched or sent at the same time;
    /// both must be at least 1. Reading a file in sequence takes this much memory, plus one part.
    #[must_use]
    pub fn read_ahead(mut self, chunks: usize, chunk_bytes: usize) -> StoreOptions {
        self.chunks = chunks.max(1);
        self.chunk_bytes = chunk_bytes.max(1);
        self
    }
}

#[cfg(feature = "cloud")]
impl StoreOptions {
    pub(crate) fn settings(&self) -> &[(String, String)] {
        &self.settings
    }

    /// Checks the environment variable that stores read, `FULMEN_STORE_GIVE_UP_SECONDS`, so that a
    /// program can refuse a mistake before it starts to work.
    ///
    /// ```
    /// fulmen_files::StoreOptions::check_variables()?;
    /// # Ok::<(), fulmen_files::Error>(())
    /// ```
    ///
    /// # Errors
    /// Its value is not a number of seconds.
    pub fn check_variables() -> Result<()> {
        StoreOptions::new().give_up_time().map(drop)
    }

    pub(crate) fn give_up_time(&self) -> Result<Duration> {
        match (self.give_up_after, std::env::var_os(GIVE_UP_VARIABLE).filter(|set| !set.is_empty()))
        {
            (Some(time), _) => Ok(time),
            (None, Some(set)) => seconds(&set.to_string_lossy()),
            (None, None) => Ok(Duration::from_secs(180)),
        }
    }

    pub(crate) fn chunks(&self) -> usize {
        self.chunks
    }

    pub(crate) fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions::new()
    }
}

/// Prints the options without the values of settings, which include secrets.
impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.settings.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("StoreOptions")
            .field("settings", &names)
            .field("give_up_after", &self.give_up_after)
            .field("chunks", &self.chunks)
            .field("chunk_bytes", &self.chunk_bytes)
            .finish()
    }
}

/// Parses the time in the environment variable.
#[cfg(feature = "cloud")]
fn seconds(text: &str) -> Result<Duration> {
    let time =
        text.trim().parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| {
        Error::usage(format!(
            "{GIVE_UP_VARIABLE} is `{text}`; expected a number of seconds that is not negative, as in 20 or 0.5"
        ))
    })
}

#[cfg(all(test, feature = "cloud"))]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_the_environment_is_a_number_of_seconds() {
        assert_eq!(seconds("20").unwrap(), Duration::from_secs(20));
        assert_eq!(seconds(" 0.5 ").unwrap(), Duration::from_millis(500));
        for wrong in ["20s", "", "-1", "nan", "inf", "1e300"] {
            let error = seconds(wrong).unwrap_err();
            assert!(error.is_usage() && error.to_string().contains(GIVE_UP_VARIABLE), "{error}");
        }
    }
}
