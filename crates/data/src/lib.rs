//! Datasets, read in batches by threads and brought to the device ahead of time.
//!
//! ```
//! use fulmen_data::{DataLoader, LastBatch, TensorDataset};
//!
//! let data = TensorDataset::builder()
//!     .array("x", [5, 2], [0.0f32, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5])
//!     .array("y", [5], [0i32, 1, 0, 1, 0])
//!     .build()?;
//! let loader = DataLoader::builder(data).batch_size(2).shuffle(true).seed(1).last_batch(LastBatch::Pad).build()?;
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
//! A [`Dataset`] reads one sample by index and writes it straight into the memory of the batch. A [`DataLoader`] decides
//! which samples make up which batch ([`Sampler`]), lets threads fill them, and hands them out in order as
//! [`HostBatch`]es or, moved to a device, as [`DeviceBatch`]es. All batches have one shape: a short last one is padded
//! and masked, or dropped ([`LastBatch`]), so that it never makes a program compile again.
//!
//! Nothing about a batch depends on the number of threads, devices or processes: order and content are a function of
//! dataset, sampler, batch size and epoch. Several processes divide the rows of each batch among them
//! ([`DataLoader::distributed`]).
//!
//! Not here: models, training loops, decoding of images, augmentation, caching.

mod batch;
mod bench_loader;
mod buckets;
mod builder;
mod cache;
#[cfg(feature = "images")]
mod cifar;
mod classification;
mod dataset;
mod device;
pub mod device_transforms;
mod error;
mod field;
mod fill;
mod fingerprint;
mod folds;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod host_batches;
mod idx;
#[cfg(feature = "images")]
mod image_folder;
#[cfg(feature = "images")]
mod images;
mod iterable;
mod layout;
mod loader;
mod mix;
mod mix_stream;
mod monitor;
mod on_error;
mod parallel;
mod plan;
mod pool;
pub mod prepare;
#[cfg(feature = "images")]
mod presize;
mod pull;
mod random;
mod replicas;
mod report;
mod sample;
mod sampler;
mod source;
mod stage;
mod store;
mod stream;
mod stream_steps;
mod subset;
mod tables;
mod tar_shards;
mod tensor_dataset;
pub mod text;
mod tfrecord;
mod workers;

pub use batch::HostBatch;
pub use bench_loader::{LoaderBench, bench_loader};
pub use buckets::Buckets;
pub use builder::{DataLoaderBuilder, LastBatch};
pub use cache::{
    Access, CacheBuilder, CacheEstimate, CacheEvent, CacheInfo, CachedDataset, cache_info, clear_cache,
    read_cache_bytes, repair_cache, verify_cache,
};
#[cfg(feature = "images")]
pub use cifar::Cifar;
pub use classification::{IdxClassification, Mnist, Split};
pub use dataset::Dataset;
pub use device::{DeviceBatch, DeviceBatches};
pub use error::{Error, Result};
pub use field::Field;
pub use fingerprint::Fingerprint;
pub use folds::{Fold, group_k_fold, group_split, k_fold, stratified_k_fold, stratified_split};
pub use fulmen_tensor::{DType, Element};
pub use host_batches::HostBatches;
pub use idx::IdxFile;
#[cfg(feature = "images")]
pub use image_folder::ImageFolder;
#[cfg(feature = "images")]
pub use images::{
    Amount, AutoAugment, AutoAugmentPolicy, ColorJitter, ErasingValue, GaussianBlur, Pad, RandAugment,
    RandomAdjustSharpness, RandomAffine, RandomApply, RandomAutocontrast, RandomChoice, RandomEqualize, RandomErasing,
    RandomGrayscale, RandomInvert, RandomOrder, RandomPerspective, RandomPosterize, RandomRotation, RandomSolarize,
    TrivialAugmentWide,
};
#[cfg(feature = "images")]
pub use images::{
    EncodedImage, Encoding, Interpolation, Picture, PictureDataset, PictureSize, PictureTransform, Pictures,
    encode_picture, functional, presize,
};
pub use iterable::{IterableDataset, Record, Records, StreamDataset};
pub use loader::DataLoader;
pub use mix::{MixSampler, WeightedRandomSampler};
pub use mix_stream::{MixStream, MixUntil};
pub use on_error::{BadSample, BadSamples, OnError};
#[cfg(feature = "images")]
pub use presize::Presize;
pub use random::SampleRandom;
pub use replicas::{Replica, Replicas};
pub use report::{LoaderReport, QueueDepth, TransferReport};
pub use sample::Sample;
pub use sampler::{RandomSampler, Sampler, SequentialSampler};
pub use source::{MapSource, Source, SourceDataset};
pub use stage::Stage;
pub use store::{Location, StoreOptions};
pub use stream::{Deferred, Items, Stream, StreamItem};
pub use stream_steps::{ChainStream, MapStream, ShuffleStream, SkipStream, TakeStream};
pub use subset::{ConcatDataset, Subset, random_split};
#[cfg(feature = "parquet")]
pub use tables::Parquet;
pub use tables::{
    ArrowFiles, ColumnRef, Csv, CsvOptions, CsvRow, CsvStream, HfDataset, HfFeature, HfFeatures, HfFolder, JsonLines,
    JsonLinesStream, Row, RowStream, Table, TableBuilder, TableDataset, TextFile, TextFolder, TextStream, Value,
};
pub use tar_shards::{TarSample, TarShardWriter, TarShardWriterBuilder, TarShards, TarSource, WrittenShard};
pub use tensor_dataset::{TensorDataset, TensorDatasetBuilder};
pub use tfrecord::{Example, Feature, TfRecordSource, TfRecordWriter, TfRecords};
