//! The measurements of a loader: where its threads spend their time, how long the consumer waits,
//! how full the queues are.
//!
//! Out of scope: their interpretation (`report`).

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::Stage;
use crate::dataset::stage::StageTimes;
use crate::loader::{not_finite::NotFinite, on_error::BadList, report::LoaderReport};

/// The measurements of all threads of a loader and of the loaders that are distributed from it.
#[derive(Debug)]
pub(crate) struct Stats {
    pub(crate) bad: BadList,
    /// The first value of the first batch that is NaN or infinite.
    pub(crate) not_finite: OnceLock<NotFinite>,
    /// Sums since the loader was built, or since they were reset.
    report: Mutex<LoaderReport>,
}

impl Default for Stats {
    fn default() -> Stats {
        Stats {
            bad: BadList::default(),
            not_finite: OnceLock::new(),
            report: Mutex::new(LoaderReport::new()),
        }
    }
}

impl Stats {
    pub(crate) fn report(&self) -> MutexGuard<'_, LoaderReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn record_batch(&self, samples: usize, watch: &Stopwatch) {
        let mut report = self.report();
        let (_, rest) = watch.add_to(&mut report);
        report.writing += rest;
        report.batches += 1;
        report.samples += samples as u64;
    }

    /// Adds the time that reading a stream's records took. Time outside all stages counts as
    /// reading.
    pub(crate) fn fetched_records(&self, watch: &Stopwatch) {
        let mut report = self.report();
        let (total, rest) = watch.add_to(&mut report);
        report.in_order += total;
        report.stages[Stage::Read as usize].1 += rest;
    }

    /// Adds the time for which a worker waited for the sampler. In this time, other workers spent
    /// `fetched` on fetching records.
    pub(crate) fn waited_for_sampler(&self, waited: Duration, fetched: Duration) {
        let mut report = self.report();
        // The rest is time in which the worker that held the sampler waited for space.
        let reading = fetched.min(waited);
        report.waited_for_reading += reading;
        report.waited_for_space += waited - reading;
    }
}

/// Measures some work on this thread.
pub(crate) struct Stopwatch {
    start: Instant,
    stages: StageTimes,
}

impl Stopwatch {
    pub(crate) fn start() -> Stopwatch {
        Stopwatch { start: Instant::now(), stages: StageTimes::current_thread() }
    }

    /// Adds the time of each stage. Returns the total time, and the part outside all stages.
    fn add_to(&self, report: &mut LoaderReport) -> (Duration, Duration) {
        let total = self.start.elapsed();
        let stages = StageTimes::current_thread().since(&self.stages);
        report.stages.iter_mut().for_each(|(stage, spent)| *spent += stages.time(*stage));
        (total, total.saturating_sub(stages.sum()))
    }
}

/// Measures how a consumer takes batches: how long it waits for one, and how long it is busy before
/// the next.
pub(crate) struct ConsumerTimer {
    stats: Arc<Stats>,
    started: Option<Instant>,
    /// When the consumer got the previous batch.
    previous_batch: Option<Instant>,
}

impl ConsumerTimer {
    pub(crate) fn new(stats: &Arc<Stats>) -> ConsumerTimer {
        ConsumerTimer {
            stats: Arc::clone(stats),
            started: Some(Instant::now()),
            previous_batch: None,
        }
    }

    /// Runs `take` and counts how long the consumer waits. `index` is the batch's number in its
    /// epoch.
    pub(crate) fn take<T>(
        &mut self,
        wait: impl FnOnce() -> T,
        index: impl FnOnce(&T) -> Option<usize>,
    ) -> T {
        let start = Instant::now();
        let batch = wait();
        let now = Instant::now();
        let mut report = self.stats.report();
        let index = index(&batch);
        if let (Some(started), Some(_)) = (self.started, index) {
            self.started = None;
            report.first_batch = Some(now - started);
        }
        // Between two epochs, a consumer validates and saves; this time is not part of a step.
        if let (Some(previous_batch), Some(1..)) = (self.previous_batch, index) {
            report.steps += 1;
            report.busy += start - previous_batch;
            report.waiting += now - start;
        }
        self.previous_batch = Some(now);
        batch
    }
}
