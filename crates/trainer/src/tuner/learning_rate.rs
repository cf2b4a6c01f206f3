//! [`LearningRateFinder`]: a short fit with a rising learning rate that suggests a good rate.

use std::sync::Arc;

use fulmen_data::DataLoader;
use parking_lot::Mutex;

use super::{LearningRates, run_short_fit, short_fit, show_progress};
use crate::callbacks::callback::Callback;
use crate::hooks::FitStart;
use crate::rules::lr_sweep::{LrSweep, SweepMode};
use crate::rules::step_rule::StepRule;
use crate::{
    Actions, BatchLimit, Error, EvaluationSets, LogPoint, Result, Trainer, TrainingModule, error,
};

/// The default of [`LearningRateFinder::smoothing`].
const SMOOTHING: f64 = 0.98;

/// The default of [`LearningRateFinder::monitor`].
const MONITOR: &str = "val_loss";

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
    smoothing: f64,
    monitor: String,
    validation_batches: BatchLimit,
}

impl Default for LearningRateFinder {
    fn default() -> LearningRateFinder {
        LearningRateFinder {
            min_lr: 1e-8,
            max_lr: 1.0,
            num_training_steps: 100,
            mode: SweepMode::Exponential,
            early_stop_threshold: Some(4.0),
            smoothing: SMOOTHING,
            monitor: MONITOR.to_owned(),
            validation_batches: BatchLimit::ALL,
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

    /// Sets the decay of the running mean of the losses, as fastai and Lightning compute it: 0.98 by
    /// default; 0 for no smoothing.
    pub fn smoothing(mut self, decay: f64) -> LearningRateFinder {
        self.smoothing = decay;
        self
    }

    /// Sets the name of the loss that validations log, for [`Trainer::lr_find_validated`]:
    /// `val_loss` by default.
    pub fn monitor(mut self, loss: impl Into<String>) -> LearningRateFinder {
        self.monitor = loss.into();
        self
    }

    /// Sets how many batches each validation of [`Trainer::lr_find_validated`] has. The default is
    /// all.
    pub fn validation_batches(mut self, batches: u64) -> LearningRateFinder {
        self.validation_batches = BatchLimit::Count(batches);
        self
    }

    /// The rates that it tries.
    fn rule(&self) -> LrSweep {
        LrSweep {
            min: self.min_lr,
            max: self.max_lr,
            steps: self.num_training_steps,
            mode: self.mode,
        }
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
        if !(0.0..1.0).contains(&self.smoothing) {
            return wrong(format!(
                "smoothing must be at least 0 and below 1, but it is {}",
                self.smoothing
            ));
        }
        if self.validation_batches.is_zero() {
            return wrong("validation_batches must be at least 1, but it is 0".to_owned());
        }
        match self.early_stop_threshold {
            Some(threshold) if threshold.is_nan() || threshold <= 1.0 => wrong(format!(
                "early_stop_threshold must be above 1, but it is {threshold}; use None for no threshold"
            )),
            _ => Ok(()),
        }
    }

    /// Smooths the losses of the steps into a curve.
    fn curve(&self, loss: &str, losses: &[f64]) -> LearningRateCurve {
        let mut curve =
            LearningRateCurve { loss: loss.to_owned(), rates: Vec::new(), losses: Vec::new() };
        let mut mean = 0.0;
        let mut best = f64::INFINITY;
        let rule = self.rule();
        for (i, loss) in losses.iter().enumerate() {
            mean = self.smoothing * mean + (1.0 - self.smoothing) * loss;
            // Correct the bias towards the initial 0, as Adam does.
            let smooth = mean / (1.0 - self.smoothing.powf(i as f64 + 1.0));
            let diverged = self
                .early_stop_threshold
                .is_some_and(|threshold| i > 0 && smooth > threshold * best);
            if !smooth.is_finite() || diverged {
                break;
            }
            best = best.min(smooth);
            let share = i as f64 / (self.num_training_steps - 1) as f64;
            curve.rates.push(rule.rate(share));
            curve.losses.push(smooth);
        }
        curve
    }
}

/// The loss as a function of a rising learning rate.
#[derive(Clone, Debug, PartialEq)]
pub struct LearningRateCurve {
    loss: String,
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

    /// The curve with its suggestion, for a page about it.
    pub fn report(&self) -> LearningRates {
        LearningRates {
            loss: self.loss.clone(),
            rates: self.rates.clone(),
            losses: self.losses.clone(),
            suggestion: self.suggestion(),
        }
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
            let before = i.saturating_sub(1);
            let after = (i + 1).min(last);
            (losses[after] - losses[before]) / (after - before) as f64
        };
        let steepest = (0..=last).min_by(|&a, &b| slope(a).total_cmp(&slope(b)))?;
        self.rates.get(skip_begin + steepest).copied()
    }
}

/// The losses of the steps of a search.
#[derive(Default)]
struct Recorded {
    /// The name of the loss.
    loss: String,
    losses: Vec<f64>,
    /// The step of the last loss.
    step: Option<u64>,
    /// What a validation logged, if that does not include the loss.
    other_values: Option<Vec<String>>,
}

/// Records the loss of each step.
struct LossRecorder {
    rule: Arc<dyn StepRule>,
    /// The loss of validations to record, instead of the training loss.
    monitor: Option<String>,
    recorded: Arc<Mutex<Recorded>>,
}

impl Callback for LossRecorder {
    fn name(&self) -> &'static str {
        "LearningRateFinder"
    }

    fn step_rule(&self) -> Option<Arc<dyn StepRule>> {
        Some(self.rule.clone())
    }

    fn on_fit_start(&mut self, start: &FitStart) {
        let loss = self.monitor.as_ref().unwrap_or(&start.loss);
        self.recorded.lock().loss.clone_from(loss);
    }

    fn on_log(&mut self, point: &LogPoint, _: &mut Actions) {
        if self.monitor.is_none() {
            let mut recorded = self.recorded.lock();
            let loss = point.get(&recorded.loss);
            recorded.losses.extend(loss);
        }
    }

    fn on_validation_end(&mut self, point: &LogPoint, _: &mut Actions) {
        let Some(monitor) = &self.monitor else { return };
        let mut recorded = self.recorded.lock();
        if recorded.step == Some(point.global_step) {
            return;
        }
        recorded.step = Some(point.global_step);
        match point.get(monitor) {
            Some(loss) => recorded.losses.push(loss),
            None => {
                let names = point.metrics.iter().map(|(name, _)| name.clone());
                recorded.other_values = Some(names.collect());
            }
        }
    }
}

impl Trainer {
    /// Trains for some steps with a rising learning rate, to find where the loss falls and where it
    /// rises. Afterwards the module has its old values. Nothing is logged, validated or saved. The
    /// rates replace the optimizer's schedule. The Trainer's learning rate factor and the factors
    /// of parameter groups still apply. The report of the next fit shows the curve.
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
        self.sweep(module, train, &None.into(), finder)
    }

    /// Like [`lr_find`](Trainer::lr_find), with the loss of a validation after each step. It shows
    /// rates at which the model only follows its last batch, and takes longer.
    ///
    /// # Errors
    /// Those of [`lr_find`](Trainer::lr_find); no validation data; a validation that does not log
    /// the loss named by [`LearningRateFinder::monitor`].
    pub fn lr_find_validated<M: TrainingModule>(
        &mut self,
        module: &M,
        train: &DataLoader,
        validation: impl Into<EvaluationSets>,
        finder: &LearningRateFinder,
    ) -> Result<LearningRateCurve> {
        let validation = validation.into();
        if validation.is_empty() {
            return Err(Error::usage(
                "lr_find_validated: there is no validation data; pass some, or call lr_find",
            ));
        }
        self.sweep(module, train, &validation, finder)
    }

    fn sweep(
        &mut self,
        module: &dyn TrainingModule,
        train: &DataLoader,
        validation: &EvaluationSets,
        finder: &LearningRateFinder,
    ) -> Result<LearningRateCurve> {
        finder.check()?;
        let rule = finder.rule();
        let LrSweep { min, max, steps, .. } = rule;
        let rule: Arc<dyn StepRule> = Arc::new(rule);
        let mut choices = short_fit(&self.session.choices, steps);
        let monitor = (!validation.is_empty()).then(|| finder.monitor.clone());
        if monitor.is_some() {
            choices.options.limit_val_batches = finder.validation_batches;
            choices.options.val_check_interval = BatchLimit::Count(1);
            choices.options.check_val_every_n_epoch = 1;
        }
        choices.evaluated = None;
        choices.scales_learning_rate = false;
        choices
            .callback_rules
            .retain(|rule| rule.scheduling().is_some() || rule.frozen().is_some());
        choices.callback_rules.push(rule.clone());
        let recorded = Arc::new(Mutex::new(Recorded::default()));
        let recorder = LossRecorder { rule, monitor, recorded: recorded.clone() };
        show_progress(
            self,
            &format!(
                "lr_find: compiling the training step, then {steps} steps with rates from {min} to {max} ..."
            ),
        );
        let callbacks: Vec<Box<dyn Callback>> = vec![Box::new(recorder)];
        let summary = run_short_fit(self, module, train, choices, callbacks, validation)?;
        if let Some(signal) = summary.signal {
            return Err(error::interrupted("finding a learning rate", signal));
        }
        let recorded = std::mem::take(&mut *recorded.lock());
        if let Some(names) = recorded.other_values {
            return Err(Error::usage(format!(
                "lr_find_validated: the validation logs no `{}`, only [{}]; log it in validation_step, or name another \
                 value with LearningRateFinder::monitor",
                recorded.loss,
                names.join(", ")
            )));
        }
        let curve = finder.curve(&recorded.loss, &recorded.losses);
        self.session.record.learning_rates = Some(curve.report());
        Ok(curve)
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
        let curve = finder.curve("train_loss", &numbers("losses"));
        let expected = numbers("smooth");
        assert_eq!(curve.losses().len(), expected.len());
        for (actual, expected) in curve.losses().iter().zip(&expected) {
            assert!((actual / expected - 1.0).abs() < 1e-12, "{actual} is not {expected}");
        }
        let actual = curve.suggestion().unwrap();
        let expected = document["curve"]["rate"].as_f64().unwrap();
        assert!((actual / expected - 1.0).abs() < 1e-9, "{actual} is not {expected}");
    }

    #[test]
    fn the_curve_ends_where_the_loss_diverges() {
        let finder = LearningRateFinder::new();
        let steps = |losses: &[f64]| finder.curve("train_loss", losses).losses().len();
        assert_eq!(
            (steps(&[1.0, 1.0, 1e6, 1.0]), steps(&[1.0, f64::NAN, 1.0]), steps(&[])),
            (2, 1, 0)
        );
        let finder = LearningRateFinder::new().early_stop_threshold(None);
        assert_eq!(finder.curve("train_loss", &[1.0, 1.0, 1e6, 1.0]).losses().len(), 4);
        assert_eq!(finder.curve("train_loss", &[1.0; 12]).suggestion(), None, "one step is left");
        assert!(finder.curve("train_loss", &[1.0; 13]).suggestion().is_some());
    }
}
