//! Validation in a fit: selects the sets that are due, runs over them, and builds the log point.

use fulmen_tensor::{DeviceArray, Literal};
use tracing::debug_span;

use super::Fit;
use crate::console::warning;
use crate::evaluation::{Evaluation, EvaluationResult, evaluation_point};
use crate::goodput::TimeBucket;
use crate::hooks::Progress;
use crate::program::evaluation_set::Cadence;
use crate::{BatchLimit, LogPoint, Result, Signal, process_group};

/// A validation set that is ready to run.
pub(super) struct Validation {
    pub(super) cadence: Cadence,
    pub(super) evaluation: Evaluation,
    /// Whether it has run in this fit, apart from the sanity check.
    pub(super) has_run: bool,
}

impl Fit<'_> {
    /// The names of the sets that are due after the latest batch.
    pub(super) fn due(&self, progress: &Progress) -> Vec<String> {
        let stepped = self.step.optimizer_stepped();
        let due = self.validation.iter().filter(|set| set.cadence.is_due(progress, stepped));
        due.map(|set| set.evaluation.dataset.clone()).collect()
    }

    /// The names of the sets that are due at the end of the epoch. They are computed again, since
    /// checkpoints of earlier versions don't have them.
    pub(super) fn due_at_epoch_end(&self) -> Vec<String> {
        let mut due = self.due(&self.step.progress());
        for name in &self.step.position.validation {
            if !due.contains(name) {
                due.push(name.clone());
            }
        }
        due
    }

    /// The sets with these names.
    fn sets<'a>(&'a self, names: &'a [String]) -> impl Iterator<Item = &'a Validation> {
        self.validation.iter().filter(|set| names.contains(&set.evaluation.dataset))
    }

    /// Runs the validations that are due after a step within an epoch. A checkpoint that is saved
    /// before they end lists them as due.
    pub(super) fn validate_within_epoch(&mut self) -> Result<Option<Signal>> {
        let due = self.step.position.validation.clone();
        if self.sets(&due).next().is_none() {
            self.step.position.validation.clear();
            return Ok(None);
        }
        let validated = match self.validate(&due)? {
            Ok(logged) => logged,
            Err(signal) => return Ok(Some(signal)),
        };
        let pending = self.session.runtime.read(&validated.iter().collect::<Vec<_>>())?;
        self.finish_reads()?;
        let literals =
            process_group::wait_for_literals(self.step.executor.process_group(), pending)?;
        let point = self.validation_point(&due, &literals)?;
        self.step.position.validation.clear();
        self.session.log(&point);
        self.hooks.on_validation_end(&point, &mut self.actions);
        self.actions.requests.validate = false;
        self.run_actions()?;
        Ok(None)
    }

    /// Runs the first batches of each set before the first step.
    pub(super) fn sanity_check(&mut self) -> Result<()> {
        let batches @ 1.. = self.options().num_sanity_val_steps else { return Ok(()) };
        if self.validation.is_empty() {
            return Ok(());
        }
        self.hooks.on_sanity_check_start();
        self.session.clock.enter(TimeBucket::Validation);
        let runtime = &self.session.runtime;
        let process_group = self.step.executor.process_group();
        for set in &self.validation {
            let batches = BatchLimit::Count(batches);
            let result = self.step.with_weights(self.conversion.as_ref(), |weights| {
                set.evaluation.run(runtime, process_group, weights, batches, |_| {
                    self.step.executor.interrupt_signal()
                })
            })?;
            // If a signal ended this, it is reported again after the first step.
            let EvaluationResult::Logged(arrays) = result else { break };
            let pending = runtime.read(&arrays.iter().collect::<Vec<_>>())?;
            let literals = process_group::wait_for_literals(process_group, pending)?;
            let point = evaluation_point([&set.evaluation], &literals, self.step.position.step())?;
            for (name, value) in point.columns().iter().filter(|(_, value)| !value.is_finite()) {
                warning!("{name} is {value} in the sanity check, before the first step");
            }
        }
        self.hooks.on_sanity_check_end();
        Ok(())
    }

    /// Runs the validation steps of these sets. Their logged values stay on the device. A signal
    /// ends the validation.
    pub(super) fn validate(
        &mut self,
        names: &[String],
    ) -> Result<Result<Vec<DeviceArray>, Signal>> {
        let before = self.session.clock.enter(TimeBucket::Validation);
        let validated = self.run_validation(names);
        self.session.clock.enter(before);
        validated
    }

    fn run_validation(&self, names: &[String]) -> Result<Result<Vec<DeviceArray>, Signal>> {
        let _validation = debug_span!("validation").entered();
        let mut arrays = Vec::new();
        let runtime = &self.session.runtime;
        let process_group = self.step.executor.process_group();
        for set in self.sets(names) {
            let validated = self.step.with_weights(self.conversion.as_ref(), |weights| {
                let interrupted = || self.step.executor.interrupt_signal();
                set.evaluation.run_all(
                    runtime,
                    process_group,
                    &self.hooks,
                    self.step.position.step(),
                    weights,
                    interrupted,
                )
            })?;
            match validated {
                EvaluationResult::Logged(logged) => arrays.extend(logged),
                EvaluationResult::Interrupted(signal) => return Ok(Err(signal)),
            }
        }
        Ok(Ok(arrays))
    }

    /// The log point of these sets, which have run, from the values that were read.
    pub(super) fn validation_point(
        &mut self,
        names: &[String],
        values: &[Literal],
    ) -> Result<LogPoint> {
        for set in &mut self.validation {
            set.has_run |= names.contains(&set.evaluation.dataset);
        }
        self.actions.set_all_sets_validated(self.validation.iter().all(|set| set.has_run));
        evaluation_point(
            self.sets(names).map(|set| &set.evaluation),
            values,
            self.step.position.step(),
        )
    }
}
