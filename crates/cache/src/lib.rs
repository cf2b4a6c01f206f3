//! Cached datasets: samples that were decoded, resized and perhaps augmented once, in a few large
//! files.
//!
//! A cache is a folder named by its key (`key`) with `cache.json` (`manifest`), `part-00000.arrow`
//! and so on (`arrow`, `atomic_file`) and `cache.lock` (`lock`). `builder` and `build` make a
//! cache; `dataset` reads it through `mmap`.
//!
//! Invariants: a part gets its name only when it is complete, and then never changes; a file that
//! the manifest does not list is not part of the cache; the bytes of a part depend only on the
//! dataset and the options.
//!
//! A copy of a finished cache can be in a bucket (`store`); samples are read from a local one.
//!
//! Out of scope: the datasets.

mod arrow;
mod atomic_file;
mod build;
mod builder;
mod dataset;
mod event;
#[cfg(feature = "fuzzing")]
mod fuzz;
mod key;
mod maintenance;
mod manifest;
mod mmap;
mod store;
#[cfg(test)]
mod tests;

pub use builder::CacheBuilder;
pub use dataset::CachedDataset;
pub use event::{CacheEstimate, CacheEvent};
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use fuzz::fuzz;
pub use maintenance::{CacheInfo, cache_info, clear_cache, repair_cache, verify_cache};
pub use mmap::Access;

use std::path::Path;

use fulmen_data::Dataset;

/// Adds [`cache`](CacheExt::cache) to every dataset.
///
/// ```
/// use fulmen_cache::CacheExt;
/// use fulmen_data::{Dataset, TensorDataset};
///
/// # fn f(folder: &std::path::Path) -> fulmen_data::Result<()> {
/// let slow = TensorDataset::builder().array("x", [3, 2], vec![0.5f32; 6]).build()?;
/// let cached = slow.cache(folder).open()?; // reads the samples once, if the folder has none
/// assert_eq!(cached.len(), 3);
/// # Ok(())
/// # }
/// # let folder = std::env::temp_dir().join(format!("fulmen-cache-example-{}", std::process::id()));
/// # f(&folder).unwrap();
/// # std::fs::remove_dir_all(folder).unwrap();
/// ```
pub trait CacheExt: Dataset + Sized {
    /// Caches these samples in the folder `path`. They are read and stored once, then
    /// memory-mapped.
    fn cache(self, path: impl AsRef<Path>) -> CacheBuilder {
        CachedDataset::builder(self, path)
    }
}

impl<D: Dataset> CacheExt for D {}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
