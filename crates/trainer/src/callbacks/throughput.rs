//! [`Throughput`]: measures how fast training goes between two log points, and how much of the
//! devices' peak it uses. [`ThroughputMonitor`](super::ThroughputMonitor) and the progress bar use
//! it. It reads nothing from the device.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::hooks::{FitStart, Progress};
use crate::plan::NO_LIMIT;
use crate::position::BatchPosition;
use crate::{LogPoint, TrainStart};

/// The most steps that may be enqueued between a log point and the arrival of its values.
const MAX_MARKS: usize = 1 << 16;

/// Measures how fast training goes.
#[derive(Debug, Default)]
pub(super) struct Throughput {
    batch_size: usize,
    /// Tokens per batch, if known.
    tokens: Option<u64>,
    /// Optimizer steps of the whole training.
    total_steps: u64,
    /// Floating-point operations of a batch on each device, from each position of the training on.
    /// Empty if not known.
    pub(super) flops: Vec<(BatchPosition, f64)>,
    pub(super) peak: Option<f64>,
    /// Batches that were enqueued on the device.
    batches: u64,
    /// Operations of these batches.
    operations: f64,
    /// Time without training.
    paused: Duration,
    paused_since: Option<Instant>,
    /// The steps whose log points may still arrive. The step of the latest log point comes first.
    steps: VecDeque<StepMark>,
}

/// The counters when a step was enqueued on the device, which is a few steps behind at most.
#[derive(Debug)]
struct StepMark {
    global_step: u64,
    batches: u64,
    operations: f64,
    time: Instant,
    paused: Duration,
}

/// How fast training went between two log points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rates {
    pub(super) batches_per_second: f64,
    pub(super) samples_per_second: f64,
    pub(super) tokens_per_second: Option<f64>,
    /// Floating-point operations a second on each device.
    pub(super) flops_per_device: Option<f64>,
    /// Model FLOPs utilization: the share of the device's peak.
    pub(super) mfu: Option<f64>,
    /// Seconds per optimizer step.
    pub(super) step_s: f64,
}

impl Throughput {
    /// Resets all counters.
    pub(super) fn on_fit_start(&mut self, start: &FitStart) {
        let batch_size = start.batch_size;
        let tokens = start.tokens_per_batch;
        let total_steps = start.plan.total_steps;
        *self = Throughput { batch_size, tokens, total_steps, ..Throughput::default() };
    }

    pub(super) fn on_train_start(&mut self, start: &TrainStart<'_>) {
        (self.flops, self.peak) = (start.flops_of_phases().unwrap_or_default(), start.peak_flops());
    }

    pub(super) fn on_train_batch_start(&mut self) {
        if let Some(since) = self.paused_since.take() {
            self.paused += since.elapsed();
        }
    }

    pub(super) fn on_train_batch_end(&mut self, progress: &Progress) {
        self.batches += 1;
        // `progress` already counts this batch.
        let epoch = progress.epoch;
        let batch = progress.batch.saturating_sub(1);
        let position = BatchPosition { epoch, batch };
        let phase = self.flops.iter().rfind(|(start, _)| *start <= position);
        self.operations += phase.map_or(0.0, |(_, flops)| *flops);
        let global_step = progress.global_step;
        if self.steps.back().is_none_or(|last| last.global_step < global_step) {
            let batches = self.batches;
            let operations = self.operations;
            let paused = self.paused;
            self.steps.push_back(StepMark {
                global_step,
                batches,
                operations,
                time: Instant::now(),
                paused,
            });
        }
        if self.steps.len() > MAX_MARKS {
            self.steps.pop_front();
        }
    }

    /// Excludes the time from now until the next batch.
    pub(super) fn pause(&mut self) {
        self.paused_since.get_or_insert_with(Instant::now);
    }

    /// The rates since the previous log point.
    pub(super) fn rates(&mut self, point: &LogPoint) -> Option<Rates> {
        let first = self.steps.pop_front()?;
        if first.global_step >= point.global_step {
            self.steps.push_front(first);
            return None;
        }
        while self.steps.front().is_some_and(|step| step.global_step < point.global_step) {
            self.steps.pop_front();
        }
        let Some(step) = self.steps.front() else {
            self.steps.push_front(first);
            return None;
        };
        let time = step.time.duration_since(first.time).saturating_sub(step.paused - first.paused);
        let steps = step.global_step - first.global_step;
        let step_s = time.as_secs_f64() / steps as f64;
        Some(Rates {
            step_s,
            ..self.compute_rates(
                step.batches - first.batches,
                step.operations - first.operations,
                time,
            )
        })
    }

    /// The time that the remaining steps take at this rate, without validation. `None` at the end,
    /// and if only a time limit ends the training.
    pub(super) fn time_left(&self, rates: &Rates, global_step: u64) -> Option<Duration> {
        let steps = self.total_steps.saturating_sub(global_step);
        let is_known = steps > 0 && self.total_steps != NO_LIMIT;
        if is_known { Duration::try_from_secs_f64(steps as f64 * rates.step_s).ok() } else { None }
    }

    /// The rates for this number of batches and operations in this time.
    fn compute_rates(&self, batches: u64, operations: f64, time: Duration) -> Rates {
        let rate = batches as f64 / time.as_secs_f64();
        let flops = (!self.flops.is_empty()).then(|| operations / time.as_secs_f64());
        Rates {
            batches_per_second: rate,
            samples_per_second: rate * self.batch_size as f64,
            tokens_per_second: self.tokens.map(|tokens| rate * tokens as f64),
            flops_per_device: flops,
            mfu: flops.zip(self.peak).map(|(flops, peak)| flops / peak),
            step_s: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_counts_by_time() {
        let flops = vec![(BatchPosition::default(), 2e12)];
        let meter = Throughput {
            batch_size: 32,
            tokens: Some(64),
            flops,
            peak: Some(1e14),
            ..Throughput::default()
        };
        let measured = |meter: &Throughput| meter.compute_rates(50, 1e14, Duration::from_secs(10));
        let rates = measured(&meter);
        assert_eq!((rates.batches_per_second, rates.samples_per_second), (5.0, 160.0));
        assert_eq!(
            (rates.tokens_per_second, rates.flops_per_device, rates.mfu),
            (Some(320.0), Some(1e13), Some(0.1))
        );
        let unknown = measured(&Throughput { peak: None, tokens: None, ..meter });
        assert_eq!(
            (unknown.mfu, unknown.tokens_per_second, unknown.flops_per_device),
            (None, None, Some(1e13))
        );
    }

    #[test]
    fn rates_leave_out_time_without_training() {
        let mut meter = Throughput { batch_size: 1, total_steps: 10, ..Throughput::default() };
        let start = Instant::now();
        // Each step has two batches of one second. A validation of 10 s follows step 2.
        for step in 1..=4u64 {
            let paused = Duration::from_secs(if step > 2 { 10 } else { 0 });
            let time = start + Duration::from_secs(2 * step) + paused;
            meter.steps.push_back(StepMark {
                global_step: step,
                batches: 2 * step,
                operations: 0.0,
                time,
                paused,
            });
        }
        let mut rates = |global_step| {
            let rates = meter.rates(&LogPoint { global_step, ..LogPoint::default() })?;
            Some((
                rates.batches_per_second,
                meter.time_left(&rates, global_step).map_or(0, |left| left.as_secs()),
            ))
        };
        // Each step takes two seconds.
        let measured = [rates(1), rates(2), rates(4), rates(5)];
        assert_eq!(measured, [None, Some((1.0, 16)), Some((1.0, 12)), None]);
        let rates = Rates { step_s: 2.0, ..meter.compute_rates(1, 0.0, Duration::from_secs(1)) };
        assert_eq!(meter.time_left(&rates, 10), None, "the end");
        assert_eq!(
            Throughput { total_steps: NO_LIMIT, ..meter }.time_left(&rates, 4),
            None,
            "only time ends it"
        );
    }
}
