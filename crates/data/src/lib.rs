//! Datasets, read in batches by worker threads and copied to the device ahead of time.
//!
//! ```
//! use fulmen_data::{DataLoader, TensorDataset};
//!
//! let data = TensorDataset::builder()
//!     .array("x", [5, 2], [0.0f32, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5])
//!     .array("y", [5], [0i32, 1, 0, 1, 0])
//!     .build()?;
//! let loader = DataLoader::builder(data).batch_size(2).shuffle(true).seed(1).drop_last(false).build()?;
//! assert_eq!(loader.len(), 3);
//!
//! let mut seen = 0;
//! for batch in loader.epoch(0) {
//!     let batch = batch?;
//!     let (x, y) = (batch.values::<f32>(0)?, batch.values::<i32>(1)?);
//!     assert_eq!((x.len(), y.len()), (4, 2));
//!     seen += batch.valid();
//! }
//! assert_eq!(seen, 5);
//! # Ok::<(), fulmen_data::Error>(())
//! ```
//!
//! A [`Dataset`] reads one sample by index and writes it directly into the memory of the batch. A
//! [`DataLoader`] decides which samples make up a batch ([`Sampler`]), fills batches on worker
//! threads, and returns them in order as [`HostBatch`]es or, on a device, as [`DeviceBatch`]es. All
//! batches have one shape: a short last one is padded and masked, or dropped
//! ([`drop_last`](DataLoaderBuilder::drop_last)), so a program never has to be compiled again.
//!
//! The batches do not depend on the number of threads, devices or processes: order and content are
//! a function of dataset, sampler, batch size and epoch. Several processes share the rows of each
//! batch ([`DataLoader::distributed`]). There is one exception: the replacement of a sample that
//! cannot be read may depend on the number of processes ([`OnError`]).
//!
//! Samples come from arrays ([`TensorDataset`]), IDX files ([`Mnist`]), or any [`Source`] or
//! [`Stream`]. The crates `fulmen-images`, `fulmen-tables`, `fulmen-shards` and `fulmen-text` read
//! other formats, `fulmen-files` reads object stores, and `fulmen-cache` caches samples that are
//! expensive to compute.
//!
//! Out of scope: other file formats, models and training loops.

mod dataset;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
#[doc(hidden)]
pub mod internal;
mod left_out;
mod loader;
mod offsets;
mod panics;
mod sampler;
mod stream;
mod vision;

pub use dataset::{
    ConcatDataset, Dataset, FakeDataset, Field, Fold, MapSource, Sample, SampleRng, Source,
    SourceDataset, Stage, Subset, TensorDataset, TensorDatasetBuilder, group_k_fold, group_split,
    k_fold, random_split, stratified_k_fold, stratified_split,
};
#[doc(hidden)]
pub use fulmen_error::shorten;
#[doc(inline)]
pub use fulmen_error::{Error, Result};
#[doc(inline)]
pub use fulmen_files::Fingerprint;
pub use fulmen_tensor::{DType, Element};
pub use loader::{
    BadSample, BadSamples, Buckets, DataLoader, DataLoaderBuilder, DeviceBatch, DeviceBatches,
    HostBatch, HostBatches, LoaderBench, LoaderReport, OnError, QueueDepth, Replica, Replicas,
    TransferReport, bench_loader, bench_loader_for,
};
pub use sampler::{MixSampler, RandomSampler, Sampler, SequentialSampler, WeightedRandomSampler};
pub use stream::{
    Deferred, Items, IterableDataset, MixStream, MixUntil, Record, Records, Stream, StreamDataset,
    StreamItem,
};
pub use vision::{IdxClassification, IdxFile, Mnist, Split};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
