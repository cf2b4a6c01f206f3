//! From a dataset to batches: which samples make up a batch, who fills it, and how it reaches a
//! device.
//!
//! Out of scope: what a sample is (`dataset`), and in which order samples are read (`sampler`).

mod batch;
mod batch_sampler;
mod bench;
mod buckets;
mod builder;
mod collate;
mod config;
mod data_loader;
mod device;
mod host_batches;
mod index_batches;
mod inner;
pub(crate) mod layout;
mod not_finite;
mod on_error;
mod pool;
mod replicas;
mod report;
mod source;
mod stats;
mod stream_batches;
mod stream_cursor;
mod workers;

pub use batch::HostBatch;
pub use bench::{LoaderBench, bench_loader, bench_loader_for};
pub use buckets::Buckets;
pub use builder::DataLoaderBuilder;
pub use data_loader::DataLoader;
pub use device::{DeviceBatch, DeviceBatches};
pub use host_batches::HostBatches;
pub use on_error::{BadSample, BadSamples, OnError};
pub use replicas::{Replica, Replicas};
pub use report::{LoaderReport, QueueDepth, TransferReport};

use fulmen_error::{Error, Fact};

/// Says that the data are the cause.
fn of_loader(error: Error) -> Error {
    error.with(Fact::Data)
}
