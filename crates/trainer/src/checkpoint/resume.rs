//! [`ResumePoint`]: what a fit begins with, which is nothing or the checkpoint that `ckpt_path` or `resume` names. A checkpoint must fit
//! before anything changes. How one is read and written is not here but in `mod.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fulmen_checkpoint::Checkpoint;
use fulmen_data::DataLoader;
use fulmen_tensor::{Literal, Runtime, TensorType};

use crate::checkpoint::newest::Named;
use crate::checkpoint::places;
use crate::checkpoint::restore::{Value, choose, restore, values};
use crate::checkpoint::{self, Position};
use crate::console::note;
use crate::logs::LogLayout;
use crate::process_group::ProcessGroup;
use crate::state::names::{self, LOGS, LR_FACTOR, OWN, STEP, UPDATES};
use crate::state::{Average, Entry, Restored, StateLayout};
use crate::step_config::StepConfig;
use crate::step_config::limits::Limits;
use crate::{Error, Options, Result, WeightAveraging};

/// What a fit begins with.
pub(crate) struct ResumePoint {
    pub(crate) position: Position,
    /// The path of the checkpoint to go on from, if there is one.
    checkpoint: Option<(PathBuf, Checkpoint)>,
    /// The best checkpoint of the run before.
    pub(crate) best: Option<PathBuf>,
    /// A value for each entry of the training state.
    pub(crate) values: Option<Vec<Restored>>,
    /// What was logged since the last log point, if the step still logs the same.
    pub(crate) logs: Option<Literal>,
}

impl ResumePoint {
    /// Begins with the checkpoint that the options name, if they name one: `begin` takes its state and gives what it made for
    /// it. Of several checkpoints it is the newest that every process can read.
    pub(crate) fn find<T>(
        options: &Options,
        hosts: Option<&Arc<ProcessGroup>>,
        mut begin: impl FnMut(&mut ResumePoint) -> Result<T>,
    ) -> Result<(ResumePoint, T)> {
        let root = places::root(options);
        let mut begun = |start: Result<ResumePoint>| {
            let mut start = start?;
            begin(&mut start).map(|begun| (start, begun))
        };
        let named = Named::to_resume(options)?;
        let read = named.map(|named| {
            named.read(options, |path| {
                let begun = begun(ResumePoint::at(path));
                // One path is the only one.
                if matches!(named, Named::Path(_)) {
                    return Ok(begun);
                }
                let unreadable = begun.as_ref().is_err_and(Error::is_unreadable);
                match hosts.map_or(Ok(unreadable), |hosts| hosts.any("unreadable checkpoint", unreadable)) {
                    Ok(true) => {
                        Err(begun.err().unwrap_or_else(|| Error::checkpoint(path, "another process cannot read it")))
                    }
                    Ok(false) => Ok(begun),
                    Err(error) => Ok(Err(error)),
                }
            })
        });
        match (named, read.transpose()?.flatten()) {
            (Some(Named::Path(_)), Some((_, begun))) => begun,
            (_, Some((path, begun))) => {
                note(&format!("going on with {}", path.display()));
                begun
            }
            (_, None) => {
                if named.is_some() {
                    note(&format!(
                        "note: there is no checkpoint of this program under {}: starting from the beginning",
                        root.display()
                    ));
                }
                let position = Position { seed: options.seed, ..Position::default() };
                begun(Ok(ResumePoint { position, checkpoint: None, best: None, values: None, logs: None }))
            }
        }
    }

    /// With the checkpoint at this path.
    pub(crate) fn at(path: &Path) -> Result<ResumePoint> {
        let (checkpoint, position) = checkpoint::open(path)?;
        Ok(ResumePoint {
            position,
            checkpoint: Some((path.to_owned(), checkpoint)),
            best: None,
            values: None,
            logs: None,
        })
    }

    /// Takes the state out of the checkpoint, if there is one; it must be that of a step on batches as these, which logs
    /// such values. It reads what the devices of this process need.
    pub(crate) fn take_state(
        &mut self,
        train: &DataLoader,
        layout: &StateLayout,
        logs: &LogLayout,
        limits: &Limits,
        setting: &StepConfig,
        runtime: &Runtime,
    ) -> Result<()> {
        let averaging = setting.averaging.as_ref().map(WeightAveraging::words);
        let Some((path, checkpoint)) = &self.checkpoint else {
            self.position.averaging = averaging;
            return Ok(());
        };
        let refused = |why: String| Error::checkpoint(path, why);
        if self.position.weights_only {
            return Err(refused(
                "it has the weights alone (save_weights_only), from which training cannot be resumed. Resume with the \
                 checkpoint `last` of that run"
                    .into(),
            ));
        }
        let mut tensors = values(checkpoint)?;
        // What counts is small.
        let number = |tensors: &BTreeMap<String, Value>, name: &str| -> Result<Option<f64>> {
            let read = tensors.get(name).map(|value| value.read(checkpoint, value.ty())).transpose()?;
            Ok(read.and_then(|number| number.to_f64().first().copied()))
        };
        check_position(&self.position, train).map_err(|e| Error::checkpoint(path, e))?;
        let counts = [number(&tensors, STEP)?, number(&tensors, UPDATES)?];
        check_counts(&self.position, train, limits, counts).map_err(refused)?;
        logs.check(&self.position.epoch_sums).map_err(refused)?;
        self.best = find_best(&self.position, path).map_err(refused)?;
        check_group(&self.position, setting).map_err(|e| Error::checkpoint(path, e))?;
        let same = |saved: &Value| self.position.log_names == logs.keys() && *saved.ty() == logs.ty();
        let saved = tensors.remove(LOGS).filter(same);
        self.logs = saved.map(|logs| logs.read(checkpoint, logs.ty())).transpose()?;
        adapt(&mut tensors, layout, &self.position, setting)?;
        self.position.averaging = averaging;
        // The factor is in the state of a run in which a callback changes it.
        let factor = number(&tensors, LR_FACTOR)?;
        self.position.lr_factor = factor.map(|factor| self.position.lr_factor.unwrap_or(factor));
        let types: Vec<TensorType> = layout.entries().iter().map(Entry::row_type).collect();
        let named = layout.entries().iter().zip(&types);
        let named = named.flat_map(|(entry, ty)| entry.names().iter().map(move |name| (name.as_str(), ty)));
        let chosen = choose(named, &mut tensors).map_err(|e| Error::checkpoint(path, e))?;
        if let Some(name) = tensors.keys().next() {
            let message =
                format!("it has `{name}`, which this module and optimizer have not; resume with those of that run");
            return Err(Error::checkpoint(path, message));
        }
        let mut left = &chosen[..];
        let restored = layout.entries().iter().map(|entry| {
            let (values, rest) = left.split_at(entry.names().len());
            left = rest;
            restore(values, checkpoint, entry, runtime)
        });
        self.values = Some(restored.collect::<Result<_>>()?);
        Ok(())
    }

    /// The checkpoint to go on from.
    pub(crate) fn checkpoint(&self) -> Option<&Path> {
        self.checkpoint.as_ref().map(|(path, _)| path.as_path())
    }

    /// What the checkpoint holds, in a line, for processes to compare.
    pub(crate) fn fingerprint(&self) -> Option<String> {
        self.checkpoint.as_ref().map(|(_, checkpoint)| {
            let Position { epoch, batch, global_step, seed, .. } = self.position;
            format!("epoch {epoch}, batch {batch}, step {global_step}, seed {seed}, manifest {}", checkpoint.sha256())
        })
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
    match checkpoint::open(&best).map(|(_, position)| position) {
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
    counts: [Option<f64>; 2],
) -> Result<(), String> {
    let (epoch, batch, batches) = (position.epoch, position.batch, train.len() as u64);
    if batch > batches {
        return Err(format!("its metadata `batch` is {batch}, and an epoch of this loader has {batches} batches"));
    }
    // A counter of 32 bits says nothing beyond its largest number.
    let [steps, updates] =
        counts.map(|count| count.filter(|count| (0.0..f64::from(i32::MAX)).contains(count)).map(|count| count as u64));
    let (steps, updates) = (steps.unwrap_or(u64::MAX), updates.unwrap_or(0));
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
            "it was saved after batch {} of an epoch, and this loader's batches come in any order (ordered(false)), so \
             the batches that came before are not known. Resume with a checkpoint of the end of an epoch",
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
fn check_group(position: &Position, setting: &StepConfig) -> Result<()> {
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
/// what is missing starts from zero, except the number of steps.
fn adapt(
    tensors: &mut BTreeMap<String, Value>,
    layout: &StateLayout,
    position: &Position,
    setting: &StepConfig,
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
        for (of, average) in layout[*of].names().iter().zip(layout[*average].names()) {
            // A run without averages goes on with them: they begin with its weights.
            let begun = tensors.get(of).and_then(Value::again);
            tensors.extend(averages.remove(of).or(begun).map(|value| (average.clone(), value)));
        }
    }
    let named = || layout.entries().iter().flat_map(|entry| entry.names().iter().map(move |name| (name, entry)));
    let here: BTreeSet<&String> = named().map(|(name, _)| name).collect();
    tensors.retain(|name, _| !name.starts_with(OWN) || here.contains(name));
    for (name, entry) in named().filter(|(name, _)| name.starts_with(OWN) && *name != STEP) {
        if tensors.contains_key(name) {
            continue;
        }
        let count = |count: u64| Literal::from_slice(&[count.min(i32::MAX as u64) as i32], []);
        let first = match name.as_str() {
            names::GROUPS => count(position.global_step)?,
            // Of a run that did not freeze them.
            name if name.starts_with(UPDATES) || name.starts_with(names::UNFROZEN) => count(position.global_step)?,
            names::BATCH => count(position.batch)?,
            names::EPOCHS => count(position.epoch)?,
            _ => entry.first()?,
        };
        tensors.insert(name.clone(), Value::Made(first));
    }
    Ok(())
}
