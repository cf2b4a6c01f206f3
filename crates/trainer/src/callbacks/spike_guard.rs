//! [`SpikeGuard`]: skips steps whose loss or gradients are out of line with the steps before.

use serde_json::{Value, json};

use crate::callback::{Callback, FitStart};
use crate::say::note;
use crate::{Actions, LogPoint, StepPart};

/// Skips a step whose loss, or the length of whose gradients, is too many standard deviations above the mean of the steps
/// before it, or not finite. A skipped step changes neither parameters nor what the optimizer remembers, and is none for
/// schedules; running statistics of layers do take it in.
///
/// The device decides within the step, by the latest `window` values in the training state: no transfer and no
/// compilation comes with it, and a resumed run decides as the run before would have. A spike enters the window as the
/// largest value that would have passed, so that one spike hides no other, and a loss that stays larger is let through in
/// time. A deviation below a thousandth of the mean counts as that. With `accumulate_grad_batches` a step is a group of
/// batches. Gradients that overflow in f16 are the loss scale's affair and not counted here.
///
/// Each log point has the number of skipped steps of the run as `skipped_steps`, and that of the latest one as
/// `last_skipped_step`, counted from 1 (0 for none); a line on standard error names it.
///
/// ```
/// use fulmen_trainer::{Trainer, callbacks::SpikeGuard};
/// let builder = Trainer::builder().callback(SpikeGuard::new().deviations(6.0).window(128));
/// ```
#[derive(Debug)]
pub struct SpikeGuard {
    deviations: f64,
    window: usize,
    warmup: Option<u64>,
    told: u64,
}

impl Default for SpikeGuard {
    fn default() -> SpikeGuard {
        SpikeGuard { deviations: 6.0, window: 128, warmup: None, told: 0 }
    }
}

impl SpikeGuard {
    /// Skips what is more than 6 deviations above the mean of the latest 128 steps.
    pub fn new() -> SpikeGuard {
        SpikeGuard::default()
    }

    /// How many standard deviations above the mean are too many.
    pub fn deviations(mut self, deviations: f64) -> SpikeGuard {
        self.deviations = deviations;
        self
    }

    /// How many steps a step is compared with.
    pub fn window(mut self, steps: usize) -> SpikeGuard {
        self.window = steps;
        self
    }

    /// How many steps are seen before the first can be skipped; half a window by default. One that is not finite is
    /// always skipped.
    pub fn warmup(mut self, steps: u64) -> SpikeGuard {
        self.warmup = Some(steps);
        self
    }

    fn warmup_steps(&self) -> u64 {
        self.warmup.unwrap_or((self.window as u64 / 2).max(2))
    }
}

impl Callback for SpikeGuard {
    fn name(&self) -> &'static str {
        "SpikeGuard"
    }

    fn refusal(&self) -> Option<String> {
        if !(self.deviations.is_finite() && self.deviations > 0.0) {
            return Some(format!("deviations must be finite and above 0, it is {}", self.deviations));
        }
        if !(2..=MOST_STEPS).contains(&self.window) {
            return Some(format!("window must be from 2 to {MOST_STEPS} steps, it is {}", self.window));
        }
        let warmup = self.warmup_steps();
        if !(2..=i32::MAX as u64).contains(&warmup) {
            return Some(format!("warmup must be from 2 to {} steps, it is {warmup}", i32::MAX));
        }
        None
    }

    fn step_part(&self) -> Option<StepPart> {
        let SpikeGuard { deviations, window, .. } = *self;
        Some(StepPart::SpikeGuard { window, warmup: self.warmup_steps(), deviations })
    }

    fn on_fit_start(&mut self, _: &FitStart) {
        self.told = 0;
    }

    fn on_log(&mut self, point: &LogPoint, _: &mut Actions) {
        let count = |name| point.get(name).map_or(0, |value| value as u64);
        let (skipped, last) = (count("skipped_steps"), count("last_skipped_step"));
        if skipped > self.told {
            note(&format!(
                "warning: SpikeGuard skipped step {last}, whose loss or gradients were out of line or not finite: {} since \
                 the last log point, {skipped} of the run's {} steps",
                skipped - self.told,
                point.global_step
            ));
            self.told = skipped;
        }
    }

    fn state(&self) -> Option<Value> {
        Some(json!({ "told": self.told }))
    }

    fn load_state(&mut self, state: &Value) {
        self.told = state["told"].as_u64().unwrap_or(0);
    }
}

/// The largest window.
const MOST_STEPS: usize = 1 << 20;
