//! Progress and other events while a cache is made.
//!
//! Out of scope: displaying the events.

use std::fmt;

use fulmen_durable::messages::{quantity, size};

/// The exact size of a cache, before it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheEstimate {
    /// The number of samples in the dataset.
    pub samples: usize,
    /// The number of variants per sample.
    pub variants: usize,
    /// The number of bytes per sample, over all fields.
    pub sample_bytes: u64,
    /// The number of bytes of all files.
    pub bytes: u64,
    /// The number of files.
    pub parts: usize,
    /// The number of bytes of the missing files.
    pub missing_bytes: u64,
    /// The number of missing files.
    pub missing_parts: usize,
}

impl fmt::Display for CacheEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CacheEstimate {
            samples,
            variants,
            sample_bytes,
            bytes,
            parts,
            missing_bytes,
            missing_parts,
        } = *self;
        write!(
            f,
            "{} × {} × {} = {} in {}",
            quantity(samples, "sample"),
            quantity(variants, "variant"),
            size(sample_bytes),
            size(bytes),
            quantity(parts, "file")
        )?;
        match missing_parts {
            _ if missing_parts == parts => Ok(()),
            0 => write!(f, ", all there"),
            _ => write!(
                f,
                ", {missing_parts} of the files ({}) still to be written",
                size(missing_bytes)
            ),
        }
    }
}

/// An event while a cache is made, passed to
/// [`CacheBuilder::on_event`](crate::CacheBuilder::on_event).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum CacheEvent {
    /// There is a cache of other samples. A new one is made next to it.
    Differs {
        /// The differences, one per line: `resize: was 224, is 256`.
        differences: Vec<String>,
    },
    /// Another process is making this cache. This process waits, and continues the work if the
    /// other one dies. Sent several times a second.
    Waiting {
        /// The other process.
        holder: String,
    },
    /// Reading starts.
    Started(CacheEstimate),
    /// Progress; sent several times a second, and once at the end.
    Progress {
        /// The number of samples in the files, counting each variant, including those of an earlier
        /// run.
        done: usize,
        /// The total number of samples.
        total: usize,
        /// The number of bytes per sample.
        sample_bytes: u64,
    },
    /// All files exist.
    Finished(CacheEstimate),
}
