//! [`SpikeGuard`] skips steps whose loss or gradients are far larger than in the steps before.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::callbacks::callback::Callback;
use crate::console::warning;
use crate::hooks::FitStart;
use crate::rules::skip_spikes::SkipSpikes;
use crate::rules::step_rule::StepRule;
use crate::{Actions, LogPoint};

/// Skips a step whose loss is not finite, or is too many standard deviations above the mean of the
/// steps before it. With [`gradients`](SpikeGuard::gradients) it checks the norm of the gradients
/// too. This check reads all gradients once more in each step. It catches gradients that are not
/// finite although the loss is finite.
///
/// A skipped step changes neither the parameters nor the optimizer's state, and schedules don't
/// count it. Running statistics of layers are still updated.
///
/// The device decides within the step, from the latest `window` values in the training state. This
/// needs no transfer and no further compilation, and a resumed run decides as the earlier run would
/// have. A spike enters the window as the largest value that would have passed. One spike therefore
/// doesn't hide the next, and a loss that stays larger is accepted after some steps. The standard
/// deviation is taken to be at least a thousandth of the mean. With `accumulate_grad_batches`, a
/// step is a group of batches. With several optimizers, the step of each is checked separately.
/// Gradients that overflow in f16 are handled by the loss scale and not counted here.
///
/// Each log point has the number of steps that the run skipped as `skipped_steps`, and the number
/// of the latest skipped step as `last_skipped_step`, counted from 1 (0 for none). A line on
/// standard error names that step.
///
/// ```
/// use fulmen_trainer::{Trainer, callbacks::SpikeGuard};
/// let builder = Trainer::builder().callback(SpikeGuard::new().deviations(6.0).window(128));
/// ```
#[derive(Debug)]
#[must_use]
pub struct SpikeGuard {
    deviations: f64,
    window: usize,
    warmup: Option<u64>,
    gradients: bool,
    /// The number of skipped steps that were reported, for each optimizer.
    reported: BTreeMap<String, f64>,
}

impl Default for SpikeGuard {
    fn default() -> SpikeGuard {
        SpikeGuard {
            deviations: 6.0,
            window: 128,
            warmup: None,
            gradients: false,
            reported: BTreeMap::new(),
        }
    }
}

impl SpikeGuard {
    /// Skips steps that are more than 6 standard deviations above the mean of the latest 128.
    pub fn new() -> SpikeGuard {
        SpikeGuard::default()
    }

    /// Sets the number of standard deviations above the mean from which a step is skipped; 6 by
    /// default.
    pub fn deviations(mut self, deviations: f64) -> SpikeGuard {
        self.deviations = deviations;
        self
    }

    /// Sets the number of earlier steps that a step is compared with; 128 by default.
    pub fn window(mut self, steps: usize) -> SpikeGuard {
        self.window = steps;
        self
    }

    /// Sets how many steps must pass before a step can be skipped; half a window by default. A step
    /// that is not finite is always skipped.
    pub fn warmup(mut self, steps: u64) -> SpikeGuard {
        self.warmup = Some(steps);
        self
    }

    /// Sets whether to check the norm of the gradients too; false by default.
    pub fn gradients(mut self, check: bool) -> SpikeGuard {
        self.gradients = check;
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

    fn config_error(&self) -> Option<String> {
        if !(self.deviations.is_finite() && self.deviations > 0.0) {
            return Some(format!(
                "deviations must be finite and above 0, but it is {}",
                self.deviations
            ));
        }
        if !(2..=MAX_WINDOW).contains(&self.window) {
            return Some(format!(
                "window must be from 2 to {MAX_WINDOW} steps, but it is {}",
                self.window
            ));
        }
        let warmup = self.warmup_steps();
        if !(2..=i32::MAX as u64).contains(&warmup) {
            return Some(format!(
                "warmup must be from 2 to {} steps, but it is {warmup}",
                i32::MAX
            ));
        }
        None
    }

    fn step_rule(&self) -> Option<Arc<dyn StepRule>> {
        let SpikeGuard { deviations, window, gradients, .. } = *self;
        let warmup = self.warmup_steps();
        Some(Arc::new(SkipSpikes { gradients, window, warmup, deviations }))
    }

    fn on_fit_start(&mut self, _: &FitStart) {
        self.reported.clear();
    }

    fn on_log(&mut self, point: &LogPoint, _: &mut Actions) {
        for (name, skipped) in &point.metrics {
            // With several optimizers, `-NAME` follows.
            let Some(suffix) = name.strip_prefix("skipped_steps") else { continue };
            let Some(last) = point.get(&format!("last_skipped_step{suffix}")) else { continue };
            let reported = self.reported.entry(suffix.to_owned()).or_insert(0.0);
            if skipped > reported {
                let optimizer =
                    suffix.strip_prefix('-').map_or(String::new(), |name| format!(" of `{name}`"));
                warning!(
                    "SpikeGuard skipped step {last}{optimizer}: its loss or gradients were too large or not finite; \
                     {} skipped since the last log point, {skipped} of the run's {} steps",
                    skipped - *reported,
                    point.global_step
                );
            }
            *reported = *skipped;
        }
    }

    fn state(&self) -> Option<Value> {
        Some(json!({ "told": self.reported }))
    }

    fn load_state(&mut self, state: &Value) {
        let reported = state["told"].as_object().into_iter().flatten();
        self.reported = reported
            .filter_map(|(name, skipped)| Some((name.clone(), skipped.as_f64()?)))
            .collect();
    }
}

/// The largest window.
const MAX_WINDOW: usize = 1 << 20;
