//! Checkpoints: a folder of safetensors shards and a manifest.
//!
//! Each process writes the [`Part`]s of tensors that it holds into its own shards
//! ([`CheckpointWriter`]). The manifest is written last and names all of them. A folder without a
//! complete manifest is not a checkpoint. Checksums cover every byte: reading compares each block
//! with its checksum, and an error names the tensor.
//!
//! [`Checkpoint::read`] returns any rectangle of any tensor, even if it was written in different
//! parts. A checkpoint of eight devices can therefore be read by four devices, or by one.
//!
//! ```
//! use std::sync::Arc;
//! use fulmen_checkpoint::{Checkpoint, CheckpointWriter, Dtype, LocalStore, Part, Rectangle, Run};
//!
//! let folder = tempfile::tempdir()?;
//! let store = Arc::new(LocalStore::new(folder.path()));
//! let writer = CheckpointWriter::new(store.clone(), "step_10")?;
//! // Two processes hold two rows of a matrix each.
//! let mut shards = Vec::new();
//! for process in 0..2u8 {
//!     let rows = Rectangle::new([2 * u64::from(process), 0], [2, 3]);
//!     let part = Part::slice("fc.weight", Dtype::U8, [4, 3], rows);
//!     let mut shard = writer.shard(&format!("shard_{process}.safetensors"), vec![part])?;
//!     shard.write(&[process; 6])?;
//!     shards.push(shard.commit()?);
//! }
//! writer.commit(Run { step: 10, ..Run::default() }, shards)?;
//!
//! let checkpoint = Checkpoint::open(store, "step_10")?;
//! let column = checkpoint.read("fc.weight", &Rectangle::new([0, 1], [4, 1]))?;
//! assert_eq!(column, [0, 0, 1, 1]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Out of scope: devices, models, and when to write a checkpoint.

mod blocks;
mod checkpoint;
mod checkpoint_writer;
#[cfg(feature = "cloud")]
mod cloud_store;
mod copy;
mod diff;
mod error;
mod file_name;
mod header;
mod manifest;
mod merge;
mod rectangle;
mod retention;
mod shard;
mod store;
mod tiered_store;
mod verify;

#[cfg(test)]
mod tests;

pub use blocks::{BLOCK_BYTES, Blocks};
pub use checkpoint::Checkpoint;
pub use checkpoint_writer::CheckpointWriter;
#[cfg(feature = "cloud")]
pub use cloud_store::CloudStore;
pub use copy::copy;
pub use diff::{Difference, diff};
pub use file_name::FileName;
#[doc(inline)]
pub use fulmen_error::{Error, Result};
#[cfg(feature = "cloud")]
#[doc(no_inline)]
pub use fulmen_files::StoreOptions;
pub use header::header;
pub use manifest::{FORMAT_VERSION, MANIFEST, Manifest, PartEntry, Run, ShardEntry, TensorEntry};
pub use merge::{MergeOptions, OPTIMIZER_PREFIX, TRAINER_PREFIX, is_training_state, merge};
pub use rectangle::Rectangle;
pub use retention::{
    ListedCheckpoint, Mode, RetentionPolicy, list, newest, prune, remove, remove_unfinished,
};
pub use safetensors::Dtype;
pub use shard::{Part, ShardWriter, WrittenShard};
pub use store::{Entry, LocalStore, NewObject, Store, open_store};
pub use tiered_store::TieredStore;
pub use verify::verify;
