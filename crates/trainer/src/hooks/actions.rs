//! [`Actions`]: the requests of callbacks to the Trainer, and how processes exchange them.
//!
//! `fit/step_end.rs` carries them out. `callbacks/model_checkpoint.rs` decides which checkpoints to
//! save.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::{Error, Result, process_group};

/// The role of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointRole {
    /// The latest state.
    Last,
    /// The state that is best by the monitored metric.
    Best,
    /// Any other checkpoint.
    Extra,
}

const ROLES: [(CheckpointRole, &str); 3] = [
    (CheckpointRole::Last, "last"),
    (CheckpointRole::Best, "best"),
    (CheckpointRole::Extra, "extra"),
];

/// A checkpoint to write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Save {
    pub(crate) path: PathBuf,
    pub(crate) role: CheckpointRole,
    pub(crate) weights_only: bool,
    /// The value that ranks it among the best.
    pub(crate) score: Option<f64>,
}

/// The requests of a callback to the Trainer.
///
/// The Trainer carries them out before the next step, after all callbacks have run. With several
/// processes, all carry them out after the same step, which may be a few steps later. They follow
/// the requests of process 0, and they stop if a callback of any process asks to stop.
///
/// ```
/// use fulmen_trainer::{Actions, Callback, CheckpointRole, Progress};
///
/// /// Writes a checkpoint after a step that matters, and halves the learning rate from then on.
/// struct Milestone(u64);
///
/// impl Callback for Milestone {
///     fn name(&self) -> &'static str {
///         "Milestone"
///     }
///
///     fn changes_learning_rate(&self) -> bool {
///         true
///     }
///
///     fn on_train_batch_end(&mut self, progress: &Progress, actions: &mut Actions) {
///         if progress.global_step == self.0 {
///             actions.save_checkpoint("milestone", CheckpointRole::Extra);
///             actions.set_learning_rate_factor(0.5);
///         }
///     }
/// }
///
/// let trainer = fulmen_trainer::Trainer::builder().callback(Milestone(1000));
/// # let _ = trainer;
/// ```
#[derive(Debug)]
pub struct Actions {
    pub(crate) requests: Requests,
    learning_rate: f64,
    /// The learning-rate factors in `learning_rate`, in the latest step and in the next step.
    factors: [f64; 3],
    fitting: bool,
    all_sets_validated: bool,
    failure: Option<String>,
}

/// The collected requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Requests {
    pub(crate) saves: Vec<Save>,
    /// Checkpoints to remove after the saves.
    pub(crate) removals: Vec<PathBuf>,
    pub(crate) stop: Option<String>,
    pub(crate) validate: bool,
    pub(crate) programs: Vec<String>,
    pub(crate) learning_rate_factor: Option<f64>,
}

impl Actions {
    /// Starts with the learning-rate factor of the first step.
    pub(crate) fn new(factor: f64) -> Actions {
        let learning_rate = f64::NAN;
        Actions {
            requests: Requests::default(),
            learning_rate,
            factors: [factor; 3],
            fitting: true,
            all_sets_validated: false,
            failure: None,
        }
    }

    /// Creates actions for hooks outside of a fit, which ignore all requests.
    pub(crate) fn ignored() -> Actions {
        Actions { fitting: false, ..Actions::new(1.0) }
    }

    /// Whether a fit is running. Outside of a fit, requests are ignored.
    pub fn is_fitting(&self) -> bool {
        self.fitting
    }

    /// Whether each validation set of this fit has run at least once. True if there is none.
    pub(crate) fn all_sets_validated(&self) -> bool {
        self.all_sets_validated
    }

    pub(crate) fn set_all_sets_validated(&mut self, validated: bool) {
        self.all_sets_validated = validated;
    }

    /// Records that a step was queued on the device.
    pub(crate) fn record_step(&mut self) {
        self.factors[1] = self.factors[2];
    }

    /// The learning-rate factor of the latest step.
    pub(crate) fn factor_of_step(&self) -> f64 {
        self.factors[1]
    }

    /// Sets the learning rate that was read last, and the factor in it.
    pub(crate) fn set_read(&mut self, learning_rate: f64, factor: f64) {
        (self.learning_rate, self.factors[0]) = (learning_rate, factor);
    }

    /// Sets the factor of the next step.
    pub(crate) fn set_factor(&mut self, factor: f64) {
        self.factors[2] = factor;
    }

    /// Saves the training state as a checkpoint in this folder, while training continues. In the
    /// path, `{epoch}` and `{step}` become the numbers of the saved epoch and step. Several
    /// checkpoints requested together share one read of the device. If a save fails, the fit ends
    /// with that error at the next save or at its end.
    pub fn save_checkpoint(&mut self, path: impl AsRef<Path>, role: CheckpointRole) {
        self.save(path.as_ref(), role, false);
    }

    /// Saves the module's weights to this path, like [`save_checkpoint`](Actions::save_checkpoint).
    /// Training cannot be resumed from weights alone.
    pub fn save_weights(&mut self, path: impl AsRef<Path>, role: CheckpointRole) {
        self.save(path.as_ref(), role, true);
    }

    /// Replaces an earlier request for the same path.
    fn save(&mut self, path: &Path, role: CheckpointRole, weights_only: bool) {
        self.requests.saves.retain(|save| save.path != path);
        self.requests.saves.push(Save { path: path.into(), role, weights_only, score: None });
    }

    /// Sets the score of the latest save.
    pub(crate) fn set_score(&mut self, score: f64) {
        self.requests.saves.last_mut().into_iter().for_each(|save| save.score = Some(score));
    }

    /// Removes this checkpoint after the saves that were requested with it.
    pub fn remove_checkpoint(&mut self, path: impl AsRef<Path>) {
        self.requests.removals.push(path.as_ref().into());
    }

    /// Validates on all validation sets before the next step. The request is ignored in a fit
    /// without validation, and in [`on_validation_end`](crate::Callback::on_validation_end).
    pub fn validate(&mut self) {
        self.requests.validate = true;
    }

    /// Runs a [program](crate::TrainingModule::programs) of the module with the current weights.
    /// Its output arrives in [`on_program_end`](crate::Callback::on_program_end), some steps later.
    /// If the module has no such program, the fit ends with an error.
    pub fn run_program(&mut self, name: impl Into<String>) {
        let name = name.into();
        if !self.requests.programs.contains(&name) {
            self.requests.programs.push(name);
        }
    }

    /// The learning rate that was logged last: the last step's rate at a log point or at the end of
    /// an epoch. NaN before the first log point.
    pub fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    /// The factor on the learning rate of the next steps: 1 until a callback changes it. A callback
    /// sees the changes of the callbacks before it.
    pub fn learning_rate_factor(&self) -> f64 {
        self.requests.learning_rate_factor.unwrap_or(self.factors[2])
    }

    /// The learning rate that was logged last, with the factor of the next steps.
    pub(crate) fn next_learning_rate(&self) -> f64 {
        let before = self.factors[0];
        if before == 0.0 {
            self.learning_rate
        } else {
            self.learning_rate * (self.learning_rate_factor() / before)
        }
    }

    /// Sets the factor on the learning rate of the next steps. If several callbacks change the
    /// rate, multiply [`Actions::learning_rate_factor`] by yours. The step takes the factor as an
    /// input, so nothing is compiled again. Only callbacks that [declare
    /// it](crate::Callback::changes_learning_rate) may call this.
    pub fn set_learning_rate_factor(&mut self, factor: f64) {
        self.requests.learning_rate_factor = Some(factor);
    }

    /// Ends the fit now, or as soon as `min_epochs` and `min_steps` allow it. The Trainer shows the
    /// reason.
    pub fn stop(&mut self, reason: impl Into<String>) {
        self.requests.stop.get_or_insert(reason.into());
    }

    /// Ends the fit with a usage error. With several processes, all of them end.
    pub fn fail(&mut self, message: impl Into<String>) {
        self.failure.get_or_insert(message.into());
    }

    /// Returns the error of a callback that failed.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.failure.take().map_or(Ok(()), |message| Err(Error::usage(message)))
    }

    /// Takes the collected requests.
    pub(crate) fn take(&mut self) -> Requests {
        std::mem::take(&mut self.requests)
    }
}

impl Requests {
    /// Whether this process has requests that count: any request in process 0, and only a stop in
    /// the others.
    pub(crate) fn counts_in(&self, process: usize) -> bool {
        if process == 0 { *self != Requests::default() } else { self.stop.is_some() }
    }
}

/// Process 0 shares its requests, but not its reason to stop.
impl process_group::Shareable for Requests {
    fn to_text(&self) -> Option<String> {
        let role = |save: &Save| ROLES.iter().find(|role| role.0 == save.role).map(|role| role.1);
        let saves = self.saves.iter().map(|save| {
            Some(json!([
                save.path.to_str()?,
                role(save)?,
                save.weights_only,
                save.score.map(f64::to_bits)
            ]))
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

    fn from_text(text: &str) -> Option<Requests> {
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
        Some(Requests {
            saves: list("saves")?.iter().map(save).collect::<Option<_>>()?,
            removals: list("removals")?
                .iter()
                .map(|path| Some(text(path)?.into()))
                .collect::<Option<_>>()?,
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
    use crate::process_group::Shareable as _;

    #[test]
    fn requests_survive_the_exchange_between_processes() {
        let mut actions = Actions::new(1.0);
        assert!(!actions.requests.counts_in(0));
        actions.stop("enough");
        assert!(actions.requests.counts_in(1));
        actions.save_checkpoint("a/last", CheckpointRole::Last);
        actions.save_weights("b/{step}", CheckpointRole::Best);
        actions.save_checkpoint("a/last", CheckpointRole::Last);
        actions.remove_checkpoint("c");
        actions.validate();
        actions.run_program("samples");
        actions.run_program("samples");
        actions.set_learning_rate_factor(0.1);
        let requests = actions.take();
        assert_eq!((requests.saves.len(), requests.programs.len()), (2, 1));
        let received = Requests::from_text(&requests.to_text().unwrap()).unwrap();
        assert_eq!(received, Requests { stop: None, ..requests });
        assert!(!received.counts_in(1) && received.counts_in(0));
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
