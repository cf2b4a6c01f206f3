//! [`BackboneFinetuning`]: freezes parameters at first, and unfreezes them at an epoch or step.

use std::sync::Arc;

use crate::TrainDuration;
use crate::callbacks::callback::Callback;
use crate::console::inform;
use crate::hooks::{FitStart, Progress};
use crate::rules::freeze::Freeze;
use crate::rules::step_rule::StepRule;

/// Freezes the parameters that match a pattern at first, and trains them from an epoch or step on.
/// In a pattern, `*` matches any text, including dots, and `?` matches one character. The pattern
/// must match the whole dotted name.
///
/// Each phase has its own program. All are compiled before the first step, except those of phases
/// that a resumed run has finished. The program of a phase neither computes gradients for frozen
/// parameters nor writes them. Schedules, counters, moments and the order of the data continue
/// across the change. The device holds the optimizer's state of frozen parameters from the
/// beginning, as zeros, so this state needs memory in all phases. Bias corrections count the steps
/// since the parameter was unfrozen, as in PyTorch.
///
/// Unfrozen parameters begin with a tenth of the optimizer's learning rate. This ratio doubles
/// after each epoch until it is 1. Lightning applies the ratio to the learning rate at the time of
/// unfreezing; Fulmen applies it to the schedule's current rate.
///
/// Use several of these callbacks to unfreeze a model gradually. If two match a parameter, the
/// later one applies. Parameters that the optimizer or
/// [`set_requires_grad`](fulmen_nn::Parameter::set_requires_grad) freezes stay frozen.
///
/// A line on standard error announces each phase: `Epoch 6: training backbone.* too`.
///
/// ```
/// use fulmen_trainer::{Trainer, callbacks::BackboneFinetuning};
/// let builder = Trainer::builder()
///     .callback(BackboneFinetuning::new("backbone.*", "5ep".parse()?))
///     .callback(BackboneFinetuning::new("backbone.layer4.*", "2ep".parse()?).initial_ratio(1.0));
/// # Ok::<(), fulmen_trainer::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct BackboneFinetuning {
    rule: Freeze,
    /// Whether the phase was announced, or needs no announcement.
    announced: bool,
}

impl BackboneFinetuning {
    /// Trains the parameters that match the pattern after this number of epochs or optimizer steps.
    pub fn new(pattern: impl Into<String>, unfreeze_at: TrainDuration) -> BackboneFinetuning {
        let rule = Freeze {
            pattern: pattern.into(),
            unfreeze_at,
            initial_ratio: 0.1,
            multiplier: 2.0,
            should_align: true,
            train_bn: true,
        };
        BackboneFinetuning { rule, announced: false }
    }

    /// Sets the first learning rate of unfrozen parameters, as a ratio to the optimizer's; 0.1 by
    /// default.
    pub fn initial_ratio(mut self, ratio: f64) -> BackboneFinetuning {
        self.rule.initial_ratio = ratio;
        self
    }

    /// Sets the factor by which the ratio grows after each epoch; 2 by default.
    pub fn multiplier(mut self, multiplier: f64) -> BackboneFinetuning {
        self.rule.multiplier = multiplier;
        self
    }

    /// Sets whether the ratio is limited to 1; true by default.
    pub fn should_align(mut self, align: bool) -> BackboneFinetuning {
        self.rule.should_align = align;
        self
    }

    /// Sets whether batch norm is trained from the beginning; true by default. If it isn't, its
    /// parameters are frozen too. It then computes with its running statistics, which don't change.
    pub fn train_bn(mut self, train: bool) -> BackboneFinetuning {
        self.rule.train_bn = train;
        self
    }

    /// The announcement before a batch, if these parameters are trained from this batch on.
    fn announcement(&mut self, progress: &Progress) -> Option<String> {
        let Progress { epoch, global_step, .. } = *progress;
        let (begun, when) = match self.rule.unfreeze_at {
            TrainDuration::Epochs(first) => (epoch >= first, format!("Epoch {}", epoch + 1)),
            TrainDuration::Steps(first) => {
                (global_step >= first, format!("Step {}", global_step + 1))
            }
            _ => return None,
        };
        let is_new = begun && !std::mem::replace(&mut self.announced, true);
        is_new.then(|| format!("{when}: training {} too", self.rule.pattern))
    }
}

impl Callback for BackboneFinetuning {
    fn name(&self) -> &'static str {
        "BackboneFinetuning"
    }

    fn config_error(&self) -> Option<String> {
        let Freeze { pattern, unfreeze_at, initial_ratio, multiplier, .. } = &self.rule;
        if !matches!(unfreeze_at, TrainDuration::Epochs(_) | TrainDuration::Steps(_)) {
            return Some(format!(
                "`{pattern}` is unfrozen after epochs (2ep) or steps (500ba), not after {unfreeze_at}"
            ));
        }
        let invalid = |value: &f64| !(value.is_finite() && *value > 0.0);
        let named = [("initial_ratio", initial_ratio), ("multiplier", multiplier)];
        let (name, value) = named.into_iter().find(|(_, value)| invalid(value))?;
        Some(format!("{name} must be finite and above 0, but it is {value}"))
    }

    fn step_rule(&self) -> Option<Arc<dyn StepRule>> {
        Some(Arc::new(self.rule.clone()))
    }

    fn on_fit_start(&mut self, start: &FitStart) {
        // The run may have announced it before it was resumed.
        self.announced = match self.rule.unfreeze_at {
            TrainDuration::Epochs(first) => first == 0 || start.epoch > first,
            TrainDuration::Steps(first) => first == 0 || start.global_step > first,
            _ => true,
        };
    }

    fn on_train_batch_start(&mut self, progress: &Progress) {
        if let Some(line) = self.announcement(progress) {
            inform!("{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_announced_once_when_it_begins() {
        let lines = |unfreeze_at: &str| {
            let mut callback = BackboneFinetuning::new("body.*", unfreeze_at.parse().unwrap());
            // Each epoch has three steps of two batches.
            let batches = (0..4).flat_map(|epoch| (0..6).map(move |batch| (epoch, batch)));
            let lines = batches.filter_map(|(epoch, batch)| {
                let global_step = 3 * epoch + batch / 2;
                callback.announcement(&Progress { epoch, batch, batches: 6, global_step })
            });
            lines.collect::<Vec<_>>()
        };
        assert_eq!(lines("2ep"), ["Epoch 3: training body.* too"]);
        assert_eq!(lines("7ba"), ["Step 8: training body.* too"]);
        assert!(lines("9ep").is_empty());
    }
}
