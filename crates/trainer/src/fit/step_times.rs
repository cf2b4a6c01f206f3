//! [`StepTimes`]: measures how long the steps of a fit take.

use std::collections::VecDeque;
use std::time::Duration;

/// The times of steps: the sum of all of them, and the latest ones.
#[derive(Debug, Default)]
pub(super) struct StepTimes {
    count: u64,
    total: Duration,
    /// The time in which the device waited for a batch.
    pub(super) waits: Duration,
    latest: VecDeque<Duration>,
    /// The distribution for the report. It includes steps before which the device waited.
    pub(super) distribution: fulmen_report::StepTimes,
    /// Whether the device waited before the next step.
    waited: bool,
}

impl StepTimes {
    /// The maximum number of times from which the median is computed.
    const MAX_LATEST: usize = 1 << 16;

    /// Counts a step. `time` is the time since the previous step was enqueued. It is the time of a
    /// step only if the device was `busy`, or waited for the batch; otherwise the host only filled
    /// its queue. Returns whether it is the time of a step.
    pub(super) fn push(&mut self, global_step: u64, time: Duration, busy: bool) -> bool {
        self.count += 1;
        self.total += time;
        let is_of_step = std::mem::take(&mut self.waited) || busy;
        if is_of_step {
            self.distribution.push(global_step, time.as_secs_f64());
        }
        if !busy {
            return is_of_step;
        }
        if self.latest.len() == Self::MAX_LATEST {
            self.latest.pop_front();
        }
        self.latest.push_back(time);
        is_of_step
    }

    /// Adds the time that the device needed to finish the steps in its queue, which are counted
    /// already.
    pub(super) fn finish(&mut self, time: Duration) {
        self.total += time;
    }

    /// Adds the time that the device waited for a batch. [`push`](Self::push) and
    /// [`finish`](Self::finish) count this time too.
    pub(super) fn add_wait(&mut self, time: Duration) {
        self.waited = true;
        self.waits += time;
    }

    pub(super) fn wait_share(&self) -> f64 {
        if self.total.is_zero() {
            0.0
        } else {
            (self.waits.as_secs_f64() / self.total.as_secs_f64()).min(1.0)
        }
    }

    pub(super) fn median(&self) -> Duration {
        let mut sorted: Vec<Duration> = self.latest.iter().copied().collect();
        sorted.sort_unstable();
        let mean = || {
            self.total
                .checked_div(u32::try_from(self.count).unwrap_or(u32::MAX))
                .unwrap_or_default()
        };
        sorted.get(sorted.len() / 2).copied().unwrap_or_else(mean)
    }

    pub(super) fn steps_per_second(&self) -> f64 {
        if self.total.is_zero() { 0.0 } else { self.count as f64 / self.total.as_secs_f64() }
    }
}
