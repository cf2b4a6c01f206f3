//! Converts the official archives of well-known datasets to shards that are read in sequence.
//!
//! [`imagenet`] and [`coco`] convert the archives as downloaded. A seed assigns samples to shards
//! before anything is written, so an interrupted run can be continued, and any number of threads
//! writes the same bytes. A [`Manifest`] next to the shards has counts, checksums and classes.
//! [`ExpectedContents`] has the expected content of the archives, [`PrepareOptions`] has the
//! options, and [`Progress`] receives progress.
//!
//! [`text`] converts text files, whose number and sizes are not known in advance. An interrupted
//! run can be continued too.
//!
//! Out of scope: reading shards for training, and downloading (`fetch`).

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
pub use checksums::{ExpectedArchive, ExpectedContents};
pub use coco::coco;
pub use imagenet::imagenet;
pub use info::{ShardInfo, ShardsInfo, shards_info};
pub(crate) use manifest::MAX_JSON_BYTES;
pub use manifest::{Class, Manifest, ShardRecord, SplitManifest, Warning};
pub use options::PrepareOptions;
pub use progress::Progress;
pub(crate) use shard_file::sha256_of;
pub use text::text;
pub use text_options::TextOptions;
