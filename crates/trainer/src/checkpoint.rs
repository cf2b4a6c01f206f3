//! Checkpoints: one safetensors file with the whole training state, and where training stood as its metadata.
//!
//! The module's tensors have their own names (`conv1.weight`), so the file also loads as weights, by
//! `load_weights` with `Strictness::Lenient` and in PyTorch with `strict=False`: optimizer state and counters stand
//! beside them under `optimizer/…` and `trainer/…`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fulmen_nn::safetensors;
use fulmen_tensor::Literal;
use serde_json::{Value, json};

use crate::logs::Sums;
use crate::{Error, Result};

/// Where training stood.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Position {
    /// Finished epochs.
    pub(crate) epoch: u64,
    /// Finished batches of the epoch that had begun.
    pub(crate) batch: u64,
    /// Finished optimizer steps.
    pub(crate) global_step: u64,
    /// The seed of the run.
    pub(crate) seed: u64,
    /// Batches for which the optimizer stepped once.
    pub(crate) accumulate: u64,
    /// The rule by which weights were averaged, in words; `None` also in files of earlier versions.
    pub(crate) averaging: Option<String>,
    /// What callbacks have multiplied the learning rate by, if they have.
    pub(crate) lr_factor: Option<f64>,
    /// What `batch` counts: the loader's description of its batches.
    pub(crate) data: String,
    /// What the epoch that had begun has logged up to its last log point.
    pub(crate) epoch_sums: Sums,
    /// What the values in the tensor [`LOGS`] are, which holds what was logged after it.
    pub(crate) log_names: Vec<String>,
    /// The best checkpoint so far.
    pub(crate) best_checkpoint: Option<PathBuf>,
    /// The state of each callback that has one, by its name.
    pub(crate) callbacks: BTreeMap<String, Value>,
}

/// The name of the tensor with what was logged since the last log point; only in a checkpoint within an epoch.
pub(crate) const LOGS: &str = "trainer/logs";

/// The metadata key that everything but the tensors stands under.
const KEY: &str = "fulmen";

/// Writes a checkpoint: to a temporary file beside it, synced, then renamed, so that a checkpoint that stood there
/// stays whole until the new one is.
pub(crate) fn save(path: &Path, tensors: &[(String, Literal)], position: &Position) -> Result<()> {
    let sums: Vec<Value> = position
        .epoch_sums
        .sums
        .iter()
        // As bits: a sum may be NaN or infinite, which JSON cannot say.
        .map(|(key, sums)| json!([key, sums.iter().map(|sum| bits(sum)).collect::<Vec<_>>()]))
        .collect();
    let document = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "epoch": position.epoch,
        "batch": position.batch,
        "global_step": position.global_step,
        "accumulate_grad_batches": position.accumulate,
        "weight_averaging": position.averaging,
        "learning_rate_factor": position.lr_factor.map(f64::to_bits),
        "seed": position.seed,
        "data": position.data,
        "epoch_sums": sums,
        "epoch_learning_rate": position.epoch_sums.learning_rate.to_bits(),
        "epoch_bad_step": position.epoch_sums.bad_step,
        "log_names": position.log_names,
        "best_checkpoint": position.best_checkpoint.as_deref().and_then(Path::to_str),
        "callbacks": position.callbacks,
    });
    // Python's readers look for the format.
    let metadata = BTreeMap::from([(KEY.to_owned(), document.to_string()), ("format".to_owned(), "pt".to_owned())]);
    safetensors::write(path, tensors, &metadata).map_err(Error::checkpoint_file)
}

fn bits(sum: &[f64]) -> Vec<u64> {
    sum.iter().map(|v| v.to_bits()).collect()
}

/// Reads a checkpoint.
pub(crate) fn load(path: &Path) -> Result<(BTreeMap<String, Literal>, Position)> {
    let wrong = |message: &str| Error::checkpoint(path, message);
    let (tensors, metadata) = safetensors::read(path).map_err(Error::checkpoint_file)?;
    let document = metadata.get(KEY).ok_or_else(|| {
        wrong(
            "it has weights but no training state; load it with load_weights(), or resume from a file that the \
               Trainer wrote",
        )
    })?;
    let document: Value =
        serde_json::from_str(document).map_err(|e| wrong(&format!("its metadata cannot be read: {e}")))?;
    let number = |name: &str| document[name].as_u64().ok_or_else(|| wrong(&format!("its metadata lacks `{name}`")));
    let float = |name: &str| document[name].as_u64().map(f64::from_bits);
    let mut sums = vec![];
    for row in document["epoch_sums"].as_array().into_iter().flatten() {
        let elements = |sum: &Value| sum.as_array()?.iter().map(|v| v.as_u64().map(f64::from_bits)).collect();
        let all = row[1].as_array().and_then(|sums| sums.iter().map(elements).collect::<Option<Vec<Vec<f64>>>>());
        let (Some(key), Some(all)) = (row[0].as_str(), all) else {
            return Err(wrong("its metadata has a broken row in `epoch_sums`"));
        };
        sums.push((key.to_owned(), all));
    }
    let names = document["log_names"].as_array().into_iter().flatten();
    let callbacks = document["callbacks"].as_object().into_iter().flatten();
    let position = Position {
        epoch: number("epoch")?,
        batch: number("batch")?,
        global_step: number("global_step")?,
        // Files of earlier versions do not say it.
        accumulate: document["accumulate_grad_batches"].as_u64().unwrap_or(1),
        averaging: document["weight_averaging"].as_str().map(str::to_owned),
        lr_factor: float("learning_rate_factor"),
        seed: number("seed")?,
        data: document["data"].as_str().ok_or_else(|| wrong("its metadata lacks `data`"))?.to_owned(),
        log_names: names.filter_map(|name| name.as_str().map(str::to_owned)).collect(),
        best_checkpoint: document["best_checkpoint"].as_str().map(PathBuf::from),
        epoch_sums: Sums {
            bad_step: document["epoch_bad_step"].as_u64(),
            learning_rate: float("epoch_learning_rate").unwrap_or_default(),
            grad_norm: None,
            sums,
        },
        callbacks: callbacks.map(|(name, state)| (name.clone(), state.clone())).collect(),
    };
    Ok((tensors, position))
}

/// Checks that checkpoints can be written into a folder, which is made if it is not there.
pub(crate) fn check_writable(folder: &Path) -> Result<()> {
    let probe = folder.join(format!(".writable-{}", std::process::id()));
    let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&probe, b"probe"));
    let removed = std::fs::remove_file(&probe);
    written.and(removed).map_err(|e| {
        Error::checkpoint(
            folder,
            format!(
                "the folder cannot be written to ({e}); choose another with default_root_dir, or turn \
                     enable_checkpointing off"
            ),
        )
    })
}

/// A new folder `version_N` under `root`, N being the first number that is free.
pub(crate) fn new_version_folder(root: &Path) -> Result<PathBuf> {
    let failed = |e: std::io::Error| {
        Error::checkpoint(root, format!("cannot make a folder for this run ({e}); choose another default_root_dir"))
    };
    std::fs::create_dir_all(root).map_err(failed)?;
    for n in 0u64.. {
        let folder = root.join(format!("version_{n}"));
        match std::fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(failed(e)),
        }
    }
    Err(Error::checkpoint(root, "there is no free number for a version folder"))
}
