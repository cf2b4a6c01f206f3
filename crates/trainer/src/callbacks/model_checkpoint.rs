//! [`ModelCheckpoint`]: decides when a run is saved, under which names, and which files are kept.
//!
//! The code that reads the state from the devices and writes it is in `checkpoint/save.rs`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fulmen_checkpoint::{Checkpoint, FileName, ListedCheckpoint, list, open_store};
use serde_json::{Value, json};

use super::Mode;
use super::monitor::Monitored;
use crate::callbacks::callback::Callback;
use crate::checkpoint::{locations, saved_paths};
use crate::hooks::{CheckpointFile, FitStart, Progress};
use crate::{Actions, CheckpointRole, Error, LogPoint};

/// The default of [`ModelCheckpoint::train_time_interval`].
const INTERVAL: Duration = Duration::from_secs(30 * 60);

/// Saves the training state to the folder `checkpoints/last` of the run: after each epoch, after
/// each validation, and every half hour within a long epoch. With a metric it keeps the best states
/// too.
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
#[must_use]
pub struct ModelCheckpoint {
    monitor: Option<(Monitored, Mode)>,
    strict: bool,
    top_k: u64,
    filename: Option<String>,
    keep_all: bool,
    every_n_steps: Option<u64>,
    every_n_epochs: u64,
    interval: Duration,
    weights_only: bool,
    on_exception: bool,
    /// The checkpoint folder of the running fit. The fields below belong to this fit too.
    folder: PathBuf,
    within_epoch: bool,
    /// The values and paths of the best states, the best first.
    best: Vec<(f64, PathBuf)>,
    /// States that the run which this one resumes had dropped, but not removed before it was killed.
    leftovers: Vec<PathBuf>,
    /// The step at which the metric was last compared.
    compared_step: Option<u64>,
    /// The step at which `every_n_steps` last saved.
    saved_step: u64,
    saved_time: Option<Instant>,
}

impl Default for ModelCheckpoint {
    fn default() -> ModelCheckpoint {
        ModelCheckpoint {
            monitor: None,
            strict: true,
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
            best: Vec::new(),
            leftovers: Vec::new(),
            compared_step: None,
            saved_step: 0,
            saved_time: None,
        }
    }
}

impl ModelCheckpoint {
    /// Saves only the last state.
    pub fn new() -> ModelCheckpoint {
        ModelCheckpoint::default()
    }

    /// Also keeps the state with the best value of a metric, as `best`.
    pub fn monitor(mut self, metric: impl Into<String>, mode: Mode) -> ModelCheckpoint {
        self.monitor = Some((Monitored::new("ModelCheckpoint", metric), mode));
        self
    }

    /// Sets whether a missing metric is an error (the default) or only a warning. It is missing if
    /// an epoch ends without it, and no validation has logged it although every validation set has
    /// run. As in Lightning, it is only a warning in a fit without validation.
    pub fn strict(mut self, strict: bool) -> ModelCheckpoint {
        self.strict = strict;
        self
    }

    /// Sets how many of the best states are kept; 1 by default. If more than one is kept, their
    /// names come from [`filename`](ModelCheckpoint::filename). States that are no longer among the
    /// best are removed.
    pub fn save_top_k(mut self, k: u64) -> ModelCheckpoint {
        self.top_k = k;
        self
    }

    /// Sets the names of the best states and of those that [`keep_all`](ModelCheckpoint::keep_all)
    /// keeps.
    ///
    /// In the pattern, `{NAME}` becomes `NAME=VALUE`, for `epoch`, `step` and each metric that is
    /// logged then. `{NAME:.2f}` has two digits after the decimal point, and `{NAME:03d}` three
    /// before it. The default is `{epoch}-{step}`, and `best` for a single best state.
    pub fn filename(mut self, pattern: impl Into<String>) -> ModelCheckpoint {
        self.filename = Some(pattern.into());
        self
    }

    /// Also keeps each state that is saved after a number of steps or epochs, under its own name.
    pub fn keep_all(mut self, keep: bool) -> ModelCheckpoint {
        self.keep_all = keep;
        self
    }

    /// Also saves every `steps` optimizer steps.
    pub fn every_n_train_steps(mut self, steps: u64) -> ModelCheckpoint {
        self.every_n_steps = Some(steps);
        self
    }

    /// Saves at the end of every `epochs`-th epoch; of each epoch by default. The monitored metric
    /// is still compared at the end of each epoch.
    pub fn every_n_epochs(mut self, epochs: u64) -> ModelCheckpoint {
        self.every_n_epochs = epochs;
        self
    }

    /// Sets the longest time between two saves; half an hour by default. `Duration::MAX` turns this
    /// limit off.
    pub fn train_time_interval(mut self, interval: Duration) -> ModelCheckpoint {
        self.interval = interval;
        self
    }

    /// Saves only the weights for the best states and for those that
    /// [`keep_all`](ModelCheckpoint::keep_all) keeps. `last` still has the whole state, so that the
    /// run can be resumed.
    pub fn save_weights_only(mut self, weights_only: bool) -> ModelCheckpoint {
        self.weights_only = weights_only;
        self
    }

    /// Also saves the state as `exception` when the fit fails. It doesn't save after a NaN or
    /// infinity, or with several processes.
    pub fn save_on_exception(mut self, save: bool) -> ModelCheckpoint {
        self.on_exception = save;
        self
    }

    fn save_last(&mut self, actions: &mut Actions) {
        actions.save_checkpoint(self.folder.join("last"), CheckpointRole::Last);
        for path in self.leftovers.drain(..) {
            actions.remove_checkpoint(path);
        }
    }

    /// Saves to a checkpoint other than `last`.
    fn save(&self, path: &Path, role: CheckpointRole, actions: &mut Actions) {
        if self.weights_only {
            actions.save_weights(path, role);
        } else {
            actions.save_checkpoint(path, role);
        }
    }

    fn pattern(&self) -> FileName {
        // The pattern was checked when the Trainer was built.
        FileName::parse(self.filename.as_deref().unwrap_or("{epoch}-{step}")).unwrap_or_default()
    }

    /// Saves after a number of steps or epochs. `point` has the values of the epoch.
    fn save_numbered(&mut self, point: Option<&LogPoint>, actions: &mut Actions) {
        if self.keep_all {
            // The Trainer fills in the numbers when it saves.
            let name = self
                .pattern()
                .fill(|name| point.filter(|_| !is_counter(name)).map(|point| metric(point, name)));
            self.save(&self.folder.join(name), CheckpointRole::Extra, actions);
        }
        self.save_last(actions);
    }

    /// Saves the state if the value of the monitored metric is among the best.
    fn compare(&mut self, value: f64, point: &LogPoint, actions: &mut Actions) {
        let Some((_, mode)) = self.monitor else { return };
        self.compared_step = Some(point.global_step);
        let rank = self
            .best
            .iter()
            .position(|(best, _)| mode.is_better(value, Some(*best), 0.0))
            .unwrap_or(self.best.len());
        if value.is_nan() || rank as u64 >= self.top_k {
            return;
        }
        let path = self.best_path(point);
        self.best.insert(rank, (value, path.clone()));
        let role = if rank == 0 { CheckpointRole::Best } else { CheckpointRole::Extra };
        self.save(&path, role, actions);
        actions.set_score(value);
        while self.best.len() as u64 > self.top_k {
            // Files that an earlier run wrote are kept.
            if let Some((_, worst)) = self
                .best
                .pop()
                .filter(|(_, worst)| *worst != path && saved_paths::is_in(worst, &self.folder))
            {
                actions.remove_checkpoint(worst);
            }
        }
    }

    /// The states next to a resumed checkpoint that had a value of the metric before it was saved, but
    /// were no longer among the best. A run removes such a state when its next one is complete; if it
    /// was killed in between, the state is still there.
    fn dropped_before(&self, resumed: &CheckpointFile) -> Vec<PathBuf> {
        let Some(folder) = resumed.path.parent() else { return Vec::new() };
        if locations::is_address(folder) && folder != self.folder {
            return Vec::new();
        }
        let Ok(listed) = open_store(folder).and_then(|store| list(&store)) else {
            return Vec::new();
        };
        let is_dropped = |listed: &ListedCheckpoint| {
            let Ok(checkpoint) = &listed.checkpoint else { return false };
            let run = &checkpoint.manifest().run;
            // Only states that were saved for their value have one.
            run.score.is_some() && run.step <= resumed.global_step
        };
        let dropped = listed.iter().filter(|listed| is_dropped(listed));
        dropped
            .filter(|listed| !["last", "best", "exception"].contains(&listed.name.as_str()))
            .map(|listed| folder.join(&listed.name))
            .filter(|path| *path != resumed.path)
            .filter(|path| !self.best.iter().any(|(_, kept)| kept.file_name() == path.file_name()))
            .collect()
    }

    /// A path that differs from the paths of the other best states.
    fn best_path(&self, point: &LogPoint) -> PathBuf {
        // States that keep_all keeps are named by the pattern.
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

/// Whether a name in a pattern is a counter, which the Trainer fills in itself.
fn is_counter(name: &str) -> bool {
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

    fn config_error(&self) -> Option<String> {
        let has_metric =
            || self.filename.is_some() && self.pattern().names().any(|name| !is_counter(name));
        let saves_others = self.monitor.is_some() || self.keep_all;
        if let Some(pattern) = &self.filename {
            let reserved = ["last", "best", "exception"].contains(&pattern.as_str());
            let error =
                reserved.then(|| "the Trainer reserves this name; choose another".to_owned());
            if let Some(error) = error.or_else(|| FileName::parse(pattern).err()) {
                return Some(format!("filename `{pattern}`: {error}"));
            }
        }
        let checks = [
            (
                self.top_k == 0,
                "save_top_k is 0, so no best state is kept; leave out monitor, or keep at least 1",
            ),
            (
                self.top_k > 1 && self.monitor.is_none(),
                "save_top_k keeps the best states, but no metric says which are best; set monitor",
            ),
            (
                self.top_k > 1 && self.keep_all,
                "save_top_k removes states that keep_all keeps; set only one of the two",
            ),
            (
                self.keep_all && self.every_n_steps.is_some() && has_metric(),
                "filename has a metric, but a state that every_n_train_steps saves has none; remove it from filename",
            ),
            (
                self.filename.is_some() && !saves_others,
                "filename has no effect on the last state, the only one that is saved; set monitor or keep_all",
            ),
            (
                self.weights_only && !saves_others,
                "save_weights_only has no effect on the last state, the only one that is saved; set monitor or keep_all",
            ),
            (self.every_n_steps == Some(0), "every_n_train_steps must be at least 1"),
            (self.every_n_epochs == 0, "every_n_epochs must be at least 1"),
            (self.interval.is_zero(), "train_time_interval must be more than 0 seconds"),
        ];
        checks.iter().find(|(invalid, _)| *invalid).map(|(_, message)| (*message).to_owned())
    }

    fn on_fit_start(&mut self, start: &FitStart) {
        self.folder = start.checkpoint_dir.clone().unwrap_or_default();
        self.within_epoch = start.resumes_within_epoch;
        self.best.clear();
        self.leftovers.clear();
        (self.compared_step, self.saved_step) = (None, start.global_step);
        self.saved_time = Some(Instant::now());
        if let Some((metric, _)) = &mut self.monitor {
            metric.strict = self.strict;
            metric.needs_validation = true;
            metric.start_fit();
        }
    }

    fn load_state(&mut self, state: &Value) {
        // The states were checked when the checkpoint was opened. Checkpoints that were removed since
        // are left out; the address of another store is not asked.
        let is_removed = |path: &Path| {
            let may_ask = !locations::is_address(path) || saved_paths::is_in(path, &self.folder);
            may_ask && Checkpoint::open_folder(path).is_err_and(|error| error.is_not_found())
        };
        let known = saved_paths::best_states(state).unwrap_or_default().into_iter();
        self.best = known
            .filter(|best| !is_removed(&best.path))
            .map(|best| (best.value, best.path))
            .collect();
    }

    fn on_load_checkpoint(&mut self, resumed: &CheckpointFile) {
        if self.monitor.is_some() {
            self.leftovers = self.dropped_before(resumed);
        }
    }

    fn on_train_batch_end(&mut self, progress: &Progress, actions: &mut Actions) {
        if !self.within_epoch {
            return;
        }
        let step = progress.global_step;
        if step != self.saved_step
            && self.every_n_steps.is_some_and(|steps| step.is_multiple_of(steps))
        {
            self.saved_step = step;
            self.save_numbered(None, actions);
        } else if self.saved_time.is_some_and(|time| time.elapsed() >= self.interval) {
            self.saved_time = Some(Instant::now());
            self.save_last(actions);
        }
    }

    fn on_validation_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        if !actions.is_fitting() {
            return;
        }
        if let Some((metric, _)) = &mut self.monitor
            && let Some(value) = metric.in_validation(point)
        {
            self.compare(value, point, actions);
        }
        if self.within_epoch {
            self.save_last(actions);
        }
    }

    fn on_train_epoch_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        if self.compared_step != Some(point.global_step)
            && let Some((metric, _)) = &mut self.monitor
            && let Some(value) = metric.at_epoch_end(point, actions)
        {
            self.compare(value, point, actions);
        }
        if (point.epoch + 1).is_multiple_of(self.every_n_epochs) {
            self.save_numbered(Some(point), actions);
        }
    }

    fn on_save_checkpoint(&mut self, _: &CheckpointFile) {
        self.saved_time = Some(Instant::now());
    }

    fn on_exception(&mut self, error: &Error, actions: &mut Actions) {
        if self.on_exception && error.not_finite_step().is_none() {
            actions.save_checkpoint(self.folder.join("exception"), CheckpointRole::Extra);
        }
    }

    fn state(&self) -> Option<Value> {
        // As bits: JSON has no infinity.
        let best = self.best.iter().map(|(value, path)| json!([value.to_bits(), path.to_str()]));
        Some(json!({ "best": best.collect::<Vec<_>>() }))
    }
}
