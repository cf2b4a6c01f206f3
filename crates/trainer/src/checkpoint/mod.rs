//! Checkpoints: folders of `fulmen-checkpoint` with the whole training state and the position of
//! the training.
//!
//! The module's tensors keep their names (`conv1.weight`). The names of optimizer state and
//! counters begin with `optimizer/` and `trainer/`.

mod agreement;
pub(crate) mod locations;
pub(crate) mod named_checkpoint;
pub(crate) mod restore;
pub(crate) mod resume;
pub(crate) mod run_config;
pub(crate) mod save;
pub(crate) mod saved_paths;
pub(crate) mod user_values;
pub(crate) mod weights;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fulmen_checkpoint::{Checkpoint, LocalStore, Run, Store, remove_unfinished, verify};
use fulmen_durable::NewFile;
use fulmen_tensor::Mesh;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::checkpoint::run_config::RunConfig;
use crate::checkpoint::user_values::UserValues;
use crate::logs::Sums;
use crate::position::{BatchPosition, StepPosition};
use crate::{Options, Result, error};

/// Opens the store of a folder of checkpoints.
pub(crate) type OpenStore = Arc<dyn Fn(&Path) -> Arc<dyn Store> + Send + Sync>;

/// The store of a local or mounted folder.
pub(crate) fn local(folder: &Path) -> Arc<dyn Store> {
    Arc::new(LocalStore::new(folder))
}

/// Splits the path of a checkpoint into its store and its name there.
pub(crate) fn store_and_name(
    open: impl Fn(&Path) -> Arc<dyn Store>,
    path: &Path,
) -> Result<(Arc<dyn Store>, String)> {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or_else(|| error::checkpoint(path, "its name is not that of a folder, in UTF-8"))?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok((open(parent.unwrap_or(Path::new("."))), name.to_owned()))
}

/// The position of a training when a checkpoint was saved.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Position {
    /// The program that wrote the checkpoint; empty if there is none.
    pub(crate) program: String,
    /// Finished epochs.
    pub(crate) epoch: u64,
    /// Finished batches of the current epoch.
    pub(crate) batch: u64,
    /// Finished optimizer steps.
    pub(crate) global_step: u64,
    /// The seed of the run.
    pub(crate) seed: u64,
    /// The number of batches per optimizer step.
    pub(crate) batches_per_step: u64,
    /// A description of the rule of the evaluated weights, if any.
    pub(crate) evaluated: Option<String>,
    /// The factor by which callbacks multiplied the learning rate, if they did.
    pub(crate) lr_factor: Option<f64>,
    /// Seconds of training, if `max_time` limits the run.
    pub(crate) seconds: Option<f64>,
    /// The loader's description of the batches that `batch` counts.
    pub(crate) data: String,
    /// The sums that the current epoch logged up to its last log point.
    pub(crate) epoch_sums: Sums,
    /// The names of the values in the tensor [`LOGS`](crate::state::names::LOGS), which were logged
    /// after that log point.
    pub(crate) log_names: Vec<String>,
    /// The validation sets that are due.
    pub(crate) validation: Vec<String>,
    /// Whether the checkpoint has only the module's weights.
    pub(crate) weights_only: bool,
    /// The best checkpoint so far.
    pub(crate) best_checkpoint: Option<PathBuf>,
    /// The state of each callback that has one, by its name.
    pub(crate) callbacks: BTreeMap<String, Value>,
    /// The configuration of the run.
    pub(crate) run_config: RunConfig,
    /// The values of a user's own loop.
    pub(crate) values: UserValues,
}

impl Position {
    /// The position for log points.
    pub(crate) fn step(&self) -> StepPosition {
        StepPosition { epoch: self.epoch, global_step: self.global_step }
    }

    /// The position among the batches.
    pub(crate) fn batch(&self) -> BatchPosition {
        BatchPosition { epoch: self.epoch, batch: self.batch }
    }

    /// The path of the best checkpoint so far, from the metadata of the checkpoint at `path`. If
    /// their folder was moved, the best one is in the same folder as `path`.
    pub(crate) fn best(&self, path: &Path) -> Option<PathBuf> {
        let best = self.best_checkpoint.as_ref()?;
        let sibling = path.with_file_name(best.file_name()?);
        [best.clone(), sibling]
            .into_iter()
            .find(|path| path.exists() || locations::is_address(path) && open(path).is_ok())
    }
}

/// The description of the training for the manifest of a checkpoint.
pub(crate) fn run(position: &Position, options: &Options, mesh: &Mesh) -> Run {
    let sums: Vec<Value> = position
        .epoch_sums
        .sums
        .iter()
        // As bits: a sum may be NaN or infinite, which JSON cannot represent.
        .map(|(key, sums)| json!([key, sums.iter().map(|sum| bits(sum)).collect::<Vec<_>>()]))
        .collect();
    let training = json!({
        "program": program(),
        "batch": position.batch,
        "batches_per_step": position.batches_per_step,
        "weight_averaging": position.evaluated,
        "learning_rate_factor": position.lr_factor.map(f64::to_bits),
        "seed": position.seed,
        "seconds": position.seconds.map(f64::to_bits),
        "data": position.data,
        "epoch_sums": sums,
        "epoch_learning_rate": position.epoch_sums.learning_rate().to_bits(),
        "epoch_bad_step": position.epoch_sums.bad_step,
        "log_names": position.log_names,
        "validation_due": position.validation,
        "weights_only": position.weights_only,
        "best_checkpoint": position.best_checkpoint.as_deref().and_then(Path::to_str),
        "callbacks": position.callbacks,
        "arguments": position.run_config.arguments,
        "values": position.values.to_json(),
    });
    let options = options.values().into_iter().map(|(name, value)| (name.to_owned(), value.into()));
    Run {
        step: position.global_step,
        epoch: position.epoch,
        score: None,
        mesh: mesh.axes().iter().map(|(axis, size)| (axis.clone(), *size as u64)).collect(),
        options: options.collect(),
        hyperparameters: position.run_config.hyperparameters.clone(),
        versions: BTreeMap::from([("fulmen".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]),
        training: training.as_object().cloned().unwrap_or_default(),
    }
}

fn bits(sum: &[f64]) -> Vec<u64> {
    sum.iter().map(|v| v.to_bits()).collect()
}

/// Opens a checkpoint, without reading its values.
pub(crate) fn open(path: &Path) -> Result<(Checkpoint, Position)> {
    let checkpoint = Checkpoint::open_folder(path).map_err(error::checkpoint_file)?;
    let position = position(&checkpoint.manifest().run).map_err(|e| error::unreadable(path, e))?;
    Ok((checkpoint, position))
}

/// Reads the whole checkpoint to verify it.
pub(crate) fn verify_checkpoint(path: &Path) -> Result<()> {
    verify(&open(path)?.0)
        .into_iter()
        .next()
        .map_or(Ok(()), |error| Err(error::checkpoint_file(error)))
}

/// Reads the configuration of the run that wrote a checkpoint. It is empty for a weight file.
pub(crate) fn run_config(path: &Path) -> Result<RunConfig> {
    if path.is_file() { Ok(RunConfig::default()) } else { Ok(open(path)?.1.run_config) }
}

/// Reads the hyperparameters from a checkpoint, as
/// [`TrainerBuilder::hyperparameters`](crate::TrainerBuilder::hyperparameters) saved them.
///
/// # Errors
/// The file cannot be read, has no hyperparameters, or its hyperparameters don't fit `T`.
pub fn load_hyperparameters<T: DeserializeOwned>(path: impl AsRef<Path>) -> Result<T> {
    let path = path.as_ref();
    let hyperparameters = run_config(path)?.hyperparameters;
    if hyperparameters.is_empty() {
        let message = "it has no hyperparameters; the run that wrote it did not call TrainerBuilder::hyperparameters";
        return Err(error::checkpoint(path, message));
    }
    serde_json::from_value(Value::Object(hyperparameters)).map_err(|e| {
        error::checkpoint(path, format!("its hyperparameters don't have the requested type: {e}"))
    })
}

/// The name of this program. It distinguishes its checkpoints from those of other programs under
/// the same root folder.
fn program() -> String {
    let path = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn position(run: &Run) -> Result<Position, String> {
    let document = &run.training;
    let field = |name, expected| Field {
        name,
        expected,
        value: document.get(name).unwrap_or(&Value::Null),
    };
    let number = |name| {
        let number = field(name, "a whole number").required(Value::as_u64)?;
        saved_paths::count(name, number)
    };
    let float =
        |name| field(name, "the bits of a number").optional(|v| v.as_u64().map(f64::from_bits));
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let lr_factor = float("learning_rate_factor")?;
    if let Some(factor) = lr_factor.filter(|factor| !factor.is_finite()) {
        return Err(format!(
            "its metadata `learning_rate_factor` is {factor}, expected a finite number"
        ));
    }
    let batches_per_step = number("batches_per_step")?;
    if batches_per_step == 0 {
        return Err("its metadata `batches_per_step` is 0, expected at least 1".into());
    }
    let sums = field("epoch_sums", "a list of names, each with lists of numbers");
    let names = field("log_names", "a list of texts");
    let arguments =
        field("arguments", "an object").optional(|v| v.as_object().cloned())?.unwrap_or_default();
    let callbacks: BTreeMap<String, Value> =
        field("callbacks", "an object with the state of each callback")
            .optional(|v| Some(v.as_object()?.clone().into_iter().collect()))?
            .unwrap_or_default();
    callbacks.get("ModelCheckpoint").map_or(Ok(Vec::new()), saved_paths::best_states)?;
    Ok(Position {
        program: field("program", "a text").required(text)?,
        epoch: saved_paths::count("epoch", run.epoch)?,
        batch: number("batch")?,
        global_step: saved_paths::count("global_step", run.step)?,
        batches_per_step,
        evaluated: field("weight_averaging", "a text").optional(text)?,
        lr_factor,
        seed: field("seed", "a whole number").required(Value::as_u64)?,
        seconds: float("seconds")?.filter(|seconds| *seconds >= 0.0),
        data: field("data", "a text").required(text)?,
        log_names: names.optional(|v| list(v, text))?.unwrap_or_default(),
        validation: field("validation_due", "a list of texts")
            .optional(|v| list(v, text))?
            .unwrap_or_default(),
        weights_only: field("weights_only", "true or false")
            .optional(Value::as_bool)?
            .unwrap_or_default(),
        best_checkpoint: field("best_checkpoint", "a path")
            .optional(text)?
            .map(|text| saved_paths::path(&text))
            .transpose()
            .map_err(|e| format!("its metadata `best_checkpoint` is {e}"))?,
        epoch_sums: Sums {
            index_fault: None,
            bad_step: field("epoch_bad_step", "a whole number").optional(Value::as_u64)?,
            anomaly: None,
            optimizers: vec![[float("epoch_learning_rate")?, None]],
            monitored: Vec::new(),
            sums: sums.optional(|v| list(v, row))?.unwrap_or_default(),
        },
        callbacks,
        run_config: RunConfig {
            hyperparameters: run.hyperparameters.clone(),
            arguments,
            config: None,
        },
        values: UserValues::from_json(document.get("values").unwrap_or(&Value::Null))?,
    })
}

/// A field of the metadata.
struct Field<'a> {
    name: &'static str,
    expected: &'static str,
    value: &'a Value,
}

impl Field<'_> {
    fn required<T>(&self, read: impl FnOnce(&Value) -> Option<T>) -> Result<T, String> {
        if self.value.is_null() {
            return Err(format!("its metadata lacks `{}`, {}", self.name, self.expected));
        }
        read(self.value).ok_or_else(|| {
            let actual: String = self.value.to_string().chars().take(80).collect();
            format!("its metadata `{}` is {actual}, expected {}", self.name, self.expected)
        })
    }

    fn optional<T>(&self, read: impl FnOnce(&Value) -> Option<T>) -> Result<Option<T>, String> {
        if self.value.is_null() { Ok(None) } else { self.required(read).map(Some) }
    }
}

fn list<T>(value: &Value, element: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    value.as_array()?.iter().map(element).collect()
}

/// A row of `epoch_sums`: a key, and the elements of each sum by their bits.
fn row(row: &Value) -> Option<(String, Vec<Vec<f64>>)> {
    let element = |value: &Value| value.as_u64().map(f64::from_bits);
    Some((row[0].as_str()?.to_owned(), list(&row[1], |sum| list(sum, element))?))
}

/// Checks that checkpoints can be written to a folder, and creates the folder if needed. While the
/// returned file exists, other programs know that this run is alive, and don't remove its files.
pub(crate) fn check_writable(folder: &Path) -> Result<NewFile> {
    let written = std::fs::create_dir_all(folder).and_then(|()| {
        // This file never gets its final name.
        let mut probe = NewFile::create(&folder.join("probe"))?;
        std::io::Write::write_all(&mut probe, b"probe")?;
        Ok(probe)
    });
    written.map_err(|e| {
        error::checkpoint(
            folder,
            format!(
                "cannot write to the folder ({e}); choose another with default_root_dir, or turn \
                     enable_checkpointing off"
            ),
        )
    })
}

/// Creates a new folder `version_N` under `root`, where N follows the largest number there. It also
/// removes unfinished files of killed runs.
pub(crate) fn new_version_folder(root: &Path) -> Result<PathBuf> {
    let failed = |e: std::io::Error| {
        error::checkpoint(
            root,
            format!("cannot create a folder for this run ({e}); choose another default_root_dir"),
        )
    };
    std::fs::create_dir_all(root).map_err(failed)?;
    let before = runs(root)?;
    before.iter().for_each(|(_, folder)| remove_unfinished_files(folder));
    let first = before.first().map_or(Some(0), |(n, _)| n.checked_add(1));
    for n in first.into_iter().flat_map(|first| first..=u64::MAX) {
        let folder = root.join(format!("version_{n}"));
        match std::fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(failed(e)),
        }
    }
    Err(error::checkpoint(root, "there is no free number for a version folder"))
}

/// Removes unfinished files of a killed run. Files that cannot be removed, such as those of another
/// user, only use disk space.
fn remove_unfinished_files(run: &Path) {
    let checkpoints = run.join("checkpoints");
    let entries = || {
        std::fs::read_dir(&checkpoints).into_iter().flatten().flatten().map(|entry| entry.path())
    };
    for folder in [run.to_owned(), checkpoints.clone()]
        .into_iter()
        .chain(entries().filter(|path| path.is_dir()))
    {
        let _ = fulmen_durable::remove_leftovers(&folder);
    }
    // A run that is alive has a temporary file there.
    if !entries().any(|path| fulmen_durable::is_temporary(&path)) {
        let _ = remove_unfinished(&local(&checkpoints));
    }
}

/// The folders `version_N` with their numbers, the newest first.
pub(crate) fn runs(root: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let entries = match std::fs::read_dir(root) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => {
            return Err(error::checkpoint(root, format!("cannot read the folder of runs ({e})")));
        }
    };
    let number = |path: &Path| path.file_name()?.to_str()?.strip_prefix("version_")?.parse().ok();
    let mut runs: Vec<(u64, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| Some((number(&entry.path())?, entry.path())))
        .collect();
    runs.sort_unstable_by(|a, b| b.cmp(a));
    Ok(runs)
}
