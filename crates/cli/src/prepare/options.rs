//! Options for shards: location, size, order.
//!
//! Out of scope: the content of shards (`imagenet`, `coco`, `text`).

use std::path::{Path, PathBuf};

use fulmen_data::{Error, Result};
use fulmen_files::Location;

/// The options of prepared shards.
///
/// ```
/// use fulmen_cli::prepare::PrepareOptions;
///
/// let options = PrepareOptions::new("shards/imagenet").seed(1).max_bytes(128 << 20).threads(8);
/// assert_eq!(options.output().to_str(), Some("shards/imagenet"));
/// ```
#[derive(Clone, Debug)]
pub struct PrepareOptions {
    pub(crate) output: PathBuf,
    pub(crate) seed: u64,
    pub(crate) max_samples: usize,
    pub(crate) max_bytes: u64,
    pub(crate) threads: usize,
    pub(crate) verify: bool,
    pub(crate) upload: Option<Location>,
    pub(crate) delete_uploaded: bool,
}

impl PrepareOptions {
    /// The default options: shards of at most 10,000 samples and 256 MiB in the local folder
    /// `output`, in the order of seed 0, written by one thread per core, from archives whose
    /// checksums are verified.
    pub fn new(output: impl Into<PathBuf>) -> PrepareOptions {
        PrepareOptions {
            output: output.into(),
            seed: 0,
            max_samples: 10_000,
            max_bytes: 256 << 20,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            verify: true,
            upload: None,
            delete_uploaded: false,
        }
    }

    /// The seed for the order of the samples.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> PrepareOptions {
        self.seed = seed;
        self
    }

    /// The maximum number of samples per shard.
    #[must_use]
    pub fn max_samples(mut self, samples: usize) -> PrepareOptions {
        self.max_samples = samples;
        self
    }

    /// The maximum size of a shard in bytes. A larger sample gets its own shard.
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> PrepareOptions {
        self.max_bytes = bytes;
        self
    }

    /// How many shards are written at a time. The content of the shards does not depend on it.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> PrepareOptions {
        self.threads = threads;
        self
    }

    /// Whether to verify the archives' MD5 checksums and, when a run is continued, the SHA-256
    /// checksums of existing shards.
    #[must_use]
    pub fn verify(mut self, verify: bool) -> PrepareOptions {
        self.verify = verify;
        self
    }

    /// Uploads each shard as soon as it is written, and the manifest at the end, to this folder:
    /// `gs://`, `s3://` or local.
    #[must_use]
    pub fn upload(mut self, to: impl Into<Location>) -> PrepareOptions {
        self.upload = Some(to.into());
        self
    }

    /// Whether to delete each local shard after its upload, so that the disk needs space for only a
    /// few shards. The journal is kept, so that an interrupted run can be continued.
    #[must_use]
    pub fn delete_uploaded(mut self, delete: bool) -> PrepareOptions {
        self.delete_uploaded = delete;
        self
    }

    /// The folder for the shards.
    pub fn output(&self) -> &Path {
        &self.output
    }

    pub(crate) fn check(&self) -> Result<()> {
        for (is, name) in [
            (self.max_samples == 0, "samples of a shard"),
            (self.max_bytes == 0, "bytes of a shard"),
            (self.threads == 0, "number of threads"),
        ] {
            if is {
                return Err(Error::usage(format!("the {name} may not be 0")));
            }
        }
        if self.delete_uploaded && self.upload.is_none() {
            return Err(Error::usage("deleting uploaded shards needs an upload target"));
        }
        Ok(())
    }
}
