//! [`ModelCheckpoint`]: when a run is saved, under which names, and which files are kept.
//!
//! Not here: how a checkpoint is read from the devices and written.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fulmen_checkpoint::{Checkpoint, FileName};
use serde_json::{Value, json};

use super::Mode;
use super::monitor::monitored;
use crate::callbacks::callback::Callback;
use crate::hooks::{CheckpointFile, FitStart, Progress};
use crate::{Actions, CheckpointRole, Error, LogPoint};

/// How long a run goes unsaved at most, unless it is told otherwise.
const INTERVAL: Duration = Duration::from_secs(30 * 60);

/// Saves the training state to the folder `checkpoints/last` of the run: after each epoch, each validation, and
/// within a long epoch every half an hour. With a metric it keeps the best states too.
///
/// ```
/// use std::time::Duration;
/// use fulmen_trainer::callbacks::{Mode, ModelCheckpoint};
///
/// let checkpoint = ModelCheckpoint::new()
///     .monitor("val_acc", Mode::Max)
///     .save_top_k(3)
///     .filename("{epoch}-{step}-{val_acc:.3f}") // epoch=2-step=300-val_acc=0.981
///     .every_n_train_steps(500)
///     .train_time_interval(Duration::from_secs(600));
/// ```
#[derive(Debug)]
pub struct ModelCheckpoint {
    monitor: Option<(String, Mode)>,
    top_k: u64,
    filename: Option<String>,
    keep_all: bool,
    every_n_steps: Option<u64>,
    every_n_epochs: u64,
    interval: Duration,
    weights_only: bool,
    on_exception: bool,
    /// What follows is of the running fit.
    folder: PathBuf,
    within_epoch: bool,
    /// The best states, the best one first, with their values.
    best: Vec<(f64, PathBuf)>,
    /// The step of the latest judgement and of the latest state that was saved for its number.
    judged: Option<u64>,
    step: u64,
    saved: Option<Instant>,
    warned: bool,
}

impl Default for ModelCheckpoint {
    fn default() -> ModelCheckpoint {
        ModelCheckpoint {
            monitor: None,
            top_k: 1,
            filename: None,
            keep_all: false,
            every_n_steps: None,
            every_n_epochs: 1,
            interval: INTERVAL,
            weights_only: false,
            on_exception: false,
            folder: PathBuf::new(),
            within_epoch: true,
            best: vec![],
            judged: None,
            step: 0,
            saved: None,
            warned: false,
        }
    }
}

impl ModelCheckpoint {
    /// Saves the last state only.
    pub fn new() -> ModelCheckpoint {
        ModelCheckpoint::default()
    }

    /// Also keeps the state with the best value of a metric, as `best`.
    pub fn monitor(mut self, metric: impl Into<String>, mode: Mode) -> ModelCheckpoint {
        self.monitor = Some((metric.into(), mode));
        self
    }

    /// How many of the best states are kept, 1 by default. More than one have the names of
    /// [`filename`](ModelCheckpoint::filename). What is no longer among them is removed.
    pub fn save_top_k(mut self, k: u64) -> ModelCheckpoint {
        self.top_k = k;
        self
    }

    /// The names of the best states and of those that [`keep_all`](ModelCheckpoint::keep_all) keeps: a text in which
    /// `{NAME}` becomes `NAME=VALUE`, for `epoch`, `step` and any metric of the point; `{NAME:.2f}` has two digits after the
    /// point, `{NAME:03d}` three before it. By default `{epoch}-{step}`, and `best` for a single best state.
    pub fn filename(mut self, pattern: impl Into<String>) -> ModelCheckpoint {
        self.filename = Some(pattern.into());
        self
    }

    /// Also keeps each state that is saved for a number of steps or epochs, under a name of its own.
    pub fn keep_all(mut self, keep: bool) -> ModelCheckpoint {
        self.keep_all = keep;
        self
    }

    /// Also saves each time after this number of optimizer steps.
    pub fn every_n_train_steps(mut self, steps: u64) -> ModelCheckpoint {
        self.every_n_steps = Some(steps);
        self
    }

    /// Epochs between two states that are saved at the end of one, 1 by default. The best states are looked for at the end
    /// of every epoch.
    pub fn every_n_epochs(mut self, epochs: u64) -> ModelCheckpoint {
        self.every_n_epochs = epochs;
        self
    }

    /// How long a run goes unsaved at most: half an hour by default. `Duration::MAX` for as long as there is no other reason
    /// to save.
    pub fn train_time_interval(mut self, interval: Duration) -> ModelCheckpoint {
        self.interval = interval;
        self
    }

    /// Saves the weights alone for the best states and for those that [`keep_all`](ModelCheckpoint::keep_all) keeps.
    /// `last` has the whole state all the same, so that the run can be resumed.
    pub fn save_weights_only(mut self, weights_only: bool) -> ModelCheckpoint {
        self.weights_only = weights_only;
        self
    }

    /// Also saves the state when the fit fails, as `exception`; not after a NaN or infinity, nor with several
    /// processes.
    pub fn save_on_exception(mut self, save: bool) -> ModelCheckpoint {
        self.on_exception = save;
        self
    }

    fn save_last(&self, actions: &mut Actions) {
        actions.save_checkpoint(self.folder.join("last"), CheckpointRole::Last);
    }

    /// Saves to a further checkpoint, one that stays.
    fn save(&self, path: &Path, role: CheckpointRole, actions: &mut Actions) {
        match self.weights_only {
            true => actions.save_weights(path, role),
            false => actions.save_checkpoint(path, role),
        }
    }

    fn pattern(&self) -> FileName {
        // Checked when the Trainer was built.
        FileName::parse(self.filename.as_deref().unwrap_or("{epoch}-{step}")).unwrap_or_default()
    }

    /// Saves what is saved for its number of steps or epochs, after which these values were logged.
    fn save_numbered(&mut self, point: Option<&LogPoint>, actions: &mut Actions) {
        if self.keep_all {
            // The Trainer fills in the numbers when it saves.
            let name = self.pattern().fill(|name| point.filter(|_| !is_number(name)).map(|point| metric(point, name)));
            self.save(&self.folder.join(name), CheckpointRole::Extra, actions);
        }
        self.save_last(actions);
    }

    /// Saves the state if the value of the monitored metric is among the best.
    fn judge(&mut self, value: f64, point: &LogPoint, actions: &mut Actions) {
        let Some((_, mode)) = self.monitor else { return };
        self.judged = Some(point.global_step);
        let rank = self.best.iter().position(|(best, _)| mode.is_better(value, Some(*best), 0.0));
        let rank = rank.unwrap_or(self.best.len());
        if value.is_nan() || rank as u64 >= self.top_k {
            return;
        }
        let path = self.path_of_best(point);
        self.best.insert(rank, (value, path.clone()));
        let role = if rank == 0 { CheckpointRole::Best } else { CheckpointRole::Extra };
        self.save(&path, role, actions);
        actions.set_score(value);
        while self.best.len() as u64 > self.top_k {
            // What an earlier run has written stays.
            if let Some((_, worst)) =
                self.best.pop().filter(|(_, worst)| *worst != path && worst.starts_with(&self.folder))
            {
                actions.remove_checkpoint(worst);
            }
        }
    }

    /// A path that no other of the best states has.
    fn path_of_best(&self, point: &LogPoint) -> PathBuf {
        // Those that keep_all keeps have the names of the pattern.
        if self.top_k == 1 && (self.filename.is_none() || self.keep_all) {
            return self.folder.join("best");
        }
        let name = self.pattern().fill(|name| match name {
            "epoch" => Some(point.epoch as f64),
            "step" => Some(point.global_step as f64),
            name => Some(metric(point, name)),
        });
        let versions = std::iter::once(String::new()).chain((1..).map(|n| format!("-v{n}")));
        let mut paths = versions.map(|version| self.folder.join(format!("{name}{version}")));
        let free = |path: &PathBuf| !self.best.iter().any(|(_, taken)| taken == path);
        paths.find(free).unwrap_or_default()
    }
}

/// Whether a name in a pattern is that of a number which the Trainer knows.
fn is_number(name: &str) -> bool {
    name == "epoch" || name == "step"
}

/// The value of a metric in a file name.
fn metric(point: &LogPoint, name: &str) -> f64 {
    point.get(name).unwrap_or(f64::NAN)
}

impl Callback for ModelCheckpoint {
    fn name(&self) -> &'static str {
        "ModelCheckpoint"
    }

    fn refusal(&self) -> Option<String> {
        let has_metric = || self.filename.is_some() && self.pattern().names().any(|name| !is_number(name));
        let further = self.monitor.is_some() || self.keep_all;
        if let Some(pattern) = &self.filename {
            let taken = ["last", "best", "exception"].contains(&pattern.as_str());
            let why = taken.then(|| "the Trainer has a file of this name; choose another".to_owned());
            if let Some(why) = why.or_else(|| FileName::parse(pattern).err()) {
                return Some(format!("filename `{pattern}`: {why}"));
            }
        }
        let refused = [
            (
                self.top_k == 0,
                "save_top_k is 0, which keeps none of the best states; leave out monitor, or keep at least 1",
            ),
            (
                self.top_k > 1 && self.monitor.is_none(),
                "save_top_k keeps the best states, and no metric says which they are; give monitor",
            ),
            (self.top_k > 1 && self.keep_all, "save_top_k removes states that keep_all keeps; give one of the two"),
            (
                self.keep_all && self.every_n_steps.is_some() && has_metric(),
                "filename has a metric, and a state that is kept for its number of steps has none; leave it out",
            ),
            (
                self.filename.is_some() && !further,
                "filename names further states than the last; give monitor or keep_all",
            ),
            (
                self.weights_only && !further,
                "save_weights_only is about further states than the last; give monitor or keep_all",
            ),
            (self.every_n_steps == Some(0), "every_n_train_steps must be at least 1"),
            (self.every_n_epochs == 0, "every_n_epochs must be at least 1"),
            (self.interval.is_zero(), "train_time_interval must be more than nothing"),
        ];
        refused.iter().find(|(wrong, _)| *wrong).map(|(_, why)| (*why).to_owned())
    }

    fn on_fit_start(&mut self, start: &FitStart) {
        self.folder = start.checkpoint_dir.clone().unwrap_or_default();
        self.within_epoch = start.resumes_within_epoch;
        self.best.clear();
        (self.judged, self.step) = (None, start.global_step);
        self.saved = Some(Instant::now());
    }

    fn load_state(&mut self, state: &Value) {
        let list = state["best"].as_array().into_iter().flatten();
        let known = list.filter_map(|best| Some((f64::from_bits(best[0].as_u64()?), PathBuf::from(best[1].as_str()?))));
        // Not what was removed since.
        self.best =
            known.filter(|(_, path)| !Checkpoint::open_folder(path).is_err_and(|error| error.is_not_found())).collect();
    }

    fn on_train_batch_end(&mut self, progress: &Progress, actions: &mut Actions) {
        if !self.within_epoch {
            return;
        }
        let step = progress.global_step;
        if step != self.step && self.every_n_steps.is_some_and(|steps| step.is_multiple_of(steps)) {
            self.step = step;
            self.save_numbered(None, actions);
        } else if self.saved.is_some_and(|saved| saved.elapsed() >= self.interval) {
            self.saved = Some(Instant::now());
            self.save_last(actions);
        }
    }

    fn on_validation_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        if !actions.is_fitting() {
            return;
        }
        let value = self.monitor.as_ref().and_then(|(metric, _)| point.get(metric));
        if let Some(value) = value {
            // The end of an epoch may well be without it then.
            self.warned = true;
            self.judge(value, point, actions);
        }
        if self.within_epoch {
            self.save_last(actions);
        }
    }

    fn on_train_epoch_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        if let Some((metric, _)) = self.monitor.as_ref().filter(|_| self.judged != Some(point.global_step))
            && let Some(value) = monitored(point, metric, "ModelCheckpoint", &mut self.warned)
        {
            self.judge(value, point, actions);
        }
        if (point.epoch + 1).is_multiple_of(self.every_n_epochs) {
            self.save_numbered(Some(point), actions);
        }
    }

    fn on_save_checkpoint(&mut self, _: &CheckpointFile) {
        self.saved = Some(Instant::now());
    }

    fn on_exception(&mut self, error: &Error, actions: &mut Actions) {
        if self.on_exception && error.not_finite_step().is_none() {
            actions.save_checkpoint(self.folder.join("exception"), CheckpointRole::Extra);
        }
    }

    fn state(&self) -> Option<Value> {
        // By the bits, as a value may be infinite.
        let best = self.best.iter().map(|(value, path)| json!([value.to_bits(), path.to_str()]));
        Some(json!({ "best": best.collect::<Vec<_>>() }))
    }
}
