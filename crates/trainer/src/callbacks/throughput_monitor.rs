//! [`ThroughputMonitor`]: how fast training goes, and how much of the devices it uses.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::callbacks::callback::Callback;
use crate::hooks::{EvaluationProgress, FitStart, Progress};
use crate::say::note;
use crate::setting::phases::Position;
use crate::{Actions, LogPoint, TrainStart};

/// Steps that may be handed out between a log point and the arrival of its values.
const MOST_KEPT: usize = 1 << 16;

/// Logs how fast training goes: at each log point the mean since the last one.
///
/// | name | what |
/// | --- | --- |
/// | `throughput/batches_per_second` | batches that were trained on |
/// | `throughput/samples_per_second` | their rows, over all devices |
/// | `throughput/tflops_per_device` | 10¹² floating-point operations a second on each device |
/// | `throughput/mfu` | the share of the device's peak in bf16, from 0 to 1 (model FLOPs utilization) |
///
/// Operations are counted by the compiler ([`TrainStart::flops`]), where parameters are frozen at first for each phase, and peaks are those that the maker publishes: on a CPU
/// there is none, so no `mfu`, which is said once. Validation and the turn of an epoch are left out. It asks the device for
/// nothing.
///
/// ```
/// use fulmen_trainer::{Trainer, callbacks::ThroughputMonitor};
/// let builder = Trainer::builder().callback(ThroughputMonitor::new());
/// ```
#[derive(Debug, Default)]
pub struct ThroughputMonitor {
    batch_size: usize,
    /// Operations of a batch on each device, and from where on in the training; none where they are not known.
    flops: Vec<(Position, f64)>,
    peak: Option<f64>,
    /// Batches that were handed to the device.
    batches: u64,
    /// Operations of these batches.
    operations: f64,
    /// Time that is no training.
    paused: Duration,
    paused_since: Option<Instant>,
    /// The steps whose log points may still come, the one of the latest log point first.
    steps: VecDeque<Stand>,
    told: bool,
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

impl ThroughputMonitor {
    /// A monitor.
    pub fn new() -> ThroughputMonitor {
        ThroughputMonitor::default()
    }

    /// What is logged where so many batches, with so many operations, took this time.
    fn values(&self, batches: u64, operations: f64, time: Duration) -> Vec<(String, f64)> {
        let rate = batches as f64 / time.as_secs_f64();
        let flops = (!self.flops.is_empty()).then(|| operations / time.as_secs_f64());
        let values = [
            ("batches_per_second", Some(rate)),
            ("samples_per_second", Some(rate * self.batch_size as f64)),
            ("tflops_per_device", flops.map(|flops| flops / 1e12)),
            ("mfu", flops.zip(self.peak).map(|(flops, peak)| flops / peak)),
        ];
        values.into_iter().filter_map(|(name, value)| Some((format!("throughput/{name}"), value?))).collect()
    }

    fn pause(&mut self) {
        self.paused_since.get_or_insert_with(Instant::now);
    }
}

impl Callback for ThroughputMonitor {
    fn name(&self) -> &'static str {
        "ThroughputMonitor"
    }

    fn on_fit_start(&mut self, start: &FitStart) {
        *self = ThroughputMonitor { batch_size: start.batch_size, told: self.told, ..ThroughputMonitor::default() };
    }

    fn on_train_start(&mut self, start: &TrainStart<'_>) {
        (self.flops, self.peak) = (start.flops_of_phases().unwrap_or_default(), start.peak_flops());
        let lacks = match (self.flops.is_empty(), self.peak) {
            (true, _) => "the batches have several shapes, or the compiler tells nothing of the step",
            (_, None) => "the peak of this kind of device is not known",
            _ => return,
        };
        if !std::mem::replace(&mut self.told, true) {
            note(&format!("note: ThroughputMonitor logs no mfu: {lacks}"));
        }
    }

    fn on_train_batch_start(&mut self, _: &Progress) {
        if let Some(since) = self.paused_since.take() {
            self.paused += since.elapsed();
        }
    }

    fn on_train_batch_end(&mut self, progress: &Progress, _: &mut Actions) {
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

    fn on_validation_start(&mut self, _: &EvaluationProgress) {
        self.pause();
    }

    fn on_train_epoch_end(&mut self, _: &LogPoint, _: &mut Actions) {
        self.pause();
    }

    fn log_values(&mut self, point: &LogPoint) -> Vec<(String, f64)> {
        let Some(first) = self.steps.pop_front() else { return vec![] };
        if first.global_step >= point.global_step {
            self.steps.push_front(first);
            return vec![];
        }
        while self.steps.front().is_some_and(|step| step.global_step < point.global_step) {
            self.steps.pop_front();
        }
        match self.steps.front() {
            Some(step) => {
                let time = step.at.duration_since(first.at).saturating_sub(step.paused - first.paused);
                self.values(step.batches - first.batches, step.operations - first.operations, time)
            }
            None => {
                self.steps.push_front(first);
                vec![]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_counts_by_time() {
        let flops = vec![((0, 0), 2e12)];
        let mut monitor = ThroughputMonitor { batch_size: 32, flops, peak: Some(1e14), ..ThroughputMonitor::new() };
        let value = |monitor: &ThroughputMonitor, name: &str| {
            let values = monitor.values(50, 1e14, Duration::from_secs(10));
            values.into_iter().find(|value| value.0 == format!("throughput/{name}")).map(|value| value.1)
        };
        let names = ["batches_per_second", "samples_per_second", "tflops_per_device", "mfu"];
        assert_eq!(names.map(|name| value(&monitor, name)), [Some(5.0), Some(160.0), Some(10.0), Some(0.1)]);
        monitor.peak = None;
        assert_eq!(value(&monitor, "mfu"), None);
    }

    #[test]
    fn a_stretch_of_steps_is_measured_without_what_is_no_training() {
        let mut monitor = ThroughputMonitor { batch_size: 1, ..ThroughputMonitor::new() };
        let start = Instant::now();
        // Two batches a step, one second each; a validation of 10 s after step 2.
        for step in 1..=4u64 {
            let paused = Duration::from_secs(if step > 2 { 10 } else { 0 });
            let at = start + Duration::from_secs(2 * step) + paused;
            monitor.steps.push_back(Stand { global_step: step, batches: 2 * step, operations: 0.0, at, paused });
        }
        let mut rate = |global_step| {
            let point = LogPoint { global_step, ..LogPoint::default() };
            monitor.log_values(&point).first().map(|value| value.1)
        };
        assert_eq!((rate(1), rate(2), rate(4), rate(5)), (None, Some(1.0), Some(1.0), None));
    }
}
