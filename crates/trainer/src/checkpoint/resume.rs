//! [`Start`]: what a fit begins with, which is nothing or the checkpoint that `ckpt_path` or `resume` names. A checkpoint must fit
//! before anything changes. How one is read and written is not here but in `mod.rs`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fulmen_data::DataLoader;
use fulmen_tensor::Literal;

use crate::checkpoint::newest::Named;
use crate::checkpoint::{self, Position};
use crate::logs::LogLayout;
use crate::say::note;
use crate::setting::Setting;
use crate::setting::limits::Limits;
use crate::state::names::{self, LOGS, LR_FACTOR, OWN, STEP, UPDATES};
use crate::state::{Average, StateLayout};
use crate::{Error, Options, Result, WeightAveraging};

/// What a fit begins with.
pub(crate) struct Start {
    pub(crate) position: Position,
    /// The path of the checkpoint to go on from, if there is one, and what it holds.
    checkpoint: Option<(PathBuf, BTreeMap<String, Literal>)>,
    /// The best checkpoint of the run before.
    pub(crate) best: Option<PathBuf>,
    /// A value for each entry of the training state.
    pub(crate) values: Option<Vec<Literal>>,
    /// What was logged since the last log point, if the step still logs the same.
    pub(crate) logs: Option<Literal>,
}

impl Start {
    /// Reads the checkpoint that the options name, if they name one.
    pub(crate) fn new(options: &Options) -> Result<Start> {
        let root = &options.default_root_dir;
        let named = Named::to_resume(options)?;
        let read = named.map(|named| named.read(root, checkpoint::load)).transpose()?.flatten();
        let (position, checkpoint) = match read {
            Some((path, (tensors, position))) => {
                if !matches!(named, Some(Named::Path(_))) {
                    note(&format!("going on with {}", path.display()));
                }
                (position, Some((path, tensors)))
            }
            None => {
                if named.is_some() {
                    note(&format!(
                        "note: there is no checkpoint of this program under {}: starting anew",
                        root.display()
                    ));
                }
                (Position { seed: options.seed, ..Position::default() }, None)
            }
        };
        Ok(Start { position, checkpoint, best: None, values: None, logs: None })
    }

    /// With the checkpoint at this path.
    pub(crate) fn at(path: &Path) -> Result<Start> {
        let (tensors, position) = checkpoint::load(path)?;
        Ok(Start { position, checkpoint: Some((path.to_owned(), tensors)), best: None, values: None, logs: None })
    }

    /// Takes the state out of the checkpoint, if there is one; it must be that of a step on batches as these, which logs
    /// such values.
    pub(crate) fn take_state(
        &mut self,
        train: &DataLoader,
        layout: &StateLayout,
        logs: &LogLayout,
        limits: &Limits,
        setting: &Setting,
    ) -> Result<()> {
        let averaging = setting.averaging.as_ref().map(WeightAveraging::words);
        let Some((path, tensors)) = &mut self.checkpoint else {
            self.position.averaging = averaging;
            return Ok(());
        };
        let refused = |why: String| Error::checkpoint(path, why);
        if self.position.weights_only {
            return Err(refused(
                "it has the weights alone (save_weights_only), from which training cannot be resumed. Resume with \
                 last.safetensors of that run"
                    .into(),
            ));
        }
        check_position(&self.position, train).map_err(|e| Error::checkpoint(path, e))?;
        check_counts(&self.position, train, limits, tensors).map_err(refused)?;
        logs.check(&self.position.epoch_sums).map_err(refused)?;
        self.best = find_best(&self.position, path).map_err(refused)?;
        check_group(&self.position, setting).map_err(|e| Error::checkpoint(path, e))?;
        let same = |saved: &Literal| self.position.log_names == logs.keys() && *saved.ty() == logs.ty();
        self.logs = tensors.remove(LOGS).filter(same);
        adapt(tensors, layout, &self.position, setting)?;
        self.position.averaging = averaging;
        // A file of an earlier version has the factor only in the state.
        let factor = tensors.get(LR_FACTOR).and_then(|factor| factor.to_f64().first().copied());
        self.position.lr_factor = factor.map(|factor| self.position.lr_factor.unwrap_or(factor));
        let names = layout.entries().iter().map(|e| (e.name.as_str(), &e.ty));
        self.values = Some(checkpoint::choose(names, tensors).map_err(|e| Error::checkpoint(path, e))?);
        if let Some(name) = tensors.keys().next() {
            let message =
                format!("it has `{name}`, which this module and optimizer have not; resume with those of that run");
            return Err(Error::checkpoint(path, message));
        }
        Ok(())
    }

    /// The checkpoint to go on from.
    pub(crate) fn checkpoint(&self) -> Option<&Path> {
        self.checkpoint.as_ref().map(|(path, _)| path.as_path())
    }
}

/// The best checkpoint that the one at `path` names.
fn find_best(position: &Position, path: &Path) -> Result<Option<PathBuf>, String> {
    let Some(best) = position.best(path) else { return Ok(None) };
    let refuse = |why: String| {
        format!(
            "its metadata `best_checkpoint` is {}, which is not a checkpoint of this run: {why}. Move that file away to \
             resume without it",
            best.display()
        )
    };
    match checkpoint::load_position(&best) {
        Ok(of_best) if of_best.seed == position.seed => Ok(Some(best)),
        Ok(of_best) => Err(refuse(format!("its seed is {}, and that of this run is {}", of_best.seed, position.seed))),
        Err(error) => Err(refuse(error.to_string())),
    }
}

/// Checks the counts in the metadata against the loader, the run and the counters of the device.
fn check_counts(
    position: &Position,
    train: &DataLoader,
    limits: &Limits,
    tensors: &BTreeMap<String, Literal>,
) -> Result<(), String> {
    let (epoch, batch, batches) = (position.epoch, position.batch, train.len() as u64);
    if batch > batches {
        return Err(format!("its metadata `batch` is {batch}, and an epoch of this loader has {batches} batches"));
    }
    let counter = |name: &str| {
        let count = tensors.get(name).and_then(|count| count.to_f64().first().copied());
        // A counter of 32 bits says nothing beyond its largest number.
        count.filter(|count| (0.0..f64::from(i32::MAX)).contains(count)).map(|count| count as u64)
    };
    let (steps, updates) = (counter(STEP).unwrap_or(u64::MAX), counter(UPDATES).unwrap_or(0));
    for (name, count) in [("epoch", epoch), ("batch", batch), ("global_step", position.global_step)] {
        if count > steps {
            return Err(format!(
                "its metadata `{name}` is {count}, and by its tensor `{STEP}` only {steps} batches ran"
            ));
        }
    }
    if position.global_step < updates {
        return Err(format!(
            "its metadata `global_step` is {}, and by its tensor `{UPDATES}` the optimizer made {updates} steps",
            position.global_step
        ));
    }
    let max_epochs = limits.epochs;
    if position.global_step > limits.steps {
        return Err(format!(
            "it was saved after step {}, after the end of this run: max_steps is {}. Raise max_steps to go on training",
            position.global_step, limits.steps
        ));
    }
    if epoch > max_epochs || epoch == max_epochs && batch > 0 {
        return Err(format!(
            "it was saved with `epoch` {epoch} and `batch` {batch}, after the end of this run: max_epochs is {max_epochs}. \
             Raise max_epochs to go on training"
        ));
    }
    Ok(())
}

/// A position within an epoch means something only for the same batches.
fn check_position(position: &Position, train: &DataLoader) -> Result<()> {
    if position.batch > 0 && !train.is_ordered() {
        return Err(Error::usage(format!(
            "it was saved after batch {} of an epoch, and this loader's batches come in any order (ordered(false)), so that \
             nobody knows which of them came before. Resume with a checkpoint of the end of an epoch",
            position.batch
        )));
    }
    let here = train.description();
    if position.batch > 0 && here != position.data {
        return Err(Error::usage(format!(
            "it was saved after batch {} of an epoch of other batches ({}) than those of this loader ({here}). Resume with \
             the loader of that run",
            position.batch, position.data
        )));
    }
    Ok(())
}

/// A position within a group of batches means something only for groups as long.
fn check_group(position: &Position, setting: &Setting) -> Result<()> {
    let (there, here) = (position.accumulate, setting.accumulation().every(position.epoch));
    if position.batch > 0 && there != here {
        return Err(Error::usage(format!(
            "it was saved within an epoch of a run with accumulate_grad_batches {there}, and here it is {here}. Resume with \
             {there}"
        )));
    }
    Ok(())
}

/// Makes what the Trainer itself had in the state of a run with other options fit this one: what is not needed goes, and
/// what is missing begins anew, but for the number of steps.
fn adapt(
    tensors: &mut BTreeMap<String, Literal>,
    layout: &StateLayout,
    position: &Position,
    setting: &Setting,
) -> Result<()> {
    // A file has averages under the module's names.
    let there = position.averaging.as_ref();
    let another = setting.averaging.as_ref().is_some_and(|here| there.is_some_and(|there| *there != here.words()));
    let mut averages = BTreeMap::new();
    for name in
        tensors.keys().filter_map(|name| Some(name.strip_prefix(names::CURRENT)?.to_owned())).collect::<Vec<_>>()
    {
        let Some(current) = tensors.remove(&format!("{}{name}", names::CURRENT)) else { continue };
        averages.extend(tensors.insert(name.clone(), current).map(|average| (name, average)));
    }
    if another {
        // An average by another rule is none by this one, nor is what it counted.
        tensors.remove(names::AVERAGED);
        averages.clear();
    }
    for Average { of, average } in &layout.averages {
        let (of, average) = (&layout[*of], &layout[*average]);
        // A run without averages goes on with them: they begin with its weights.
        let begun = tensors.get(&of.name).map(|value| value.to_dtype(average.ty.dtype)).transpose()?;
        tensors.extend(averages.remove(&of.name).or(begun).map(|value| (average.name.clone(), value)));
    }
    tensors.retain(|name, _| !name.starts_with(OWN) || layout.entries().iter().any(|entry| entry.name == *name));
    for entry in layout.entries().iter().filter(|entry| entry.name.starts_with(OWN) && entry.name != STEP) {
        if tensors.contains_key(&entry.name) {
            continue;
        }
        let count = |count: u64| Literal::from_slice(&[count.min(i32::MAX as u64) as i32], []);
        let first = match entry.name.as_str() {
            names::GROUPS => count(position.global_step)?,
            // Of a run that did not freeze them.
            name if name.starts_with(UPDATES) || name.starts_with(names::UNFROZEN) => count(position.global_step)?,
            names::BATCH => count(position.batch)?,
            names::EPOCHS => count(position.epoch)?,
            _ => entry.first()?,
        };
        tensors.insert(entry.name.clone(), first);
    }
    Ok(())
}
