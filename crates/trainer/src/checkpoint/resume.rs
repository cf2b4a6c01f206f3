//! [`ResumePoint`]: what a fit begins with: nothing, or the checkpoint that `ckpt_path` or `resume`
//! names. It checks that the checkpoint fits before anything changes. `mod.rs` reads and writes
//! checkpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fulmen_checkpoint::Checkpoint;
use fulmen_data::DataLoader;
use fulmen_tensor::{Literal, Runtime, TensorType};

use crate::checkpoint::agreement::{check_named, find_together};
use crate::checkpoint::locations;
use crate::checkpoint::named_checkpoint::NamedCheckpoint;
use crate::checkpoint::restore::{Value, match_tensors, restore, values};
use crate::checkpoint::{self, Position};
use crate::console::{inform, note};
use crate::logs::LogLayout;
use crate::process_group::ProcessGroup;
use crate::state::names::{self, LOGS, LR_FACTOR, OWN, STEP, UPDATES};
use crate::state::{Entry, Evaluated, RestoredValue, StateLayout};
use crate::step_config::StepConfig;
use crate::step_config::limits::Limits;
use crate::{Error, Options, Result, error};

/// What a fit begins with.
pub(crate) struct ResumePoint {
    pub(crate) position: Position,
    /// The checkpoint to resume from and its path, if there is one.
    checkpoint: Option<(PathBuf, Checkpoint)>,
    /// The best checkpoint of the earlier run.
    pub(crate) best: Option<PathBuf>,
    /// A value for each entry of the training state.
    pub(crate) values: Option<Vec<RestoredValue>>,
    /// The values logged since the last log point, if the step still logs the same names.
    pub(crate) logs: Option<Literal>,
}

impl ResumePoint {
    /// Begins with the checkpoint that the options name, if any, for an action such as `fit`. `begin`
    /// takes the state of the checkpoint, and this returns its result. If the options allow several checkpoints, this uses
    /// the newest one that all processes can read.
    pub(crate) fn find<T>(
        action: &str,
        options: &Options,
        process_group: Option<&Arc<ProcessGroup>>,
        mut begin: impl FnMut(&mut ResumePoint) -> Result<T>,
    ) -> Result<(ResumePoint, T)> {
        let root = locations::root(options);
        let mut try_begin = |start: Result<ResumePoint>| {
            let mut start = start?;
            begin(&mut start).map(|value| (start, value))
        };
        let named = NamedCheckpoint::to_resume(options)?;
        if let Some(process_group) = process_group {
            check_named(process_group, action, named)?;
        }
        let mut read = |path: &Path| try_begin(ResumePoint::from_checkpoint(path));
        let found = match (named, process_group) {
            (None, _) => None,
            // There is no other checkpoint to try.
            (Some(NamedCheckpoint::Path(path)), _) => return read(path),
            (Some(named), Some(process_group)) => {
                find_together(named, options, process_group, read)?
            }
            (Some(named), None) => named.read(options, |path| match read(path) {
                Err(error) if error.is_unreadable() => Err(error),
                begun => Ok(begun),
            })?,
        };
        match found {
            Some((path, begun)) => {
                if begun.is_ok() {
                    inform!("resuming from {}", path.display());
                }
                begun
            }
            None => {
                if named.is_some() {
                    note!(
                        "there is no checkpoint of this program under {}: starting from the beginning",
                        root.display()
                    );
                }
                let position = Position { seed: options.seed, ..Position::default() };
                try_begin(Ok(ResumePoint {
                    position,
                    checkpoint: None,
                    best: None,
                    values: None,
                    logs: None,
                }))
            }
        }
    }

    /// Begins with the checkpoint at this path.
    pub(crate) fn from_checkpoint(path: &Path) -> Result<ResumePoint> {
        let (checkpoint, position) = checkpoint::open(path)?;
        Ok(ResumePoint {
            position,
            checkpoint: Some((path.to_owned(), checkpoint)),
            best: None,
            values: None,
            logs: None,
        })
    }

    /// Reads the state from the checkpoint, if there is one: the parts that the devices of this
    /// process need. The state must fit the layout, the batches of this loader, and the logged
    /// values.
    pub(crate) fn take_state(
        &mut self,
        train: &DataLoader,
        layout: &StateLayout,
        logs: &LogLayout,
        limits: &Limits,
        config: &StepConfig,
        runtime: &Runtime,
    ) -> Result<()> {
        let evaluated = config.evaluated.as_ref().map(|rule| rule.description());
        let Some((path, checkpoint)) = &self.checkpoint else {
            self.position.evaluated = evaluated;
            return Ok(());
        };
        let failed = |message: String| error::checkpoint(path, message);
        if self.position.weights_only {
            return Err(failed(
                "it has only the weights (save_weights_only), so training cannot resume from it. Resume from the \
                 checkpoint `last` of that run"
                    .into(),
            ));
        }
        let mut tensors = values(checkpoint)?;
        // Counters are small, so read them now.
        let number = |tensors: &BTreeMap<String, Value>, name: &str| -> Result<Option<f64>> {
            // Check the size first: a file may claim any.
            let scalar = tensors.get(name).filter(|value| value.ty().shape.num_elements() == 1);
            let read = scalar.map(|value| value.read(checkpoint, value.ty())).transpose()?;
            Ok(read.and_then(|number| number.to_f64().first().copied()))
        };
        check_position(&self.position, train).map_err(|e| error::checkpoint(path, e))?;
        let steps = number(&tensors, STEP)?;
        let updates = number(&tensors, UPDATES)?;
        check_counts(&self.position, train, limits, steps, updates).map_err(failed)?;
        logs.check(&self.position.epoch_sums).map_err(failed)?;
        self.best = find_best(&self.position, path).map_err(failed)?;
        check_batches_per_step(&self.position, config).map_err(|e| error::checkpoint(path, e))?;
        let same =
            |saved: &Value| self.position.log_names == logs.keys() && *saved.ty() == logs.ty();
        let saved = tensors.remove(LOGS).filter(same);
        self.logs = saved.map(|logs| logs.read(checkpoint, logs.ty())).transpose()?;
        migrate(&mut tensors, layout, &self.position, config)?;
        self.position.evaluated = evaluated;
        // The factor is in the state of a run in which a callback changes it.
        let factor = number(&tensors, LR_FACTOR)?;
        self.position.lr_factor = factor.map(|factor| self.position.lr_factor.unwrap_or(factor));
        let types: Vec<TensorType> = layout.entries().iter().map(Entry::row_type).collect();
        let named_types = layout
            .entries()
            .iter()
            .zip(&types)
            .flat_map(|(entry, ty)| entry.names().iter().map(move |name| (name.as_str(), ty)));
        let matched =
            match_tensors(named_types, &mut tensors).map_err(|e| error::checkpoint(path, e))?;
        if let Some(name) = tensors.keys().next() {
            let message = format!(
                "it has `{name}`, which this module and optimizer lack; resume with those of that run"
            );
            return Err(error::checkpoint(path, message));
        }
        let mut remaining = &matched[..];
        let restored = layout.entries().iter().map(|entry| {
            let (values, rest) = remaining.split_at(entry.names().len());
            remaining = rest;
            restore(values, checkpoint, entry, runtime)
        });
        self.values = Some(restored.collect::<Result<_>>()?);
        Ok(())
    }

    /// The path of the checkpoint to resume from.
    pub(crate) fn checkpoint(&self) -> Option<&Path> {
        self.checkpoint.as_ref().map(|(path, _)| path.as_path())
    }

    /// A line that identifies the checkpoint, so that processes can compare it.
    pub(crate) fn fingerprint(&self) -> Option<String> {
        self.checkpoint.as_ref().map(|(_, checkpoint)| {
            let Position { epoch, batch, global_step, seed, .. } = self.position;
            format!(
                "epoch {epoch}, batch {batch}, step {global_step}, seed {seed}, manifest {}",
                checkpoint.sha256()
            )
        })
    }
}

/// The path of the best checkpoint, from the metadata of the one at `path`. It must be of the same
/// run.
fn find_best(position: &Position, path: &Path) -> Result<Option<PathBuf>, String> {
    let Some(best) = position.best(path) else { return Ok(None) };
    let message = |reason: String| {
        format!(
            "its metadata `best_checkpoint` is {}, which is not a checkpoint of this run: {reason}. Move that file away to \
             resume without it",
            best.display()
        )
    };
    match checkpoint::open(&best).map(|(_, position)| position.seed) {
        Ok(seed) if seed == position.seed => Ok(Some(best)),
        Ok(seed) => {
            Err(message(format!("its seed is {seed}, and that of this run is {}", position.seed)))
        }
        Err(error) => Err(message(error.to_string())),
    }
}

/// Checks the counts in the metadata against the loader, the limits of the run, and the counters in
/// the state.
fn check_counts(
    position: &Position,
    train: &DataLoader,
    limits: &Limits,
    steps: Option<f64>,
    updates: Option<f64>,
) -> Result<(), String> {
    let epoch = position.epoch;
    let batch = position.batch;
    let batches = train.len() as u64;
    if batch > batches {
        return Err(format!(
            "its metadata `batch` is {batch}, but an epoch of this loader has {batches} batches"
        ));
    }
    // A 32-bit counter stops at its largest number, so don't compare that value.
    let exact = |count: &f64| (0.0..f64::from(i32::MAX)).contains(count);
    let steps = steps.filter(exact).map_or(u64::MAX, |count| count as u64);
    let updates = updates.filter(exact).map_or(0, |count| count as u64);
    for (name, count) in [("epoch", epoch), ("batch", batch), ("global_step", position.global_step)]
    {
        if count > steps {
            return Err(format!(
                "its metadata `{name}` is {count}, but its tensor `{STEP}` counts only {steps} batches"
            ));
        }
    }
    if position.global_step < updates {
        return Err(format!(
            "its metadata `global_step` is {}, but its tensor `{UPDATES}` counts {updates} optimizer steps",
            position.global_step
        ));
    }
    let max_epochs = limits.epochs;
    if position.global_step > limits.steps {
        return Err(format!(
            "it was saved after step {}, after the end of this run: max_steps is {}. Raise max_steps to continue training",
            position.global_step, limits.steps
        ));
    }
    if epoch > max_epochs || epoch == max_epochs && batch > 0 {
        return Err(format!(
            "it was saved with `epoch` {epoch} and `batch` {batch}, after the end of this run: max_epochs is {max_epochs}. \
             Raise max_epochs to continue training"
        ));
    }
    Ok(())
}

/// Checks that the loader has the same batches, if the position is within an epoch.
fn check_position(position: &Position, train: &DataLoader) -> Result<()> {
    if position.batch > 0 && !train.is_ordered() {
        return Err(Error::usage(format!(
            "it was saved after batch {} of an epoch, but this loader's batches come in any order (ordered(false)), so the \
             finished batches are not known. Resume from a checkpoint saved at the end of an epoch",
            position.batch
        )));
    }
    let data = train.description();
    if position.batch > 0 && data != position.data {
        return Err(Error::usage(format!(
            "it was saved after batch {} of an epoch whose batches ({}) differ from those of this loader ({data}). \
             Resume with the loader of that run",
            position.batch, position.data
        )));
    }
    Ok(())
}

/// Checks that the number of batches per step is the same, if the position is within an epoch.
fn check_batches_per_step(position: &Position, config: &StepConfig) -> Result<()> {
    let saved = position.batches_per_step;
    let current = config.batches_per_step.every(position.epoch);
    if position.batch > 0 && saved != current {
        return Err(Error::usage(format!(
            "it was saved within an epoch of a run with {saved} batches per optimizer step, but now there are {current}. \
             Set accumulate_grad_batches, or the callback that schedules it, as in that run"
        )));
    }
    Ok(())
}

/// Migrates the Trainer's own entries from the state of a run with other options. Entries that are
/// not needed are removed, and missing ones start with their first value, except the counts.
fn migrate(
    tensors: &mut BTreeMap<String, Value>,
    layout: &StateLayout,
    position: &Position,
    config: &StepConfig,
) -> Result<()> {
    // A checkpoint has evaluated weights under the module's names.
    let saved_rule = position.evaluated.as_ref();
    let changed_rule = config
        .evaluated
        .as_ref()
        .filter(|rule| saved_rule.is_some_and(|saved| *saved != rule.description()));
    let mut saved = BTreeMap::new();
    for name in tensors
        .keys()
        .filter_map(|name| Some(name.strip_prefix(names::CURRENT)?.to_owned()))
        .collect::<Vec<_>>()
    {
        let Some(current) = tensors.remove(&format!("{}{name}", names::CURRENT)) else { continue };
        saved.extend(tensors.insert(name.clone(), current).map(|value| (name, value)));
    }
    if let Some(rule) = changed_rule {
        // Weights by another rule, and their count, cannot be used.
        tensors.remove(&names::evaluated_steps(&**rule));
        saved.clear();
    }
    for Evaluated { source, evaluated } in &layout.evaluated {
        for (source, evaluated) in layout[*source].names().iter().zip(layout[*evaluated].names()) {
            // If the run evaluated its trained weights, these begin with them.
            let weights = tensors.get(source).and_then(Value::to_stored);
            tensors
                .extend(saved.remove(source).or(weights).map(|value| (evaluated.clone(), value)));
        }
    }
    let named = || {
        layout
            .entries()
            .iter()
            .flat_map(|entry| entry.names().iter().map(move |name| (name, entry)))
    };
    let known: BTreeSet<&String> = named().map(|(name, _)| name).collect();
    tensors.retain(|name, _| !name.starts_with(OWN) || known.contains(name));
    for (name, entry) in named().filter(|(name, _)| name.starts_with(OWN) && *name != STEP) {
        if tensors.contains_key(name) {
            continue;
        }
        let count = |count: u64| Literal::from_slice(&[count.min(i32::MAX as u64) as i32], []);
        let value = match name.as_str() {
            names::FINISHED_STEPS => count(position.global_step)?,
            // The earlier run did not freeze the parameters that it counts.
            name if layout.counts_updates(name) => count(position.global_step)?,
            names::BATCH => count(position.batch)?,
            names::EPOCHS => count(position.epoch)?,
            _ => entry.known_first().ok_or_else(|| {
                error::option(format!(
                    "the checkpoint has no `{name}`, and a program computes its first value, which a resumed run does \
                     not do: let it begin with a constant, such as `Tensor::zeros`, or begin a new run from the weights"
                ))
            })?,
        };
        tensors.insert(name.clone(), Value::New(value));
    }
    Ok(())
}
