//! [`ThroughputMonitor`]: logs how fast training goes, and how much of the devices it uses.

use crate::callbacks::callback::Callback;
use crate::callbacks::throughput::Throughput;
use crate::console::note;
use crate::hooks::{EvaluationProgress, FitStart, Progress};
use crate::{Actions, LogPoint, TrainStart};

/// Logs how fast training goes: at each log point the mean since the last one.
///
/// | name | what |
/// | --- | --- |
/// | `throughput/batches_per_second` | batches that were trained on |
/// | `throughput/samples_per_second` | their rows, over all devices |
/// | `throughput/tokens_per_second` | elements of their field `input_ids`, if there is one and the loader has no buckets |
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
    throughput: Throughput,
    told: bool,
}

impl ThroughputMonitor {
    /// A monitor.
    pub fn new() -> ThroughputMonitor {
        ThroughputMonitor::default()
    }
}

impl Callback for ThroughputMonitor {
    fn name(&self) -> &'static str {
        "ThroughputMonitor"
    }

    fn on_fit_start(&mut self, start: &FitStart) {
        self.throughput.on_fit_start(start);
    }

    fn on_train_start(&mut self, start: &TrainStart<'_>) {
        self.throughput.on_train_start(start);
        let lacks = match (self.throughput.flops.is_empty(), self.throughput.peak) {
            (true, _) => "the batches have several shapes, or the compiler tells nothing of the step",
            (_, None) => "the peak of this kind of device is not known",
            _ => return,
        };
        if !std::mem::replace(&mut self.told, true) {
            note(&format!("note: ThroughputMonitor logs no mfu: {lacks}"));
        }
    }

    fn on_train_batch_start(&mut self, _: &Progress) {
        self.throughput.on_train_batch_start();
    }

    fn on_train_batch_end(&mut self, progress: &Progress, _: &mut Actions) {
        self.throughput.on_train_batch_end(progress);
    }

    fn on_validation_start(&mut self, _: &EvaluationProgress) {
        self.throughput.pause();
    }

    fn on_train_epoch_end(&mut self, _: &LogPoint, _: &mut Actions) {
        self.throughput.pause();
    }

    fn log_values(&mut self, point: &LogPoint) -> Vec<(String, f64)> {
        let Some(rates) = self.throughput.rates(point) else { return vec![] };
        let values = [
            ("batches_per_second", Some(rates.batches_per_second)),
            ("samples_per_second", Some(rates.samples_per_second)),
            ("tokens_per_second", rates.tokens_per_second),
            ("tflops_per_device", rates.flops_per_device.map(|flops| flops / 1e12)),
            ("mfu", rates.mfu),
        ];
        values.into_iter().filter_map(|(name, value)| Some((format!("throughput/{name}"), value?))).collect()
    }
}
