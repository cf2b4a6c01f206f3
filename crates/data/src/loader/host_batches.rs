//! The iterator over the batches of an epoch, or of several epochs without a pause between them.
//!
//! Out of scope: the reading, done either directly (`batch_sampler`) or by threads (`workers`).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::of_loader;
use super::{
    batch::HostBatch, batch_sampler::BatchSampler, inner::Inner, stats::ConsumerTimer,
    workers::Workers,
};
use crate::{Error, Result};

/// Batches in host memory, in order unless the loader is [not
/// ordered](crate::DataLoaderBuilder::ordered). Made by
/// [`DataLoader::epoch`](crate::DataLoader::epoch) and similar methods.
///
/// A batch that cannot be read is an `Err` in its position, and the batches after it still follow.
/// If a sampler fails or a stream cannot continue, the error is the last item. Dropping the
/// iterator ends the worker threads; it waits for the samples that they are reading.
pub struct HostBatches {
    reader: Reader,
    /// None if the consumer is the transfer thread and not the user.
    timer: Option<ConsumerTimer>,
    inner: Arc<Inner>,
    stop: Arc<AtomicBool>,
}

enum Reader {
    /// Reads each batch when it is requested.
    Inline(BatchSampler),
    Threads(Workers),
    /// The threads could not be started.
    Failed(Option<Error>),
}

impl HostBatches {
    pub(crate) fn new(inner: Arc<Inner>, epochs: Range<u64>, start_batch: usize) -> HostBatches {
        let stop = Arc::new(AtomicBool::new(false));
        let sampler = BatchSampler::new(Arc::clone(&inner), epochs, start_batch, Arc::clone(&stop));
        let reader = match inner.setup.config.num_workers {
            _ if start_batch > 0 && !inner.setup.config.ordered => {
                Reader::Failed(Some(Error::usage(format!(
                    "cannot start at batch {start_batch}: with ordered(false) the earlier batches of the epoch are unknown"
                ))))
            }
            0 => Reader::Inline(sampler),
            count => match Workers::start(Arc::clone(&inner), sampler, count, Arc::clone(&stop)) {
                Ok(workers) => Reader::Threads(workers),
                Err(error) => Reader::Failed(Some(error)),
            },
        };
        let timer = Some(ConsumerTimer::new(&inner.setup.stats));
        HostBatches { reader, timer, inner, stop }
    }

    /// If set to true, reading ends early, with errors.
    pub(crate) fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Returns the timer to a consumer that passes the batches on.
    pub(crate) fn take_timer(&mut self) -> Option<ConsumerTimer> {
        self.timer.take()
    }
}

impl Reader {
    fn next(&mut self, inner: &Inner, stop: &AtomicBool) -> Option<Result<HostBatch>> {
        match self {
            Reader::Inline(sampler) => {
                Some(sampler.next()?.and_then(|(id, task)| inner.fill(id, task, stop)))
            }
            Reader::Threads(workers) => workers.next(),
            Reader::Failed(error) => error.take().map(Err),
        }
    }
}

impl Iterator for HostBatches {
    type Item = Result<HostBatch>;

    fn next(&mut self) -> Option<Result<HostBatch>> {
        let HostBatches { reader, timer, inner, stop } = self;
        let batch = match timer {
            Some(timer) => timer.take(
                || reader.next(inner, stop),
                |batch| batch.as_ref()?.as_ref().ok().map(HostBatch::index),
            ),
            None => reader.next(inner, stop),
        };
        batch.map(|batch| batch.map_err(of_loader))
    }
}
