//! The official archives of well-known datasets, made into shards that are read from beginning to end.
//!
//! [`imagenet`] and [`coco`] take the archives as they were downloaded. Which sample goes into which shard is decided by a seed
//! before anything is written, so a run that was ended goes on where it was, and any number of threads writes the same
//! bytes. Beside the shards stands a [`Manifest`] with counts, checksums and classes. What the archives must hold is
//! [`Expected`]; how shards are made, [`PrepareOptions`]; [`Progress`] is told how far it is.
//!
//! [`text`] takes files of texts, of which neither number nor sizes are known beforehand; it goes on where it was, too.
//!
//! Not here: reading shards for training, and downloading (`fetch`).

mod archives;
mod checksums;
mod coco;
mod coco_annotations;
mod file_slice;
mod imagenet;
mod imagenet_devkit;
mod info;
mod job;
mod journal;
mod manifest;
mod mat5;
mod options;
mod plan;
mod progress;
mod run;
mod sample_set;
mod shard_file;
mod text;
mod text_files;
mod text_options;
mod text_shard;
mod upload;
mod zip_index;

pub use archives::SourceFile;
pub use checksums::{Expected, ExpectedArchive};
pub use coco::coco;
pub use imagenet::imagenet;
pub use info::{ShardInfo, ShardsInfo, shards_info};
pub use manifest::{Class, Manifest, ShardRecord, SplitManifest, Warning};
pub use options::PrepareOptions;
pub use progress::Progress;
pub(crate) use shard_file::sha256_of;
pub use text::text;
pub use text_options::TextOptions;
