//! [`Throughput`]: how fast training goes between two log points, and how much of the devices it uses. It measures for
//! [`ThroughputMonitor`](super::ThroughputMonitor) and for the progress bar, and asks the device for nothing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::hooks::{FitStart, Progress};
use crate::plan::NO_LIMIT;
use crate::step_config::phases::Position;
use crate::{LogPoint, TrainStart};

/// Steps that may be handed out between a log point and the arrival of its values.
const MOST_KEPT: usize = 1 << 16;

/// Measures how fast training goes.
#[derive(Debug, Default)]
pub(super) struct Throughput {
    batch_size: usize,
    /// Tokens of a batch, where they are known.
    tokens: Option<u64>,
    /// Optimizer steps of the whole training.
    total_steps: u64,
    /// Operations of a batch on each device, and from where on in the training; none where they are not known.
    pub(super) flops: Vec<(Position, f64)>,
    pub(super) peak: Option<f64>,
    /// Batches that were handed to the device.
    batches: u64,
    /// Operations of these batches.
    operations: f64,
    /// Time without training.
    paused: Duration,
    paused_since: Option<Instant>,
    /// The steps whose log points may still come, the one of the latest log point first.
    steps: VecDeque<Stand>,
}

/// Where a step stood when it had been handed to the device, which is a few steps behind at most.
#[derive(Debug)]
struct Stand {
    global_step: u64,
    batches: u64,
    operations: f64,
    at: Instant,
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
    /// The share of the device's peak.
    pub(super) mfu: Option<f64>,
    /// The seconds of an optimizer step.
    pub(super) step_s: f64,
}

impl Throughput {
    /// Forgets an earlier fit.
    pub(super) fn on_fit_start(&mut self, start: &FitStart) {
        let (batch_size, tokens, total_steps) = (start.batch_size, start.tokens_per_batch, start.plan.total_steps);
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
        // `progress` counts this batch already.
        let at = (progress.epoch, progress.batch.saturating_sub(1));
        self.operations += self.flops.iter().rfind(|(begins, _)| *begins <= at).map_or(0.0, |(_, flops)| *flops);
        let global_step = progress.global_step;
        if self.steps.back().is_none_or(|last| last.global_step < global_step) {
            let (batches, operations, paused) = (self.batches, self.operations, self.paused);
            self.steps.push_back(Stand { global_step, batches, operations, at: Instant::now(), paused });
        }
        if self.steps.len() > MOST_KEPT {
            self.steps.pop_front();
        }
    }

    /// From now until the next batch, time does not count as training.
    pub(super) fn pause(&mut self) {
        self.paused_since.get_or_insert_with(Instant::now);
    }

    /// How fast training went from the log point before to this one.
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
        let time = step.at.duration_since(first.at).saturating_sub(step.paused - first.paused);
        let steps = step.global_step - first.global_step;
        let step_s = time.as_secs_f64() / steps as f64;
        Some(Rates { step_s, ..self.measured(step.batches - first.batches, step.operations - first.operations, time) })
    }

    /// How long the rest of the training takes at this rate, validation aside; none at the end, or where only time ends it.
    pub(super) fn left(&self, rates: &Rates, global_step: u64) -> Option<Duration> {
        let steps = self.total_steps.saturating_sub(global_step);
        let is_known = steps > 0 && self.total_steps != NO_LIMIT;
        if is_known { Duration::try_from_secs_f64(steps as f64 * rates.step_s).ok() } else { None }
    }

    /// The rates of batches and operations that took this time.
    fn measured(&self, batches: u64, operations: f64, time: Duration) -> Rates {
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
        let flops = vec![((0, 0), 2e12)];
        let meter = Throughput { batch_size: 32, tokens: Some(64), flops, peak: Some(1e14), ..Throughput::default() };
        let measured = |meter: &Throughput| meter.measured(50, 1e14, Duration::from_secs(10));
        let rates = measured(&meter);
        assert_eq!((rates.batches_per_second, rates.samples_per_second), (5.0, 160.0));
        assert_eq!((rates.tokens_per_second, rates.flops_per_device, rates.mfu), (Some(320.0), Some(1e13), Some(0.1)));
        let unknown = measured(&Throughput { peak: None, tokens: None, ..meter });
        assert_eq!((unknown.mfu, unknown.tokens_per_second, unknown.flops_per_device), (None, None, Some(1e13)));
    }

    #[test]
    fn a_stretch_of_steps_is_measured_without_what_is_no_training() {
        let mut meter = Throughput { batch_size: 1, total_steps: 10, ..Throughput::default() };
        let start = Instant::now();
        // Two batches a step, one second each; a validation of 10 s after step 2.
        for step in 1..=4u64 {
            let paused = Duration::from_secs(if step > 2 { 10 } else { 0 });
            let at = start + Duration::from_secs(2 * step) + paused;
            meter.steps.push_back(Stand { global_step: step, batches: 2 * step, operations: 0.0, at, paused });
        }
        let mut rates = |global_step| {
            let rates = meter.rates(&LogPoint { global_step, ..LogPoint::default() })?;
            Some((rates.batches_per_second, meter.left(&rates, global_step).map_or(0, |left| left.as_secs())))
        };
        // Steps of two seconds.
        let stretches = [rates(1), rates(2), rates(4), rates(5)];
        assert_eq!(stretches, [None, Some((1.0, 16)), Some((1.0, 12)), None]);
        let rates = Rates { step_s: 2.0, ..meter.measured(1, 0.0, Duration::from_secs(1)) };
        assert_eq!(meter.left(&rates, 10), None, "the end");
        assert_eq!(Throughput { total_steps: NO_LIMIT, ..meter }.left(&rates, 4), None, "time alone ends it");
    }
}
