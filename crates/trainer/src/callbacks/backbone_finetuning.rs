//! [`BackboneFinetuning`]: leaves parameters as they are at first, and trains them from some epoch or step on.

use crate::callbacks::callback::Callback;
use crate::console::note;
use crate::hooks::{FitStart, Progress};
use crate::{StepPart, TrainDuration};

/// Leaves the parameters that fit a pattern as they are at first, and trains them from some epoch or step on. In a pattern
/// `*` matches any text, dots included, and `?` one character; the pattern must match the whole dotted name.
///
/// Each phase has a program of its own. All are compiled before the first step, except those that a resumed run has behind
/// it. What is frozen has no gradient in the program of its phase and is not written by it. Schedules, counters, moments
/// and the order of the data go on across the change. The optimizer's state of frozen parameters is on the device
/// from the beginning, as zeros: it needs its memory in all phases. Bias corrections count the steps since the parameter
/// was unfrozen, as PyTorch does.
///
/// Unfrozen parameters begin with a tenth of the optimizer's learning rate. After each epoch that share doubles, until it
/// is 1. Lightning multiplies the rate of the moment at which they were unfrozen; here the share is of the rate that the
/// schedule gives now.
///
/// Several of these callbacks unfreeze a model bit by bit. Of two that fit a parameter, the later holds. What the optimizer
/// or [`set_requires_grad`](fulmen_nn::Parameter::set_requires_grad) freezes stays so.
///
/// A line on standard error tells that a phase begins: `Epoch 6: training backbone.* too`.
///
/// ```
/// use fulmen_trainer::{Trainer, callbacks::BackboneFinetuning};
/// let builder = Trainer::builder()
///     .callback(BackboneFinetuning::new("backbone.*", "5ep".parse()?))
///     .callback(BackboneFinetuning::new("backbone.layer4.*", "2ep".parse()?).initial_ratio(1.0));
/// # Ok::<(), fulmen_trainer::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct BackboneFinetuning {
    pattern: String,
    at: TrainDuration,
    initial_ratio: f64,
    multiplier: f64,
    should_align: bool,
    train_bn: bool,
    /// Whether there is nothing more to tell of it.
    told: bool,
}

impl BackboneFinetuning {
    /// Trains the parameters that match the pattern after this number of epochs or optimizer steps.
    pub fn new(pattern: impl Into<String>, unfreeze_at: TrainDuration) -> BackboneFinetuning {
        BackboneFinetuning {
            pattern: pattern.into(),
            at: unfreeze_at,
            initial_ratio: 0.1,
            multiplier: 2.0,
            should_align: true,
            train_bn: true,
            told: false,
        }
    }

    /// What their learning rate is at first, as a share of the optimizer's; 0.1 by default.
    pub fn initial_ratio(mut self, ratio: f64) -> BackboneFinetuning {
        self.initial_ratio = ratio;
        self
    }

    /// What that share is multiplied by after each epoch; 2 by default.
    pub fn multiplier(mut self, multiplier: f64) -> BackboneFinetuning {
        self.multiplier = multiplier;
        self
    }

    /// Whether the share stays at most 1; true by default.
    pub fn should_align(mut self, align: bool) -> BackboneFinetuning {
        self.should_align = align;
        self
    }

    /// Whether batch norm is trained from the beginning; true by default. If not, its parameters are frozen too, and it
    /// computes with its running statistics, which stay as they are.
    pub fn train_bn(mut self, train: bool) -> BackboneFinetuning {
        self.train_bn = train;
        self
    }

    /// What to tell before a batch, if these parameters are trained from it on.
    fn line(&mut self, progress: &Progress) -> Option<String> {
        let Progress { epoch, global_step, .. } = *progress;
        let (begun, when) = match self.at {
            TrainDuration::Epochs(at) => (epoch >= at, format!("Epoch {}", epoch + 1)),
            TrainDuration::Steps(at) => (global_step >= at, format!("Step {}", global_step + 1)),
            _ => return None,
        };
        let first = begun && !std::mem::replace(&mut self.told, true);
        first.then(|| format!("{when}: training {} too", self.pattern))
    }
}

impl Callback for BackboneFinetuning {
    fn name(&self) -> &'static str {
        "BackboneFinetuning"
    }

    fn refusal(&self) -> Option<String> {
        let BackboneFinetuning { pattern, at, initial_ratio, multiplier, .. } = self;
        if !matches!(at, TrainDuration::Epochs(_) | TrainDuration::Steps(_)) {
            return Some(format!("`{pattern}` is unfrozen after epochs (2ep) or steps (500ba), not after {at}"));
        }
        let wrong = |value: &f64| !(value.is_finite() && *value > 0.0);
        let named = [("initial_ratio", initial_ratio), ("multiplier", multiplier)];
        let (name, value) = named.into_iter().find(|(_, value)| wrong(value))?;
        Some(format!("{name} must be finite and above 0, it is {value}"))
    }

    fn step_part(&self) -> Option<StepPart> {
        let BackboneFinetuning { pattern, at, initial_ratio, multiplier, should_align, train_bn, .. } = self.clone();
        Some(StepPart::Unfreeze { pattern, at, initial_ratio, multiplier, should_align, train_bn })
    }

    fn on_fit_start(&mut self, start: &FitStart) {
        // A resumed run may have told it before.
        self.told = match self.at {
            TrainDuration::Epochs(at) => at == 0 || start.epoch > at,
            TrainDuration::Steps(at) => at == 0 || start.global_step > at,
            _ => true,
        };
    }

    fn on_train_batch_start(&mut self, progress: &Progress) {
        if let Some(line) = self.line(progress) {
            note(&line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_once_from_where_on_more_is_trained() {
        let lines = |at: &str| {
            let mut callback = BackboneFinetuning::new("body.*", at.parse().unwrap());
            // Three steps an epoch, of two batches each.
            let batches = (0..4).flat_map(|epoch| (0..6).map(move |batch| (epoch, batch)));
            let of_each = batches.filter_map(|(epoch, batch)| {
                let global_step = 3 * epoch + batch / 2;
                callback.line(&Progress { epoch, batch, batches: 6, global_step })
            });
            of_each.collect::<Vec<_>>()
        };
        assert_eq!(lines("2ep"), ["Epoch 3: training body.* too"]);
        assert_eq!(lines("7ba"), ["Step 8: training body.* too"]);
        assert!(lines("9ep").is_empty());
    }
}
