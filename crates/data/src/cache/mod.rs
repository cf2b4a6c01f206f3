//! Cached datasets: samples that were decoded, resized and perhaps augmented once, in a few large files.
//!
//! A cache is a folder named by its key (`key`) with `manifest.json` (`manifest`), `part-00000.arrow` and so on
//! (`arrow`, `files`) and `lock` (`lock`). Making one: `builder`, then `warm`. Reading it: `dataset`, over `mapped`.
//!
//! Invariants: a part appears whole, under its name, and is never changed; what the manifest does not name is not there;
//! the bytes of a part depend on the dataset and the options alone.
//!
//! Not here: where datasets come from, and a cache on a remote store.

mod arrow;
mod builder;
mod care;
mod dataset;
mod event;
mod files;
mod key;
mod lock;
mod manifest;
mod mapped;
mod notes;
#[cfg(test)]
mod tests;
mod warm;

pub use builder::CacheBuilder;
pub use care::{CacheInfo, cache_info, clear_cache, repair_cache, verify_cache};
pub use dataset::CachedDataset;
pub use event::{CacheEstimate, CacheEvent};
#[cfg(feature = "images")]
pub(crate) use files::write_whole;
pub use mapped::Access;
pub(crate) use notes::Notes;

/// What opening a cache does with the bytes of its manifest and of a part, for the fuzzer. Gives the bytes of the
/// columns, all of which lie in the part.
#[doc(hidden)]
pub fn read_cache_bytes(manifest: &[u8], part: usize, bytes: &[u8]) -> Result<Vec<usize>, String> {
    let plan = manifest::parse(manifest)?;
    if part >= plan.num_parts() {
        return Err("there is no such part".to_owned());
    }
    // Those of the finished parts are asked for again when a cache goes on.
    let frame = plan.frame(part).map_err(|error| error.to_string())?;
    let read = |at: u64, length: usize| Ok(bytes[at as usize..][..length].to_vec());
    let rows = plan.rows_of(part);
    let columns = arrow::locate(&read, bytes.len() as u64, &plan.fields, rows, &plan.manifest.key, part);
    let columns = columns.map_err(|error| error.to_string())??;
    assert_eq!(columns.len(), frame.columns.len());
    Ok(columns.into_iter().map(|column| bytes[column.start as usize..column.end as usize].len()).collect())
}
