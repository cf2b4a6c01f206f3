//! [`SpikeGuard`]: skips steps whose loss, or gradients, are out of line with the steps before.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::callbacks::callback::Callback;
use crate::console::note;
use crate::hooks::FitStart;
use crate::{Actions, LogPoint, StepPart};

/// Skips a step whose loss is too many standard deviations above the mean of the steps before it, or not finite. With
/// [`gradients`](SpikeGuard::gradients) the length of the gradients is judged too, which costs a pass over them in each
/// step, and catches gradients that are not finite where the loss is. A skipped step changes neither parameters nor what the optimizer remembers, and is none for
/// schedules; running statistics of layers do take it in.
///
/// The device decides within the step, by the latest `window` values in the training state: no transfer and no
/// compilation comes with it, and a resumed run decides as the run before would have. A spike enters the window as the
/// largest value that would have passed, so that one spike hides no other, and a loss that stays larger is let through in
/// time. A deviation below a thousandth of the mean counts as that. With `accumulate_grad_batches` a step is a group of
/// batches. Of several optimizers each step is judged by itself. Gradients that overflow in f16 are the loss scale's affair
/// and not counted here.
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
    gradients: bool,
    /// How many skipped steps were told, for each optimizer.
    told: BTreeMap<String, f64>,
}

impl Default for SpikeGuard {
    fn default() -> SpikeGuard {
        SpikeGuard { deviations: 6.0, window: 128, warmup: None, gradients: false, told: BTreeMap::new() }
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

    /// Whether a step is judged by the length of its gradients too; no by default.
    pub fn gradients(mut self, judge: bool) -> SpikeGuard {
        self.gradients = judge;
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
        let SpikeGuard { deviations, window, gradients, .. } = *self;
        Some(StepPart::SpikeGuard { gradients, window, warmup: self.warmup_steps(), deviations })
    }

    fn on_fit_start(&mut self, _: &FitStart) {
        self.told.clear();
    }

    fn on_log(&mut self, point: &LogPoint, _: &mut Actions) {
        for (name, skipped) in &point.metrics {
            // Of several optimizers each has its own.
            let Some(of) = name.strip_prefix("skipped_steps") else { continue };
            let Some(last) = point.get(&format!("last_skipped_step{of}")) else { continue };
            let told = self.told.entry(of.to_owned()).or_insert(0.0);
            if skipped > told {
                let whose = of.strip_prefix('-').map_or(String::new(), |optimizer| format!(" of `{optimizer}`"));
                note(&format!(
                    "warning: SpikeGuard skipped step {last}{whose}, whose loss or gradients were out of line or not finite: \
                     {} since the last log point, {skipped} of the run's {} steps",
                    skipped - *told,
                    point.global_step
                ));
            }
            *told = *skipped;
        }
    }

    fn state(&self) -> Option<Value> {
        Some(json!({ "told": self.told }))
    }

    fn load_state(&mut self, state: &Value) {
        let told = state["told"].as_object().into_iter().flatten();
        self.told = told.filter_map(|(of, skipped)| Some((of.clone(), skipped.as_f64()?))).collect();
    }
}

/// The largest window.
const MOST_STEPS: usize = 1 << 20;
