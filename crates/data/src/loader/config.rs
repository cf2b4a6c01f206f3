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
    /// By default, [`Config::device_prefetch`] decides.
    pub(crate) device_prefetch: Option<usize>,
}

/// The batches that are kept on the device ahead of the step, unless the user sets another number.
const DEVICE_PREFETCH: usize = 2;

/// The most small batches that are kept there. The more there are, the less often the step and the
/// transfer thread wait for each other, which takes a good part of the time of a small step.
const DEVICE_PREFETCH_OF_SMALL_BATCHES: usize = 8;

/// The bytes that small batches may take together.
const BYTES_OF_SMALL_BATCHES: usize = 1 << 20;

impl Config {
    /// How many batches of at most `batch_bytes` bytes are kept on the device ahead of the step.
    pub(crate) fn device_prefetch(&self, batch_bytes: usize) -> usize {
        let small = BYTES_OF_SMALL_BATCHES / batch_bytes.max(1);
        self.device_prefetch
            .unwrap_or_else(|| small.clamp(DEVICE_PREFETCH, DEVICE_PREFETCH_OF_SMALL_BATCHES))
    }
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
            device_prefetch: None,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_small_batches_than_large_ones_are_kept_on_the_device() {
        let config = Config::default();
        for (batch_bytes, batches) in
            [(0, 8), (64, 8), (128 << 10, 8), (200 << 10, 5), (512 << 10, 2), (1 << 30, 2)]
        {
            assert_eq!(config.device_prefetch(batch_bytes), batches, "{batch_bytes} bytes");
        }
        let set = Config { device_prefetch: Some(3), ..Config::default() };
        assert_eq!(set.device_prefetch(64), 3);
    }
}
