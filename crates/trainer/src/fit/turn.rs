//! What happens between two steps: what callbacks have asked for is done, in all processes after the same step, and the run
//! may end.

use std::time::Duration;

use fulmen_tensor::{Argument, Compiled, Literal, Sharding};

use super::Fit;
use crate::hooks::actions::Asked;
use crate::run::reading::What;
use crate::state::StepState;
use crate::{Error, Result, Signal, TrainDuration};

/// A program that callbacks can ask for.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) compiled: Compiled,
    pub(super) outputs: Vec<String>,
}

impl Fit<'_> {
    /// Ends a step: all processes learn of signals, and whether one of them has something to do.
    pub(super) fn turn(&mut self) -> Result<Option<Signal>> {
        self.asked.check()?;
        self.stop_when_time_is_over();
        let process = self.step.executor.hosts().map_or(0, |hosts| hosts.process().index());
        if self.asked.asked.counts_in(process) {
            self.step.executor.request_actions();
        }
        self.step.executor.interrupted()
    }

    /// Does what callbacks have asked for, in all processes alike; they all come here after the same step. Says whether that
    /// took time.
    pub(super) fn act(&mut self) -> Result<bool> {
        self.asked.check()?;
        let mut asked = self.asked.take();
        if let Some(hosts) = self.step.executor.hosts() {
            // A callback may go by what only its process sees, the time say; but none can go on alone.
            let stop = asked.stop.take();
            let of_another =
                hosts.any("stop", stop.is_some())?.then(|| "a callback of another process asked for it".into());
            asked = hosts.broadcast("actions", || Ok(asked))?;
            asked.stop = stop.or(of_another);
        }
        if asked == Asked::default() {
            return Ok(false);
        }
        let Asked { saves, removals, stop, validate, programs, learning_rate_factor } = asked;
        self.wish = self.wish.take().or(stop);
        if let Some(factor) = learning_rate_factor {
            self.set_learning_rate_factor(factor)?;
        }
        for program in &programs {
            self.run_program(program)?;
        }
        if validate {
            self.step.position.validation = self.validation.iter().map(|set| set.evaluation.dataset.clone()).collect();
        }
        self.save(&saves, removals)?;
        Ok(!saves.is_empty())
    }

    /// Puts another factor of the learning rate into the state, for the steps to come.
    fn set_learning_rate_factor(&mut self, factor: f64) -> Result<()> {
        let Some(entry) = self.step.state.layout().counters.lr_factor else {
            let message = "a callback set the factor of the learning rate; its changes_learning_rate() must be true";
            return Err(Error::usage(message));
        };
        let literal = Literal::from_slice(&[factor as f32], [])?;
        self.step.state.put(entry, self.session.runtime.to_devices(&literal, &Sharding::replicated())?);
        self.step.position.lr_factor = Some(factor);
        self.asked.set_factor(factor);
        Ok(())
    }

    /// Hands a program of the module to the device and starts to read what it computes.
    fn run_program(&mut self, name: &str) -> Result<()> {
        let Some(program) = self.programs.iter().find(|program| program.name == name) else {
            let known: Vec<_> = self.programs.iter().map(|program| format!("`{}`", program.name)).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(Error::usage(format!(
                "a callback asked for the program `{name}`, which the module's programs() does not declare; there are: {known}"
            )));
        };
        let arrays = self.step.with_weights(self.averages.as_ref(), |weights| {
            let weights = weights.iter().map(|array| Argument::Borrow(array)).collect();
            Ok(program.compiled.call(weights)?.arrays)
        })?;
        let reading = self.reading(What::Program { name: program.name, outputs: program.outputs.clone() });
        self.step.executor.read(reading, arrays)
    }

    /// Whether the run ends after the latest step, and why, if not as it was planned.
    pub(super) fn ends(&mut self) -> Option<Option<String>> {
        if self.step.position.global_step >= self.step.limits.steps {
            return Some(None);
        }
        if self.step.position.epoch < self.step.limits.min_epochs
            || self.step.position.global_step < self.step.limits.min_steps
        {
            return None;
        }
        self.wish.take().map(Some)
    }

    /// Asks for the end once `max_time` is over.
    pub(super) fn stop_when_time_is_over(&mut self) {
        if let Some(time) = self.step.limits.time.filter(|time| self.wish.is_none() && self.trained() >= *time) {
            self.asked.stop(format!("the time of max_time is over ({})", TrainDuration::Time(time)));
        }
    }

    /// For how long the run has trained, that before a resume included.
    pub(super) fn trained(&self) -> Duration {
        let before = Duration::try_from_secs_f64(self.step.position.seconds.unwrap_or(0.0)).unwrap_or(Duration::MAX);
        before.saturating_add(self.training_since.elapsed())
    }
}
