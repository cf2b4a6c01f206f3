//! Samples in shards: WebDataset's tar files and TensorFlow's record files.
//!
//! Out of scope: access to the files (`fulmen-files`), and the content of a sample.

mod files;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod tar;
mod tfrecord;

#[doc(hidden)]
pub use tar::{END, TarEntry, TarFile, size_in_tar, split, tar_entries};
pub use tar::{
    TarSample, TarShardWriter, TarShardWriterBuilder, TarShards, TarSource, WrittenShard,
};
pub use tfrecord::{Example, Feature, TfRecordSource, TfRecordWriter, TfRecords};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
