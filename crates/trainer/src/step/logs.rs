//! [`StepLogs`]: what the steps of a [`TrainStep`](super::TrainStep) have logged, on its way to the host. Here is also known
//! what it costs to read after every step, and what becomes of a loss that is not finite.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fulmen_tensor::{DeviceArray, Literal, PendingLiterals, Runtime};

use crate::console::note;
use crate::logs::{LogLayout, Over, Sums};
use crate::process_group::{self, ProcessGroup};
use crate::{Error, LogPoint, Result};

/// After this number of reads in a row, each after one step, a note tells of them.
const TOLD_AT: u32 = 20;

/// What was logged, on its way to the host.
#[must_use]
pub struct StepLogs {
    /// Nothing if there was no step since the last read.
    values: Option<PendingLiterals>,
    /// Kept until the values have arrived.
    _arrays: Vec<DeviceArray>,
    layout: LogLayout,
    /// The epoch and the step of the latest of the values.
    at: (u64, u64),
    hosts: Option<Arc<ProcessGroup>>,
    shared: Arc<Shared>,
}

impl StepLogs {
    /// Whether the values have arrived, so that [`wait`](StepLogs::wait) returns at once.
    pub fn is_ready(&self) -> bool {
        self.values.as_ref().is_none_or(PendingLiterals::is_ready)
    }

    /// Waits for the values over the steps, by the names that they were logged under; the loss is `train_loss`, unless
    /// `training_step` logs it itself. Without a step since the last read there are none.
    ///
    /// # Errors
    /// What the device reports; with `detect_nan` or `detect_anomaly`, a loss that was not finite.
    pub fn wait(self) -> Result<LogPoint> {
        let StepLogs { values, layout, at: (epoch, global_step), hosts, shared, _arrays } = self;
        let Some(values) = values else {
            return Ok(LogPoint { epoch, global_step, ..LogPoint::default() });
        };
        let asked = Instant::now();
        let literals = process_group::arrive(hosts.as_ref(), values)?;
        shared.waited.fetch_add(asked.elapsed().as_nanos() as u64, Ordering::Relaxed);
        let (sums, media) = literals.split_first().ok_or_else(|| Error::data("the device gave no values"))?;
        let sums = layout.read(sums)?;
        shared.check_finite(&sums, None)?;
        training_point(&layout, &sums, media, Over::Pass(""), (epoch, global_step))
    }
}

/// What a stretch of training steps has logged, with what was read of the pictures and their like.
pub(crate) fn training_point(
    layout: &LogLayout,
    sums: &Sums,
    media: &[Literal],
    over: Over<'_>,
    at: (u64, u64),
) -> Result<LogPoint> {
    let mut point = layout.point(sums, over, at);
    point.metrics.extend(layout.of_optimizers(sums));
    point.media = layout.media(media)?;
    Ok(point)
}

/// How a training step is read.
pub(crate) struct Reads {
    shared: Arc<Shared>,
    /// Steps since the last read.
    steps: u32,
    /// Reads in a row that each came after one step, and when the first of them was.
    in_a_row: u32,
    since: Instant,
}

struct Shared {
    /// The name under which the loss is logged.
    loss: String,
    /// The names of all losses, for messages.
    losses: String,
    detect_nan: bool,
    warned: AtomicBool,
    /// Nanoseconds that were waited for values since the first read in the row.
    waited: AtomicU64,
}

impl Reads {
    pub(super) fn new(loss: String, losses: String, detect_nan: bool) -> Reads {
        let shared = Shared { loss, losses, detect_nan, warned: AtomicBool::new(false), waited: AtomicU64::new(0) };
        Reads { shared: Arc::new(shared), steps: 0, in_a_row: 0, since: Instant::now() }
    }

    /// The name under which the loss is logged.
    pub(crate) fn loss(&self) -> &str {
        &self.shared.loss
    }

    /// Looks whether the loss was finite; an error names the last checkpoint.
    pub(crate) fn check_finite(&self, sums: &Sums, last_checkpoint: Option<&Path>) -> Result<()> {
        self.shared.check_finite(sums, last_checkpoint)
    }

    /// A step was handed to the device.
    pub(super) fn stepped(&mut self) {
        self.steps += 1;
    }

    /// Starts to read sums, if there are some, and what the latest step gave besides.
    pub(super) fn start(
        &mut self,
        runtime: &Runtime,
        hosts: Option<&Arc<ProcessGroup>>,
        arrays: Vec<DeviceArray>,
        layout: &LogLayout,
        at: (u64, u64),
    ) -> Result<StepLogs> {
        if let Some(costs) = self.count() {
            note(&costs);
        }
        let values = match &arrays[..] {
            [] => None,
            arrays => Some(runtime.read(&arrays.iter().collect::<Vec<_>>())?),
        };
        let (layout, hosts, shared) = (layout.clone(), hosts.cloned(), Arc::clone(&self.shared));
        Ok(StepLogs { values, _arrays: arrays, layout, at, hosts, shared })
    }

    /// Counts a read. Gives a line about the last one of a row that is too long, once.
    fn count(&mut self) -> Option<String> {
        let steps = std::mem::take(&mut self.steps);
        if self.in_a_row > TOLD_AT || steps == 0 {
            return None;
        }
        if steps > 1 || self.in_a_row == 0 {
            (self.in_a_row, self.since) = (1, Instant::now());
            self.shared.waited.store(0, Ordering::Relaxed);
            return None;
        }
        self.in_a_row += 1;
        let waited = Duration::from_nanos(self.shared.waited.load(Ordering::Relaxed));
        (self.in_a_row > TOLD_AT).then(|| costs(waited, self.since.elapsed()))
    }
}

/// What it costs to read after every step, where so much of the time of the steps was waited.
fn costs(waited: Duration, all: Duration) -> String {
    let each = |time: Duration| time.as_secs_f64() * 1e3 / f64::from(TOLD_AT);
    format!(
        "warning: the values of a step were read after each of the last {TOLD_AT} steps: {:.3} ms of the {:.3} ms of a step \
         were spent waiting for them, when the device gets no new step. Read every n steps: the values are means over the \
         steps since the last read, so that none is lost",
        each(waited),
        each(all)
    )
}

impl Shared {
    fn check_finite(&self, sums: &Sums, last_checkpoint: Option<&Path>) -> Result<()> {
        let Some(step) = sums.bad_step else { return Ok(()) };
        if let Some(anomaly) = &sums.anomaly {
            return Err(Error::anomaly(step, anomaly, last_checkpoint));
        }
        let loss = format!("the training loss {}", self.losses);
        if self.detect_nan {
            return Err(Error::not_finite(step, &loss, last_checkpoint));
        }
        if !self.warned.swap(true, Ordering::Relaxed) {
            note(&format!("warning: {loss} became NaN or infinite at step {step}; set detect_nan to stop there"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_after_every_step_are_told_of_once_with_what_they_cost() {
        let mut reads = Reads::new("train_loss".into(), "`train_loss`".into(), false);
        let mut told = |steps: u32, times: u32| -> Vec<String> {
            let read = |_| {
                (0..steps).for_each(|_| reads.stepped());
                reads.shared.waited.fetch_add(3_000_000, Ordering::Relaxed);
                reads.count()
            };
            (0..times).filter_map(read).collect()
        };
        // One that comes now and then, and a loop that looks twice, are not told of.
        assert!(told(2, 100).is_empty());
        assert!(told(1, TOLD_AT - 1).is_empty() && told(0, 5).is_empty() && told(2, 1).is_empty());
        let lines = told(1, 100);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("after each of the last 20 steps: 3.000 ms of the "), "{}", lines[0]);
    }
}
