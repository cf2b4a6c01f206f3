//! The options of a loader, validated as far as they do not depend on devices and processes, and
//! the state shared with the sources of batches.
//!
//! Out of scope: where samples come from (`source`).

use std::sync::Arc;

use super::{on_error::OnError, replicas::ShardSpec, stats::Stats};

/// A batch size in one of its two forms.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BatchSize {
    Global(usize),
    PerDevice(usize),
}

/// The options as the user set them.
pub(crate) struct Config {
    pub(crate) batch_size: BatchSize,
    /// The seed of the samples' random numbers, and of the order if it is `shuffled`.
    pub(crate) seed: u64,
    pub(crate) shuffled: bool,
    pub(crate) on_error: OnError,
    pub(crate) ordered: bool,
    pub(crate) drop_last: bool,
    pub(crate) padded: bool,
    pub(crate) num_workers: usize,
    pub(crate) prefetch: usize,
    pub(crate) device_prefetch: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            batch_size: BatchSize::Global(1),
            seed: 0,
            shuffled: false,
            on_error: OnError::default(),
            ordered: true,
            drop_last: false,
            padded: false,
            num_workers: 0,
            prefetch: 0,
            device_prefetch: 2,
        }
    }
}

/// Everything that decides which samples make up a batch, except the source of the samples.
pub(crate) struct Setup {
    pub(crate) config: Arc<Config>,
    pub(crate) shard: ShardSpec,
    /// Shared by a loader and all loaders made from it.
    pub(crate) stats: Arc<Stats>,
}
