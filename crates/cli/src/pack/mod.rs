//! Converts archives, folders and texts to shards that are read in sequence.
//!
//! [`Pack`] converts images in tar files (also tar files of tar files), zip files and folders, with
//! their classes and labels. A seed assigns images to shards before anything is written, so an
//! interrupted run can be continued, and any number of threads writes the same bytes. [`Pack`] also
//! converts files of texts, whose number is not known in advance. The [`Manifest`] next to the
//! shards lists each finished shard with its checksum, and [`Progress`] receives progress.
//!
//! Out of scope: reading shards for training, and downloading (`fetch`).

mod entries;
mod file_slice;
mod images;
mod info;
mod labels;
mod manifest;
mod options;
mod output;
mod plan;
mod progress;
mod run;
mod shard_file;
mod text;
mod text_files;
mod text_shard;
mod zip_index;

pub use info::{ShardInfo, ShardsInfo, shards_info};
pub(crate) use manifest::MAX_JSON_BYTES;
pub use manifest::{Manifest, ShardRecord, SourceFile, SplitManifest, Warning};
pub use options::Pack;
pub use progress::Progress;
pub(crate) use shard_file::sha256_of;
