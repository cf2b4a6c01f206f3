//! [`StepLogs`]: the logged values of a [`TrainStep`](super::TrainStep), on their way to the host.
//! This module also warns about reads after every step, and checks that losses are finite.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fulmen_data::DataLoader;
use fulmen_durable::messages::duration;
use fulmen_tensor::{DeviceArray, Literal, PendingLiterals, Runtime};

use crate::console::warning;
use crate::logs::{LogLayout, LogRange, Sums};
use crate::position::StepPosition;
use crate::process_group::{self, ProcessGroup};
use crate::{LogPoint, Result, error};

/// The number of consecutive reads, each after one step, that triggers a warning.
const WARN_AFTER: u32 = 20;

/// Logged values on their way to the host.
#[must_use]
pub struct StepLogs {
    /// `None` if there was no step since the last read.
    values: Option<PendingLiterals>,
    /// Kept until the values have arrived.
    _arrays: Vec<DeviceArray>,
    layout: LogLayout,
    /// The position of the latest values.
    position: StepPosition,
    process_group: Option<Arc<ProcessGroup>>,
    shared: Arc<SharedReads>,
}

impl StepLogs {
    /// Whether the values have arrived, so that [`wait`](StepLogs::wait) returns immediately.
    pub fn is_ready(&self) -> bool {
        self.values.as_ref().is_none_or(PendingLiterals::is_ready)
    }

    /// Waits for the values over the steps since the last read. Each has the name that it was
    /// logged under. The loss is `train_loss`, unless `training_step` logs it itself. Without a
    /// step since the last read, there are no values.
    ///
    /// # Errors
    /// An error of the device; an index that is out of range, such as a label outside the classes;
    /// with `detect_nan` or `detect_anomaly`, a loss that was not finite.
    pub fn wait(self) -> Result<LogPoint> {
        let StepLogs { values, layout, position, process_group, shared, _arrays } = self;
        let Some(values) = values else {
            let StepPosition { epoch, global_step } = position;
            return Ok(LogPoint { epoch, global_step, ..LogPoint::default() });
        };
        let start = Instant::now();
        let literals = process_group::wait_for_literals(process_group.as_ref(), values)?;
        shared.waited.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        let (sums, media) = literals
            .split_first()
            .ok_or_else(|| error::data("the device returned no logged values"))?;
        let sums = layout.read(sums)?;
        shared.check_finite(&sums, None)?;
        training_point(&layout, &sums, media, LogRange::Pass(""), position)
    }
}

/// The values and media logged over a range of training steps.
pub(crate) fn training_point(
    layout: &LogLayout,
    sums: &Sums,
    media: &[Literal],
    range: LogRange<'_>,
    position: StepPosition,
) -> Result<LogPoint> {
    let mut point = layout.point(sums, range, position);
    point.metrics.extend(layout.optimizer_values(sums));
    point.media = layout.media(media)?;
    Ok(point)
}

/// Reads the logged values of a training step.
pub(crate) struct LogReads {
    shared: Arc<SharedReads>,
    /// Steps since the last read.
    steps: u32,
    /// The number of consecutive reads after one step each, and the time of the first.
    consecutive_reads: u32,
    first_read: Instant,
}

struct SharedReads {
    /// The name of the logged loss.
    loss: String,
    /// The names of all losses, for messages.
    losses: String,
    detect_nan: bool,
    /// The training loader, which knows whether its first batch has a NaN.
    train: DataLoader,
    warned: AtomicBool,
    /// Nanoseconds spent waiting for values since the first of the consecutive reads.
    waited: AtomicU64,
}

impl LogReads {
    pub(super) fn new(
        loss: String,
        losses: String,
        detect_nan: bool,
        train: DataLoader,
    ) -> LogReads {
        let shared = SharedReads {
            loss,
            losses,
            detect_nan,
            train,
            warned: AtomicBool::new(false),
            waited: AtomicU64::new(0),
        };
        LogReads {
            shared: Arc::new(shared),
            steps: 0,
            consecutive_reads: 0,
            first_read: Instant::now(),
        }
    }

    /// The name of the logged loss.
    pub(crate) fn loss(&self) -> &str {
        &self.shared.loss
    }

    /// Checks that the loss was finite. The error names the last checkpoint.
    pub(crate) fn check_finite(&self, sums: &Sums, last_checkpoint: Option<&Path>) -> Result<()> {
        self.shared.check_finite(sums, last_checkpoint)
    }

    /// Counts a step queued on the device.
    pub(super) fn count_step(&mut self) {
        self.steps += 1;
    }

    /// Starts to read the sums, if any, and the media of the latest step.
    pub(super) fn start(
        &mut self,
        runtime: &Runtime,
        process_group: Option<&Arc<ProcessGroup>>,
        arrays: Vec<DeviceArray>,
        layout: &LogLayout,
        position: StepPosition,
    ) -> Result<StepLogs> {
        if let Some(text) = self.count() {
            warning!("{text}");
        }
        let values = match &arrays[..] {
            [] => None,
            arrays => Some(runtime.read(&arrays.iter().collect::<Vec<_>>())?),
        };
        let layout = layout.clone();
        let process_group = process_group.cloned();
        let shared = Arc::clone(&self.shared);
        Ok(StepLogs { values, _arrays: arrays, layout, position, process_group, shared })
    }

    /// Counts a read. Returns a warning once, when there are too many consecutive reads.
    fn count(&mut self) -> Option<String> {
        let steps = std::mem::take(&mut self.steps);
        if self.consecutive_reads > WARN_AFTER || steps == 0 {
            return None;
        }
        if steps > 1 || self.consecutive_reads == 0 {
            (self.consecutive_reads, self.first_read) = (1, Instant::now());
            self.shared.waited.store(0, Ordering::Relaxed);
            return None;
        }
        self.consecutive_reads += 1;
        let waited = Duration::from_nanos(self.shared.waited.load(Ordering::Relaxed));
        (self.consecutive_reads > WARN_AFTER).then(|| warning(waited, self.first_read.elapsed()))
    }
}

/// The warning about reads after every step. `waited` is the part of the time `all` spent waiting.
fn warning(waited: Duration, all: Duration) -> String {
    let each = |time: Duration| duration(time.as_secs_f64() / f64::from(WARN_AFTER));
    format!(
        "the values of a step were read after each of the last {WARN_AFTER} steps: {} of the {} of a \
         step were spent waiting for them, while the device got no new step. Read every n steps instead: the values are \
         means over all steps since the last read",
        each(waited),
        each(all)
    )
}

impl SharedReads {
    fn check_finite(&self, sums: &Sums, last_checkpoint: Option<&Path>) -> Result<()> {
        if let Some(fault) = &sums.index_fault {
            return Err(error::index_out_of_range(
                fault.step,
                &fault.message("step"),
                last_checkpoint,
            ));
        }
        let Some(step) = sums.bad_step else { return Ok(()) };
        let in_data = (step == 1).then(|| self.train.not_finite_in_first_batch()).flatten();
        if let Some(anomaly) = &sums.anomaly {
            return Err(error::anomaly(step, anomaly, last_checkpoint, in_data.as_deref()));
        }
        let loss = format!("the training loss {}", self.losses);
        if self.detect_nan {
            return Err(error::not_finite(step, &loss, last_checkpoint, in_data.as_deref()));
        }
        if !self.warned.swap(true, Ordering::Relaxed) {
            let in_data = in_data.map_or(String::new(), |in_data| format!(": {in_data}"));
            warning!(
                "{loss} became NaN or infinite at step {step}{in_data}; set detect_nan to stop at the first such step"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use fulmen_data::TensorDataset;

    use super::*;

    #[test]
    fn reads_after_every_step_cause_one_warning_with_their_cost() {
        let data = TensorDataset::builder().array("x", [1], [0.5f32]).build().unwrap();
        let train = DataLoader::builder(data).build().unwrap();
        let mut reads = LogReads::new("train_loss".into(), "`train_loss`".into(), false, train);
        let mut warnings = |steps: u32, times: u32| -> Vec<String> {
            let read = |_| {
                (0..steps).for_each(|_| reads.count_step());
                reads.shared.waited.fetch_add(3_000_000, Ordering::Relaxed);
                reads.count()
            };
            (0..times).filter_map(read).collect()
        };
        // Occasional reads, and loops that read twice, cause no warning.
        assert!(warnings(2, 100).is_empty());
        assert!(
            warnings(1, WARN_AFTER - 1).is_empty()
                && warnings(0, 5).is_empty()
                && warnings(2, 1).is_empty()
        );
        let lines = warnings(1, 100);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].contains("after each of the last 20 steps: 3.00 ms of the "),
            "{}",
            lines[0]
        );
    }
}
