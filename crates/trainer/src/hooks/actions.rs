//! [`Actions`]: what callbacks ask the Trainer to do, and how the processes tell each other.
//!
//! Not here: when it is done (`fit/turn.rs`), and which checkpoints are wanted (`callbacks/model_checkpoint.rs`).

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::{Error, Result, process_group};

/// Which role a checkpoint has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointRole {
    /// The latest state.
    Last,
    /// The best by the monitored metric.
    Best,
    /// Neither: one more copy.
    Extra,
}

const ROLES: [(CheckpointRole, &str); 3] =
    [(CheckpointRole::Last, "last"), (CheckpointRole::Best, "best"), (CheckpointRole::Extra, "extra")];

/// A checkpoint that is to be written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Save {
    pub(crate) path: PathBuf,
    pub(crate) role: CheckpointRole,
    pub(crate) weights_only: bool,
    /// The value that it is one of the best by.
    pub(crate) score: Option<f64>,
}

/// What a callback asks the Trainer to do.
///
/// It is done before the next step, after the callbacks of the turn. Several processes do it after the same step, which may
/// be a few steps later: they do what the callbacks of process 0 ask for, and stop if a callback of any process asks for it.
#[derive(Debug)]
pub struct Actions {
    pub(crate) asked: Asked,
    learning_rate: f64,
    /// The factor that `learning_rate` was computed with, that of the latest step and that of the next one.
    factors: [f64; 3],
    fitting: bool,
    failure: Option<String>,
}

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Asked {
    pub(crate) saves: Vec<Save>,
    /// Checkpoints to remove once those are written.
    pub(crate) removals: Vec<PathBuf>,
    pub(crate) stop: Option<String>,
    pub(crate) validate: bool,
    pub(crate) programs: Vec<String>,
    pub(crate) learning_rate_factor: Option<f64>,
}

impl Actions {
    /// Before the first step, whose learning rate has this factor.
    pub(crate) fn new(factor: f64) -> Actions {
        let learning_rate = f64::NAN;
        Actions { asked: Asked::default(), learning_rate, factors: [factor; 3], fitting: true, failure: None }
    }

    /// Outside of a fit, where nothing is done that is asked for.
    pub(crate) fn outside() -> Actions {
        Actions { fitting: false, ..Actions::new(1.0) }
    }

    /// Whether a fit runs, which does what is asked for.
    pub fn is_fitting(&self) -> bool {
        self.fitting
    }

    /// A step was handed to the device.
    pub(crate) fn stepped(&mut self) {
        self.factors[1] = self.factors[2];
    }

    /// The factor of the latest step.
    pub(crate) fn factor_of_step(&self) -> f64 {
        self.factors[1]
    }

    /// The learning rate that was read last, and the factor that it was computed with.
    pub(crate) fn set_read(&mut self, learning_rate: f64, factor: f64) {
        (self.learning_rate, self.factors[0]) = (learning_rate, factor);
    }

    /// The factor that the next step has.
    pub(crate) fn set_factor(&mut self, factor: f64) {
        self.factors[2] = factor;
    }

    /// Saves the training state as the checkpoint of this path, a folder, while training goes on. `{epoch}` and `{step}` in
    /// its name become the numbers of the epoch and the step that are saved. Several checkpoints of one turn are written from
    /// one read of the device. A failure ends the fit with the next save, or at its end.
    pub fn save_checkpoint(&mut self, path: impl AsRef<Path>, role: CheckpointRole) {
        self.save(path.as_ref(), role, false);
    }

    /// Saves the module's weights to this path, as [`save_checkpoint`](Actions::save_checkpoint) does it. Training cannot
    /// be resumed from them.
    pub fn save_weights(&mut self, path: impl AsRef<Path>, role: CheckpointRole) {
        self.save(path.as_ref(), role, true);
    }

    /// A later save to the same path replaces an earlier one of the same turn.
    fn save(&mut self, path: &Path, role: CheckpointRole, weights_only: bool) {
        self.asked.saves.retain(|save| save.path != path);
        self.asked.saves.push(Save { path: path.into(), role, weights_only, score: None });
    }

    /// What was asked to be saved last is one of the best by this value.
    pub(crate) fn set_score(&mut self, score: f64) {
        self.asked.saves.last_mut().into_iter().for_each(|save| save.score = Some(score));
    }

    /// Removes this checkpoint, once those that this turn saves are written.
    pub fn remove_checkpoint(&mut self, path: impl AsRef<Path>) {
        self.asked.removals.push(path.as_ref().into());
    }

    /// Validates before the next step, on all validation sets. Nothing happens in a fit without validation, and in
    /// [`on_validation_end`](crate::Callback::on_validation_end).
    pub fn validate(&mut self) {
        self.asked.validate = true;
    }

    /// Runs a [program](crate::TrainingModule::programs) of the module with the weights of now. What it computes comes to
    /// [`on_program_end`](crate::Callback::on_program_end), some steps later. A program that the module does not have is
    /// an error of the fit.
    pub fn run_program(&mut self, name: impl Into<String>) {
        let name = name.into();
        if !self.asked.programs.contains(&name) {
            self.asked.programs.push(name);
        }
    }

    /// The learning rate that was logged last: at a log point and at the end of an epoch that of its last step. NaN before
    /// the first log point.
    pub fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    /// What the learning rate of the steps to come is multiplied by: 1 until a callback sets another factor. A callback
    /// sees what those before it have set in the same turn.
    pub fn learning_rate_factor(&self) -> f64 {
        self.asked.learning_rate_factor.unwrap_or(self.factors[2])
    }

    /// The learning rate that was logged last with the factor of the steps to come.
    pub(crate) fn next_learning_rate(&self) -> f64 {
        let before = self.factors[0];
        if before == 0.0 { self.learning_rate } else { self.learning_rate * (self.learning_rate_factor() / before) }
    }

    /// Multiplies the learning rate of the steps to come by this instead of the factor before. One of several callbacks that
    /// change the rate multiplies [`Actions::learning_rate_factor`]. The step takes the factor as an input, so that nothing
    /// is compiled again. Only for a callback that [says so](crate::Callback::changes_learning_rate).
    pub fn set_learning_rate_factor(&mut self, factor: f64) {
        self.asked.learning_rate_factor = Some(factor);
    }

    /// Ends the fit here, or as soon as `min_epochs` and `min_steps` let it; the reason is shown.
    pub fn stop(&mut self, reason: impl Into<String>) {
        self.asked.stop.get_or_insert(reason.into());
    }

    /// Ends the fit with an error, which is a mistake in how it is used; with several processes, in all.
    pub fn fail(&mut self, message: impl Into<String>) {
        self.failure.get_or_insert(message.into());
    }

    /// The error that a callback ends the fit with.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.failure.take().map_or(Ok(()), |message| Err(Error::usage(message)))
    }

    /// Takes what was asked for.
    pub(crate) fn take(&mut self) -> Asked {
        std::mem::take(&mut self.asked)
    }
}

impl Asked {
    /// Whether something is asked for that this process has a say in.
    pub(crate) fn counts_in(&self, process: usize) -> bool {
        if process == 0 { *self != Asked::default() } else { self.stop.is_some() }
    }
}

/// What process 0 asks for. Why a process stops stays with it.
impl process_group::Shared for Asked {
    fn to_text(&self) -> Option<String> {
        let role = |save: &Save| ROLES.iter().find(|role| role.0 == save.role).map(|role| role.1);
        let saves = self.saves.iter().map(|save| {
            Some(json!([save.path.to_str()?, role(save)?, save.weights_only, save.score.map(f64::to_bits)]))
        });
        let removals: Option<Vec<&str>> = self.removals.iter().map(|path| path.to_str()).collect();
        let document = json!({
            "saves": saves.collect::<Option<Vec<Value>>>()?,
            "removals": removals?,
            "validate": self.validate,
            "programs": self.programs,
            "learning_rate_factor": self.learning_rate_factor.map(f64::to_bits),
        });
        Some(document.to_string())
    }

    fn from_text(text: &str) -> Option<Asked> {
        let document: Value = serde_json::from_str(text).ok()?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let save = |save: &Value| {
            let role = ROLES.iter().find(|role| Some(role.1) == save[1].as_str())?.0;
            Some(Save {
                path: text(&save[0])?.into(),
                role,
                weights_only: save[2].as_bool()?,
                score: save[3].as_u64().map(f64::from_bits),
            })
        };
        let list = |name: &str| document[name].as_array();
        Some(Asked {
            saves: list("saves")?.iter().map(save).collect::<Option<_>>()?,
            removals: list("removals")?.iter().map(|path| Some(text(path)?.into())).collect::<Option<_>>()?,
            stop: None,
            validate: document["validate"].as_bool()?,
            programs: list("programs")?.iter().map(text).collect::<Option<_>>()?,
            learning_rate_factor: document["learning_rate_factor"].as_u64().map(f64::from_bits),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_group::Shared as _;

    #[test]
    fn what_is_asked_for_travels_whole() {
        let mut actions = Actions::new(1.0);
        assert!(!actions.asked.counts_in(0));
        actions.stop("enough");
        assert!(actions.asked.counts_in(1));
        actions.save_checkpoint("a/last", CheckpointRole::Last);
        actions.save_weights("b/{step}", CheckpointRole::Best);
        actions.save_checkpoint("a/last", CheckpointRole::Last);
        actions.remove_checkpoint("c");
        actions.validate();
        actions.run_program("samples");
        actions.run_program("samples");
        actions.set_learning_rate_factor(0.1);
        let asked = actions.take();
        assert_eq!((asked.saves.len(), asked.programs.len()), (2, 1));
        let told = Asked::from_text(&asked.to_text().unwrap()).unwrap();
        assert_eq!(told, Asked { stop: None, ..asked });
        assert!(!told.counts_in(1) && told.counts_in(0));
        assert_eq!(actions.learning_rate_factor(), 1.0, "nothing is left over");
    }

    #[test]
    fn the_next_learning_rate_has_the_newest_factor() {
        let mut actions = Actions::new(1.0);
        actions.set_read(0.5, 1.0);
        actions.set_factor(0.5);
        assert_eq!(actions.next_learning_rate(), 0.25);
        actions.set_learning_rate_factor(0.1);
        assert_eq!((actions.next_learning_rate(), actions.learning_rate_factor()), (0.05, 0.1));
    }
}
