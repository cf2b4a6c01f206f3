//! Saves and loads the state of a [`TrainStep`].

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fulmen_checkpoint::Run;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::TrainStep;
use super::train_step::random_key;
use crate::checkpoint::resume::ResumePoint;
use crate::checkpoint::save::{self, CopyProgram, SaveJob, SaveOutcome, StateTensor};
use crate::checkpoint::{self, OpenStore, Position};
use crate::hooks::actions::{CheckpointRole, Save};
use crate::state::names;
use crate::{Error, Result, error, process_group};

impl TrainStep<'_> {
    /// Writes the training state as a checkpoint, a folder in the Trainer's format, and waits until
    /// it is complete. [`Trainer::fit`] (option `ckpt_path`) and a step with the same module and
    /// optimizer ([`load`](TrainStep::load)) can continue from it. It also has the values of
    /// [`set_value`](TrainStep::set_value). An earlier checkpoint at that path stays intact until
    /// the new one is complete.
    ///
    /// # Errors
    /// An error of the device; a folder that cannot be written; an index that was out of range in a
    /// step; with `detect_nan`, a state that is not finite.
    ///
    /// [`Trainer::fit`]: crate::Trainer::fit
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let result = self.write(path.as_ref());
        self.report_error(result)
    }

    fn write(&mut self, path: &Path) -> Result<()> {
        let mut tensors = self.take_state(None)?;
        if let Some(sums) = &self.sums {
            let pending = self.runtime.read(&[sums])?;
            for literal in process_group::wait_for_literals(self.executor.process_group(), pending)?
            {
                self.reads.check_finite(&self.program().logs().read(&literal)?, None)?;
                tensors.push(StateTensor::replicated(
                    names::LOGS,
                    &literal,
                    self.executor.process_group(),
                )?);
            }
            self.position.log_names = self.program().logs().keys();
        }
        let run = checkpoint::run(&self.position, &self.config.options, self.runtime.mesh());
        let save = Save {
            path: path.to_owned(),
            role: CheckpointRole::Extra,
            weights_only: false,
            score: None,
        };
        let job = self.job(
            Arc::new(checkpoint::local),
            tensors,
            vec![(save, run)],
            Vec::new(),
            SaveOutcome::default(),
        );
        job.run().failure.map_or(Ok(()), Err)
    }

    /// Adds a value of your own, such as the best metric so far, to all later checkpoints. It
    /// replaces an earlier value of this name. The value is a number or anything else that serde
    /// writes as JSON; all values together take at most 64 KiB. With several processes, the
    /// checkpoints have the values of process 0.
    ///
    /// ```
    /// # use fulmen_data::{DataLoader, TensorDataset};
    /// # use fulmen_nn::{Linear, optim};
    /// # use fulmen_trainer::{Trainer, TrainingFn};
    /// # let data = TensorDataset::builder().array("x", [4, 1], vec![1.0f32; 4]).build()?;
    /// # let loader = DataLoader::builder(data).batch_size(4).build()?;
    /// # let line = Linear::new(1, 1);
    /// # let module =
    /// #     TrainingFn::new(&line, |line, batch, _| line.forward(&batch.get("x")).mean_all(), |_| optim::Sgd::new(0.1));
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("last");
    /// # let mut trainer = Trainer::builder().accelerator("cpu").build()?;
    /// # let mut step = trainer.train_step(&module, &loader)?;
    /// // Infinity, unless training continues from a checkpoint.
    /// let mut best = step.value("best_val_loss")?.unwrap_or(f64::INFINITY);
    /// # assert_eq!(best, f64::INFINITY);
    /// best = best.min(0.25);
    /// step.set_value("best_val_loss", best)?;
    /// step.save(&path)?;
    /// step.load(&path)?;
    /// assert_eq!(step.value("best_val_loss")?, Some(0.25));
    /// assert!(step.value::<f64>("best_val_acc").is_err()); // the checkpoint does not have it
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A value that serde cannot write as JSON, or that has a null; values that are too large.
    pub fn set_value(&mut self, name: &str, value: impl Serialize + 'static) -> Result<()> {
        let set = self.position.values.set(name, &value);
        set.map_err(|e| Error::usage(format!("set_value: `{name}`: {e}")))
    }

    /// The value that [`set_value`](TrainStep::set_value) set: in this process, or before the
    /// checkpoint was saved from which training continues. `None` if it was never set, and training
    /// does not continue from a checkpoint.
    ///
    /// # Errors
    /// The checkpoint from which training continues does not have the value; the value does not
    /// have this type.
    pub fn value<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let values = &self.position.values;
        let value = values.get(name).map_err(|e| Error::usage(format!("value: `{name}`: {e}")))?;
        match &self.checkpoint {
            Some(path) if value.is_none() => Err(error::checkpoint(
                path,
                format!("it has no value `{name}`; its values are: {}", values.names()),
            )),
            _ => Ok(value),
        }
    }

    /// Takes the current state for a checkpoint. Without a program that copies all of it, waits for
    /// the queued steps.
    pub(crate) fn take_state(&mut self, copy: Option<&CopyProgram>) -> Result<Vec<StateTensor>> {
        if copy.is_none_or(|copy| copy.entries.len() < self.state.layout().entries().len()) {
            self.executor.drain()?;
        }
        save::take(&self.state, copy, &self.runtime, self.executor.process_group())
    }

    /// The job that writes a state. With `detect_nan`, the state must be finite.
    pub(crate) fn job(
        &self,
        open: OpenStore,
        tensors: Vec<StateTensor>,
        saves: Vec<(Save, Run)>,
        removals: Vec<PathBuf>,
        outcome: SaveOutcome,
    ) -> SaveJob {
        let layout = self.state.layout();
        let names = layout.names_in_file();
        // Values that no step changes, such as a mask, may be infinite. Sums of gradients, which a
        // rule keeps, may be infinite too, if the loss scale is still too large: such a step
        // changes nothing.
        let finite = self
            .program()
            .changes()
            .iter()
            .filter(|id| self.config.options.detect_nan && !layout.is_state_of_rule(**id))
            .flat_map(|id| names[id.index()].clone())
            .collect();
        SaveJob {
            tensors,
            saves,
            removals,
            open,
            runtime: self.runtime.clone(),
            process_group: self.executor.process_group().cloned(),
            global_step: self.position.global_step,
            finite,
            outcome,
        }
    }

    /// Loads the training state of a checkpoint that this step, or a fit with the same module and
    /// optimizer, has written. Training continues from there, bit for bit.
    ///
    /// # Errors
    /// A checkpoint that cannot be read or does not match the step. In this case, nothing changes.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let result = self.take(path.as_ref());
        self.report_error(result)
    }

    fn take(&mut self, path: &Path) -> Result<()> {
        let mut start = ResumePoint::from_checkpoint(path)?;
        let layout = self.state.layout();
        let logs = self.program().logs();
        start.take_state(&self.train, layout, logs, &self.limits, &self.config, &self.runtime)?;
        self.check_consistent("load", |facts| {
            facts.extend(start.fingerprint().map(|it| ("checkpoint".into(), it)));
            Ok(())
        })?;
        let ResumePoint { position, values, logs, .. } = start;
        // The result of earlier steps no longer matters.
        let _ = self.executor.drain();
        self.state.replace(values.unwrap_or_default(), &self.runtime)?;
        self.key = random_key(&self.runtime, position.seed)?;
        self.sums = logs.map(|logs| self.runtime.to_device(&logs)).transpose()?;
        self.media.clear();
        let run_config = std::mem::take(&mut self.position.run_config);
        let data = self.train.description();
        let batches_per_step = self.config.batches_per_step.every(position.epoch);
        self.position = Position { run_config, data, batches_per_step, ..position };
        self.checkpoint = Some(path.to_owned());
        Ok(())
    }
}
