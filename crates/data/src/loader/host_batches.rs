//! The iterator over the batches of an epoch, or of several epochs without a pause between them.
//!
//! Not here: what runs behind it, which is either nothing (`plan`) or threads (`workers`).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::loader::data_loader::Core;
use crate::loader::plan::Plan;
use crate::loader::workers::Workers;
use crate::{Error, HostBatch, Result};
use crate::{loader::monitor::Meter, loader::monitor::index_of};

/// Batches in host memory, in order unless the loader is [not ordered](crate::DataLoaderBuilder::ordered). Made by [`DataLoader::epoch`](crate::DataLoader::epoch) and its relatives.
///
/// A batch that could not be read is an `Err` at its place, and the batches after it still come, unless a sampler fails or a
/// stream cannot go on: then the error is the last thing that comes. Dropping the iterator
/// ends the worker threads; it waits for the samples that are being read at that moment.
pub struct HostBatches {
    source: Source,
    /// None where the consumer is not the user, but the thread that moves the batches on.
    meter: Option<Meter>,
    core: Arc<Core>,
    stop: Arc<AtomicBool>,
}

enum Source {
    /// Batches are read when they are asked for.
    Inline(Plan),
    Threads(Workers),
    /// The threads could not be started.
    Failed(Option<Error>),
}

impl HostBatches {
    pub(crate) fn new(core: Arc<Core>, epochs: Range<u64>, start_batch: usize) -> HostBatches {
        let stop = Arc::new(AtomicBool::new(false));
        let plan = Plan::new(Arc::clone(&core), epochs, start_batch);
        let source = match core.config.num_workers {
            _ if start_batch > 0 && !core.config.ordered => Source::Failed(Some(Error::usage(format!(
                "cannot start at batch {start_batch}: with ordered(false) nobody knows which batches of the epoch came before"
            )))),
            0 => Source::Inline(plan),
            count => match Workers::start(Arc::clone(&core), plan, count, Arc::clone(&stop)) {
                Ok(workers) => Source::Threads(workers),
                Err(error) => Source::Failed(Some(error)),
            },
        };
        let meter = Some(Meter::new(&core.monitor));
        HostBatches { source, meter, core, stop }
    }

    /// Set to true, it makes the reading of batches end early, with errors.
    pub(crate) fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Lets somebody else measure how the batches are taken, who hands them on.
    pub(crate) fn take_meter(&mut self) -> Option<Meter> {
        self.meter.take()
    }
}

impl Source {
    fn next(&mut self, core: &Core, stop: &AtomicBool) -> Option<Result<HostBatch>> {
        match self {
            Source::Inline(plan) => {
                let work = plan.next(stop)?;
                Some(work.and_then(|work| core.fill(work, stop)))
            }
            Source::Threads(workers) => workers.next(),
            Source::Failed(error) => error.take().map(Err),
        }
    }
}

impl Iterator for HostBatches {
    type Item = Result<HostBatch>;

    fn next(&mut self) -> Option<Result<HostBatch>> {
        let HostBatches { source, meter, core, stop } = self;
        match meter {
            Some(meter) => meter.take(|| source.next(core, stop), index_of),
            None => source.next(core, stop),
        }
    }
}
