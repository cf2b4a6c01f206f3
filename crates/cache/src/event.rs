//! What someone who waits for a cache may want to know, and how it is told.
//!
//! Not here: showing it. Binaries do that.

use std::fmt;

use super::atomic_file::size;

/// How large a cache is, exactly, before anything of it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheEstimate {
    /// Samples of the dataset.
    pub samples: usize,
    /// How often each sample is kept.
    pub variants: usize,
    /// Bytes of one sample, all fields together.
    pub sample_bytes: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// How many files that is.
    pub parts: usize,
    /// Bytes of the files that are not there yet.
    pub missing_bytes: u64,
    /// How many files that is.
    pub missing_parts: usize,
}

impl fmt::Display for CacheEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CacheEstimate { samples, variants, sample_bytes, bytes, parts, missing_bytes, missing_parts } = *self;
        write!(
            f,
            "{samples} samples × {variants} variants × {} = {} in {parts} files",
            size(sample_bytes),
            size(bytes)
        )?;
        match missing_parts {
            _ if missing_parts == parts => Ok(()),
            0 => write!(f, ", all there"),
            _ => write!(f, ", of which {missing_parts} files ({}) are still to be written", size(missing_bytes)),
        }
    }
}

/// What happens while a cache is made, told to [`CacheBuilder::on_event`](crate::CacheBuilder::on_event).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum CacheEvent {
    /// There is a cache of something else. A new one is made beside it.
    Differs {
        /// What differs from it, a line each: `resize: was 224, is 256`.
        differences: Vec<String>,
    },
    /// Another process makes this cache. This one waits, and goes on if the other dies. Told several times a second.
    Waiting {
        /// Who that is.
        holder: String,
    },
    /// Reading begins.
    Started(CacheEstimate),
    /// How far it is; told some times a second, and once at the end.
    Progress {
        /// Samples that are in the files, counting each variant, and those of an earlier run.
        done: usize,
        /// Samples that there will be.
        total: usize,
        /// Bytes of a sample.
        sample_bytes: u64,
    },
    /// All files are there.
    Finished(CacheEstimate),
}
