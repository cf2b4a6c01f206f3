//! [`ThroughputMonitor`]: logs how fast training goes, and how much of the devices' peak it uses.

use crate::callbacks::callback::Callback;
use crate::callbacks::throughput::Throughput;
use crate::console::note;
use crate::hooks::{EvaluationProgress, FitStart, Progress};
use crate::{Actions, LogPoint, TrainStart};

/// Logs how fast training goes: at each log point, the mean since the previous one.
///
/// | name | value |
/// | --- | --- |
/// | `throughput/batches_per_second` | training batches |
/// | `throughput/samples_per_second` | rows of these batches, over all devices |
/// | `throughput/tokens_per_second` | elements of the field `input_ids`, if the batches have it and the loader has no buckets |
/// | `throughput/tflops_per_device` | 10¹² floating-point operations per second on each device |
/// | `throughput/mfu` | model FLOPs utilization: the share of the device's peak in bf16, from 0 to 1 |
///
/// The compiler counts the operations ([`TrainStart::flops`]), for each phase if parameters are
/// frozen at first. The peak is the one that the vendor publishes. A CPU has none, so there is no
/// `mfu`; a note on standard error says so once. Validation and the time between two epochs are
/// left out. The callback reads nothing from the device.
///
/// ```
/// use fulmen_trainer::{Trainer, callbacks::ThroughputMonitor};
/// let builder = Trainer::builder().callback(ThroughputMonitor::new());
/// ```
#[derive(Debug, Default)]
pub struct ThroughputMonitor {
    throughput: Throughput,
    warned: bool,
}

impl ThroughputMonitor {
    /// Creates a monitor.
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
        let reason = match (self.throughput.flops.is_empty(), self.throughput.peak) {
            (true, _) => {
                "the batches have several shapes, or the compiler reports no cost of the step"
            }
            (_, None) => "the peak of this kind of device is not known",
            _ => return,
        };
        if !std::mem::replace(&mut self.warned, true) {
            note!("ThroughputMonitor logs no mfu: {reason}");
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
        let Some(rates) = self.throughput.rates(point) else { return Vec::new() };
        let values = [
            ("batches_per_second", Some(rates.batches_per_second)),
            ("samples_per_second", Some(rates.samples_per_second)),
            ("tokens_per_second", rates.tokens_per_second),
            ("tflops_per_device", rates.flops_per_device.map(|flops| flops / 1e12)),
            ("mfu", rates.mfu),
        ];
        values
            .into_iter()
            .filter_map(|(name, value)| Some((format!("throughput/{name}"), value?)))
            .collect()
    }
}
