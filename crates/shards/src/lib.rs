//! Samples in shards: WebDataset's tar files and TensorFlow's record files.
//!
//! Not here: where the files are (`fulmen-files`), and what is in the members of a sample.

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod tar;
mod tfrecord;

#[doc(hidden)]
pub use tar::{END, size_in_tar, split};
pub use tar::{TarSample, TarShardWriter, TarShardWriterBuilder, TarShards, TarSource, WrittenShard};
pub use tfrecord::{Example, Feature, TfRecordSource, TfRecordWriter, TfRecords};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
