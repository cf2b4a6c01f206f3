//! From a dataset to batches: which samples make up which batch, who fills it, and how it reaches a device.
//!
//! Not here: what a sample is (`dataset`), and in which order samples are read (`sampler`).

mod batch;
mod bench;
mod buckets;
mod builder;
mod data_loader;
mod device;
mod fill;
mod host_batches;
pub(crate) mod layout;
mod monitor;
mod on_error;
mod plan;
mod pool;
mod pull;
mod replicas;
mod report;
mod workers;

pub use batch::HostBatch;
pub use bench::{LoaderBench, bench_loader};
pub use buckets::Buckets;
pub use builder::{DataLoaderBuilder, LastBatch};
pub use data_loader::DataLoader;
pub use device::{DeviceBatch, DeviceBatches};
pub use host_batches::HostBatches;
pub use on_error::{BadSample, BadSamples, OnError};
pub use replicas::{Replica, Replicas};
pub use report::{LoaderReport, QueueDepth, TransferReport};
