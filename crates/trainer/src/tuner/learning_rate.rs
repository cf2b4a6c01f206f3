//! [`LearningRateFinder`]: a short fit with a rising learning rate that suggests a good rate.

use std::sync::Arc;

use fulmen_data::DataLoader;
use parking_lot::Mutex;

use super::{run_short_fit, short_fit, show_progress};
use crate::callbacks::callback::Callback;
use crate::hooks::FitStart;
use crate::step_config::step_part::{StepPart, SweepMode};
use crate::{Actions, Error, LogPoint, Result, Trainer, TrainingModule};

/// The decay of the running mean of losses per step.
const BETA: f64 = 0.98;

/// Trains for some steps with a rising learning rate, like Lightning's `lr_find` and with its
/// arguments and defaults.
///
/// ```no_run
/// use fulmen_trainer::tuner::LearningRateFinder;
/// # fn f(trainer: &mut fulmen_trainer::Trainer, module: &impl fulmen_trainer::TrainingModule,
/// #      train: &fulmen_data::DataLoader) -> fulmen_trainer::Result<()> {
/// let curve = trainer.lr_find(module, train, &LearningRateFinder::new().max_lr(0.1))?;
/// println!("a good learning rate: {:?}", curve.suggestion());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct LearningRateFinder {
    min_lr: f64,
    max_lr: f64,
    num_training_steps: u64,
    mode: SweepMode,
    early_stop_threshold: Option<f64>,
}

impl Default for LearningRateFinder {
    fn default() -> LearningRateFinder {
        LearningRateFinder {
            min_lr: 1e-8,
            max_lr: 1.0,
            num_training_steps: 100,
            mode: SweepMode::Exponential,
            early_stop_threshold: Some(4.0),
        }
    }
}

impl LearningRateFinder {
    /// Sweeps from 10⁻⁸ to 1 in 100 steps.
    pub fn new() -> LearningRateFinder {
        LearningRateFinder::default()
    }

    /// Sets the learning rate of the first step.
    pub fn min_lr(mut self, rate: f64) -> LearningRateFinder {
        self.min_lr = rate;
        self
    }

    /// Sets the learning rate of the last step.
    pub fn max_lr(mut self, rate: f64) -> LearningRateFinder {
        self.max_lr = rate;
        self
    }

    /// Sets the number of optimizer steps.
    pub fn num_training_steps(mut self, steps: u64) -> LearningRateFinder {
        self.num_training_steps = steps;
        self
    }

    /// Sets how the rate rises.
    pub fn mode(mut self, mode: SweepMode) -> LearningRateFinder {
        self.mode = mode;
        self
    }

    /// Ends the curve where the loss exceeds its smallest value by this factor (4 by default).
    /// `None` disables it.
    pub fn early_stop_threshold(mut self, threshold: Option<f64>) -> LearningRateFinder {
        self.early_stop_threshold = threshold;
        self
    }

    fn check(&self) -> Result<()> {
        let wrong = |message: String| Err(Error::usage(format!("LearningRateFinder: {message}")));
        if !(self.min_lr.is_finite() && self.min_lr > 0.0) {
            return wrong(format!("min_lr must be finite and above 0, but it is {}", self.min_lr));
        }
        if !(self.max_lr.is_finite() && self.max_lr > self.min_lr) {
            return wrong(format!(
                "max_lr must be finite and above min_lr, {}; it is {}",
                self.min_lr, self.max_lr
            ));
        }
        if !(2..=i32::MAX as u64).contains(&self.num_training_steps) {
            return wrong(format!(
                "num_training_steps must be from 2 to {}, but it is {}",
                i32::MAX,
                self.num_training_steps
            ));
        }
        match self.early_stop_threshold {
            Some(threshold) if threshold.is_nan() || threshold <= 1.0 => wrong(format!(
                "early_stop_threshold must be above 1, but it is {threshold}; use None for no threshold"
            )),
            _ => Ok(()),
        }
    }

    /// Smooths the losses of the steps into a curve.
    fn curve(&self, losses: &[f64]) -> LearningRateCurve {
        let mut curve = LearningRateCurve { rates: Vec::new(), losses: Vec::new() };
        let (mut mean, mut best) = (0.0, f64::INFINITY);
        for (i, loss) in losses.iter().enumerate() {
            mean = BETA * mean + (1.0 - BETA) * loss;
            // Correct the bias towards the initial 0, as Adam does.
            let smooth = mean / (1.0 - BETA.powf(i as f64 + 1.0));
            let diverged = self
                .early_stop_threshold
                .is_some_and(|threshold| i > 0 && smooth > threshold * best);
            if !smooth.is_finite() || diverged {
                break;
            }
            best = best.min(smooth);
            let share = i as f64 / (self.num_training_steps - 1) as f64;
            curve.rates.push(self.mode.rate(self.min_lr, self.max_lr, share));
            curve.losses.push(smooth);
        }
        curve
    }
}

/// The loss as a function of a rising learning rate.
#[derive(Clone, Debug, PartialEq)]
pub struct LearningRateCurve {
    rates: Vec<f64>,
    losses: Vec<f64>,
}

impl LearningRateCurve {
    /// The learning rate of each step, up to the step where the loss diverged.
    pub fn learning_rates(&self) -> &[f64] {
        &self.rates
    }

    /// The loss of each step, smoothed over earlier steps.
    pub fn losses(&self) -> &[f64] {
        &self.losses
    }

    /// The learning rate where the loss falls fastest, ignoring the first ten steps and the last
    /// one. `None` if fewer than two steps remain.
    pub fn suggestion(&self) -> Option<f64> {
        self.suggestion_without(10, 1)
    }

    /// Like [`suggestion`](LearningRateCurve::suggestion), ignoring other numbers of steps at the
    /// beginning and at the end.
    pub fn suggestion_without(&self, skip_begin: usize, skip_end: usize) -> Option<f64> {
        let losses = self.losses.get(skip_begin..self.losses.len().checked_sub(skip_end)?)?;
        let last = losses.len().checked_sub(1).filter(|&last| last > 0)?;
        // Central differences over steps, one-sided at the ends. Steps are evenly spaced in the
        // rate or in its logarithm.
        let slope = |i: usize| {
            let (before, after) = (i.saturating_sub(1), (i + 1).min(last));
            (losses[after] - losses[before]) / (after - before) as f64
        };
        let steepest = (0..=last).min_by(|&a, &b| slope(a).total_cmp(&slope(b)))?;
        self.rates.get(skip_begin + steepest).copied()
    }
}

/// Records the loss of each step.
struct LossRecorder {
    /// The name of the logged loss.
    loss: String,
    part: StepPart,
    losses: Arc<Mutex<Vec<f64>>>,
}

impl Callback for LossRecorder {
    fn name(&self) -> &'static str {
        "LearningRateFinder"
    }

    fn step_part(&self) -> Option<StepPart> {
        Some(self.part.clone())
    }

    fn on_fit_start(&mut self, start: &FitStart) {
        self.loss.clone_from(&start.loss);
    }

    fn on_log(&mut self, point: &LogPoint, _: &mut Actions) {
        self.losses.lock().extend(point.get(&self.loss));
    }
}

impl Trainer {
    /// Trains for some steps with a rising learning rate, to find where the loss falls and where it
    /// rises. Afterwards the module has its old values. Nothing is logged, validated or saved. The
    /// rates replace the optimizer's schedule. The Trainer's learning rate factor and the factors
    /// of parameter groups still apply.
    ///
    /// # Errors
    /// An invalid argument of the finder, which the error names; the errors of [`Trainer::fit`]; a
    /// signal.
    pub fn lr_find<M: TrainingModule>(
        &mut self,
        module: &M,
        train: &DataLoader,
        finder: &LearningRateFinder,
    ) -> Result<LearningRateCurve> {
        finder.check()?;
        let LearningRateFinder {
            min_lr: min, max_lr: max, num_training_steps: steps, mode, ..
        } = *finder;
        let part = StepPart::Sweep { min, max, steps, mode };
        let mut choices = short_fit(&self.session.choices, steps);
        (choices.averaging, choices.scales_learning_rate) = (None, false);
        choices.parts.retain(|part| {
            matches!(part, StepPart::Accumulation { .. } | StepPart::Unfreeze { .. })
        });
        choices.parts.push(part.clone());
        let recorded = Arc::new(Mutex::new(Vec::new()));
        let recorder = LossRecorder { loss: String::new(), part, losses: recorded.clone() };
        show_progress(
            self,
            &format!(
                "lr_find: compiling the training step, then {steps} steps with rates from {min} to {max} ..."
            ),
        );
        let summary = run_short_fit(self, module, train, choices, vec![Box::new(recorder)])?;
        if let Some(signal) = summary.signal {
            return Err(Error::interrupted("finding a learning rate", signal));
        }
        let losses = std::mem::take(&mut *recorded.lock());
        Ok(finder.curve(&losses))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_curve_matches_numpy() {
        let document: Value =
            serde_json::from_str(include_str!("../../tests/reference/callbacks.json")).unwrap();
        let numbers = |name: &str| -> Vec<f64> {
            document["curve"][name]
                .as_array()
                .unwrap()
                .iter()
                .map(|n| n.as_f64().unwrap())
                .collect()
        };
        let finder = LearningRateFinder::new().min_lr(1e-6);
        let (curve, expected) = (finder.curve(&numbers("losses")), numbers("smooth"));
        assert_eq!(curve.losses().len(), expected.len());
        for (actual, expected) in curve.losses().iter().zip(&expected) {
            assert!((actual / expected - 1.0).abs() < 1e-12, "{actual} is not {expected}");
        }
        let (actual, expected) =
            (curve.suggestion().unwrap(), document["curve"]["rate"].as_f64().unwrap());
        assert!((actual / expected - 1.0).abs() < 1e-9, "{actual} is not {expected}");
    }

    #[test]
    fn the_curve_ends_where_the_loss_diverges() {
        let finder = LearningRateFinder::new();
        let steps = |losses: &[f64]| finder.curve(losses).losses().len();
        assert_eq!(
            (steps(&[1.0, 1.0, 1e6, 1.0]), steps(&[1.0, f64::NAN, 1.0]), steps(&[])),
            (2, 1, 0)
        );
        let finder = LearningRateFinder::new().early_stop_threshold(None);
        assert_eq!(finder.curve(&[1.0, 1.0, 1e6, 1.0]).losses().len(), 4);
        assert_eq!(finder.curve(&[1.0; 12]).suggestion(), None, "one step is left");
        assert!(finder.curve(&[1.0; 13]).suggestion().is_some());
    }
}
