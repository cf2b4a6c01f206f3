//! The work between two steps: all processes run the actions of callbacks after the same step, and
//! the run may end.

use std::time::Duration;

use fulmen_tensor::{Argument, Compiled, Literal, Sharding};

use super::Fit;
use crate::executor::fit_read::ReadKind;
use crate::hooks::actions::Requests;
use crate::state::StepState;
use crate::{Error, Result, Signal, TrainDuration};

/// A program that callbacks can request.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) compiled: Compiled,
    pub(super) outputs: Vec<String>,
}

impl Fit<'_> {
    /// Ends a step: all processes learn of signals, and whether one of them has requested actions.
    pub(super) fn end_step(&mut self) -> Result<Option<Signal>> {
        self.actions.check()?;
        self.stop_after_max_time();
        let process = self
            .step
            .executor
            .process_group()
            .map_or(0, |process_group| process_group.process().index());
        if self.actions.requests.counts_in(process) {
            self.step.executor.request_actions();
        }
        self.step.executor.interrupt_signal()
    }

    /// Runs the actions that callbacks requested. All processes call this after the same step and
    /// do the same. Returns whether checkpoints were saved, which takes time.
    pub(super) fn run_actions(&mut self) -> Result<bool> {
        self.actions.check()?;
        let mut requests = self.actions.take();
        if let Some(process_group) = self.step.executor.process_group() {
            // A callback may stop because of something that only its process knows, such as the
            // time. All must stop then.
            let stop = requests.stop.take();
            let is_stopping = process_group.any("stop", stop.is_some())?;
            requests = process_group.broadcast("actions", || Ok(requests))?;
            requests.stop =
                stop.or(is_stopping.then(|| "a callback of another process requested it".into()));
        }
        if requests == Requests::default() {
            return Ok(false);
        }
        let Requests { saves, removals, stop, validate, programs, learning_rate_factor } = requests;
        self.stop_reason = self.stop_reason.take().or(stop);
        if let Some(factor) = learning_rate_factor {
            self.set_learning_rate_factor(factor)?;
        }
        for program in &programs {
            self.run_program(program)?;
        }
        if validate {
            self.step.position.validation =
                self.validation.iter().map(|set| set.evaluation.dataset.clone()).collect();
        }
        self.save(&saves, removals)?;
        Ok(!saves.is_empty())
    }

    /// Sets the factor of the learning rate in the state, for all later steps.
    fn set_learning_rate_factor(&mut self, factor: f64) -> Result<()> {
        let Some(entry) = self.step.state.layout().counters.lr_factor else {
            let message =
                "a callback set the learning rate factor; its changes_learning_rate() must be true";
            return Err(Error::usage(message));
        };
        let literal = Literal::from_slice(&[factor as f32], [])?;
        self.step
            .state
            .put(entry, self.session.runtime.to_devices(&literal, &Sharding::replicated())?);
        self.step.position.lr_factor = Some(factor);
        self.actions.set_factor(factor);
        Ok(())
    }

    /// Enqueues a program of the module on the device and starts to read its outputs.
    fn run_program(&mut self, name: &str) -> Result<()> {
        let Some(program) = self.programs.iter().find(|program| program.name == name) else {
            let names: Vec<_> =
                self.programs.iter().map(|program| format!("`{}`", program.name)).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(Error::usage(format!(
                "a callback requested the program `{name}`, which the module's programs() does not declare; it declares: {known}"
            )));
        };
        let arrays = self.step.with_weights(self.conversion.as_ref(), |weights| {
            let weights = weights.iter().map(|array| Argument::Borrow(array)).collect();
            Ok(program.compiled.call(weights)?.arrays)
        })?;
        let read = self
            .new_read(ReadKind::Program { name: program.name, outputs: program.outputs.clone() });
        self.step.executor.read(read, arrays)
    }

    /// Whether the run ends after the latest step. The inner option is `None` if the end was
    /// planned.
    pub(super) fn end_reason(&mut self) -> Option<Option<String>> {
        if self.step.position.global_step >= self.step.limits.steps {
            return Some(None);
        }
        if self.step.position.epoch < self.step.limits.min_epochs
            || self.step.position.global_step < self.step.limits.min_steps
        {
            return None;
        }
        self.stop_reason.take().map(Some)
    }

    /// Requests the end of the run after `max_time`.
    pub(super) fn stop_after_max_time(&mut self) {
        if let Some(time) = self
            .step
            .limits
            .time
            .filter(|time| self.stop_reason.is_none() && self.training_time() >= *time)
        {
            self.actions.stop(format!("max_time has elapsed ({})", TrainDuration::Time(time)));
        }
    }

    /// How long the run has trained, including the time before a resume.
    pub(super) fn training_time(&self) -> Duration {
        let before = Duration::try_from_secs_f64(self.step.position.seconds.unwrap_or(0.0))
            .unwrap_or(Duration::MAX);
        before.saturating_add(self.training_start.elapsed())
    }
}
