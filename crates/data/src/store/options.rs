//! How an object store is spoken to: settings, patience, how far to read ahead.
//!
//! Not here: which object (`location`).

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

/// How an object store is spoken to. What is not set here comes from the usual environment: `AWS_ACCESS_KEY_ID`,
/// `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL`, `AWS_SKIP_SIGNATURE` (public buckets)
/// and the other `AWS_...` variables; `GOOGLE_APPLICATION_CREDENTIALS`, `GOOGLE_SERVICE_ACCOUNT`, `GOOGLE_SKIP_SIGNATURE`
/// and the other `GOOGLE_...` variables. On a cloud machine its service account is used.
///
/// ```
/// use std::time::Duration;
/// use fulmen_data::{Location, StoreOptions};
///
/// let options = StoreOptions::new().set("aws_endpoint_url", "http://localhost:9000").give_up_after(Duration::from_secs(20));
/// let shards = Location::from("s3://pictures/train").with_options(options);
/// assert_eq!(shards.join("train-000000.tar").to_string(), "s3://pictures/train/train-000000.tar");
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StoreOptions {
    settings: Vec<(String, String)>,
    give_up_after: Duration,
    chunks: usize,
    chunk_bytes: usize,
}

impl StoreOptions {
    /// Settings from the environment; giving up after three minutes without progress (`FULMEN_STORE_GIVE_UP_SECONDS`
    /// changes that); reading ahead four times 8 MiB.
    pub fn new() -> StoreOptions {
        static PATIENCE: OnceLock<Duration> = OnceLock::new();
        let give_up_after = *PATIENCE.get_or_init(|| {
            let set =
                std::env::var("FULMEN_STORE_GIVE_UP_SECONDS").ok().and_then(|seconds| seconds.trim().parse().ok());
            Duration::from_secs(set.unwrap_or(180))
        });
        StoreOptions { settings: Vec::new(), give_up_after, chunks: 4, chunk_bytes: 8 << 20 }
    }

    /// One setting, by the name of its environment variable in lower or upper case. An unknown name is an error when the
    /// store is first used.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> StoreOptions {
        let name = name.to_ascii_lowercase();
        self.settings.retain(|(known, _)| *known != name);
        self.settings.push((name, value.to_owned()));
        self
    }

    /// For how long a request is tried again while the store answers 429 or 5xx, drops the connection or is silent, and
    /// nothing arrives.
    #[must_use]
    pub fn give_up_after(mut self, time: Duration) -> StoreOptions {
        self.give_up_after = time;
        self
    }

    /// How many parts of how many bytes are fetched or sent at the same time; both at least 1. So much memory may a file
    /// take that is read from the beginning to the end, and one part more.
    #[must_use]
    pub fn read_ahead(mut self, chunks: usize, chunk_bytes: usize) -> StoreOptions {
        self.chunks = chunks.max(1);
        self.chunk_bytes = chunk_bytes.max(1);
        self
    }
}

#[cfg_attr(not(feature = "cloud"), expect(dead_code, reason = "only stores elsewhere ask"))]
impl StoreOptions {
    pub(crate) fn settings(&self) -> &[(String, String)] {
        &self.settings
    }

    pub(crate) fn patience(&self) -> Duration {
        self.give_up_after
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

/// Without the values of settings, among which are keys.
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
