//! What a loader notices of its own running: where its threads' time goes, how long the consumer waits, how full the
//! queues are.
//!
//! Not here: what is made of it (`report`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::Stage;
use crate::dataset::stage::StageTimes;
use crate::loader::on_error::BadList;

/// What all threads of a loader write down, and of those that are distributed from it.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) bad: BadList,
    counts: Mutex<Counts>,
}

/// Sums since the loader was built, or since they were set to zero.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Batches that were filled, and the samples in them.
    pub(crate) batches: u64,
    pub(crate) samples: u64,
    /// By [`Stage`]; what was in none of them is apart.
    pub(crate) stages: [Duration; Stage::ALL.len()],
    pub(crate) other: Duration,
    /// The part of all that in which records of a stream are fetched, which one thread does at a time.
    pub(crate) in_order: Duration,
    /// Workers that waited until the consumer took a batch.
    pub(crate) waited_for_space: Duration,
    /// Workers that waited until another one had fetched its records.
    pub(crate) waited_for_reading: Duration,
    pub(crate) steps: Steps,
    pub(crate) transfer: Transfer,
    pub(crate) host_queue: Depth,
    pub(crate) device_queue: Depth,
}

/// What the consumer of the batches did between one batch and the next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Steps {
    pub(crate) count: u64,
    pub(crate) waited: Duration,
    pub(crate) busy: Duration,
    /// From the start to the first batch, the latest time.
    pub(crate) first_batch: Option<Duration>,
}

/// What the thread did that moves batches to devices.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Transfer {
    pub(crate) batches: u64,
    pub(crate) busy: Duration,
    pub(crate) waited_for_batches: Duration,
    pub(crate) waited_for_space: Duration,
}

/// How many batches lay ready when somebody came for one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Depth {
    pub(crate) looks: u64,
    pub(crate) sum: u64,
    pub(crate) peak: usize,
}

impl Depth {
    pub(crate) fn look(&mut self, ready: usize) {
        self.looks += 1;
        self.sum += ready as u64;
        self.peak = self.peak.max(ready);
    }
}

impl Stats {
    pub(crate) fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn filled(&self, samples: usize, watch: &Stopwatch) {
        let mut counts = self.counts();
        let rest = counts.add(watch).1;
        counts.batches += 1;
        counts.samples += samples as u64;
        counts.other += rest;
    }

    /// Of a stream; what was in none of the stages was reading.
    pub(crate) fn fetched_records(&self, watch: &Stopwatch) {
        let mut counts = self.counts();
        let (total, rest) = counts.add(watch);
        counts.in_order += total;
        counts.stages[Stage::Read as usize] += rest;
    }

    /// A worker waited for the sampler, since when so much of the time went into fetching records.
    pub(crate) fn waited_for_sampler(&self, waited: Duration, fetched: Duration) {
        let mut counts = self.counts();
        // The one that has the sampler waits for space with it.
        let reading = fetched.min(waited);
        counts.waited_for_reading += reading;
        counts.waited_for_space += waited - reading;
    }
}

impl Counts {
    /// Adds the stages of some work; how long it took, and how much of that was in none of them.
    fn add(&mut self, watch: &Stopwatch) -> (Duration, Duration) {
        let (total, stages) = (watch.start.elapsed(), StageTimes::of_this_thread().since(&watch.stages));
        Stage::ALL.iter().for_each(|&stage| self.stages[stage as usize] += stages.of(stage));
        (total, total.saturating_sub(stages.sum()))
    }
}

/// Takes the time of some work on this thread.
pub(crate) struct Stopwatch {
    start: Instant,
    stages: StageTimes,
}

impl Stopwatch {
    pub(crate) fn start() -> Stopwatch {
        Stopwatch { start: Instant::now(), stages: StageTimes::of_this_thread() }
    }
}

/// Measures how a consumer takes batches: how long it waits for one, and how long it is away until it wants the next.
pub(crate) struct ConsumerTimer {
    stats: Arc<Stats>,
    started: Option<Instant>,
    /// When the consumer left with the batch before.
    left: Option<Instant>,
}

impl ConsumerTimer {
    pub(crate) fn new(stats: &Arc<Stats>) -> ConsumerTimer {
        ConsumerTimer { stats: Arc::clone(stats), started: Some(Instant::now()), left: None }
    }

    /// Lets the consumer wait. `index` tells a batch's number in its epoch.
    pub(crate) fn take<T>(&mut self, wait: impl FnOnce() -> T, index: impl FnOnce(&T) -> Option<usize>) -> T {
        let came = Instant::now();
        let batch = wait();
        let now = Instant::now();
        let steps = &mut self.stats.counts().steps;
        let index = index(&batch);
        if let (Some(started), Some(_)) = (self.started, index) {
            self.started = None;
            steps.first_batch = Some(now - started);
        }
        // Between two epochs a consumer validates and saves; that is no part of a step.
        if let (Some(left), Some(1..)) = (self.left, index) {
            steps.count += 1;
            steps.busy += came - left;
            steps.waited += now - came;
        }
        self.left = Some(now);
        batch
    }
}
