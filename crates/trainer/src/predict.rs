//! Predicting: a module's `predict_step` as one program, run over a loader, its rows read back in order.
//!
//! Not here: how predictions are written to a file, which the command line does.

use std::collections::VecDeque;
use std::sync::Arc;

use fulmen_data::{DataLoader, DeviceBatches, OnError};
use fulmen_tensor::{
    Argument, Compiled, DeviceArray, Function, Literal, PendingLiterals, Runtime, TensorType, autocast, random,
    recording,
};

use crate::hosts::{self, Hosts};
use crate::interrupt;
use crate::placeholders::Placeholders;
use crate::program::for_setting;
use crate::setting::Setting;
use crate::state::Entry;
use crate::{Batch, Error, Result, Strategy, TrainingModule};

/// A predict step as a function.
///
/// Inputs: the module's values, the batch. Results: the predictions.
pub(crate) struct PredictProgram {
    pub(crate) function: Function,
    names: Vec<String>,
}

/// Records the predict step.
pub(crate) fn program(
    module: &dyn TrainingModule,
    loader: &DataLoader,
    entries: &[Entry],
    setting: &Setting,
    seed: u64,
) -> Result<PredictProgram> {
    if loader.is_final() && loader.replicas().num_processes > 1 {
        return Err(Error::usage(
            "the loader's sampler is final: it divides the samples among the processes itself, so that predictions have no \
             order that all share. Predict with another sampler, or in one process",
        ));
    }
    if loader.on_error() != OnError::Fail {
        return Err(Error::usage(format!(
            "the loader leaves out samples that cannot be read, or puts others in their place (OnError::{:?}), so that nobody \
             knows whose a prediction is. Predict with a loader that fails (OnError::Fail), and without those samples",
            loader.on_error()
        )));
    }
    let [batch] = &Batch::placeholders(loader, setting.precision.whole())[..] else {
        return Err(Error::usage(
            "the loader has buckets, so that its batches are not in the order of its samples. Predict with a loader without \
             buckets, whose samples are all padded to the longest",
        ));
    };
    let cells = Placeholders::new(module, entries);
    module.eval();
    module.set_random_key(&random::key(seed));
    let advice = "to see the tensor, return it as one of the predictions";
    let step = || autocast(setting.precision.autocast(), || module.predict_step(batch));
    let predictions = recording("predict_step", advice, step);
    let placeholders = cells.placeholders();
    drop(cells);
    predictions.check(batch)?;
    let (names, results) = predictions.0.into_iter().unzip();
    let inputs = placeholders.into_iter().chain(batch.inputs().cloned()).collect();
    // The results are whole on every device, so that each process can read them.
    let mut function = Function::new("predict_step", inputs, results);
    for (i, entry) in entries.iter().enumerate() {
        function = function.shard_parameter(i, entry.sharding.clone());
    }
    Ok(PredictProgram { function: for_setting(function, entries.len(), setting), names })
}

/// Predictions on the host for some samples, in the order of the loader: named values, each with a row a sample.
#[derive(Debug)]
pub struct Predicted {
    values: Vec<(String, Literal)>,
}

impl Predicted {
    /// The values of this name.
    pub fn get(&self, name: &str) -> Option<&Literal> {
        self.values.iter().find(|value| value.0 == name).map(|value| &value.1)
    }

    /// Names and values, in the order in which the module gave them.
    pub fn values(&self) -> &[(String, Literal)] {
        &self.values
    }

    /// How many samples these are the predictions of.
    pub fn num_samples(&self) -> usize {
        self.values.first().and_then(|value| value.1.ty().shape.dims().first()).copied().unwrap_or(0)
    }

    pub(crate) fn into_values(self) -> Vec<(String, Literal)> {
        self.values
    }
}

/// The first rows of a value.
fn first_rows(literal: Literal, rows: usize) -> Result<Literal> {
    let ty = literal.ty();
    let mut dims = ty.shape.dims().to_vec();
    let of = dims.first().copied().unwrap_or(0);
    if rows >= of {
        return Ok(literal);
    }
    dims[0] = rows;
    let bytes = literal.bytes();
    Ok(Literal::from_bytes(TensorType::new(ty.dtype, dims), &bytes[..bytes.len() / of * rows])?)
}

/// Predictions, a batch at a time, in the order of the loader. Made by [`Trainer::predict`](crate::Trainer::predict).
///
/// The device works on the next batch while one is looked at. After an error there is nothing more. Ctrl-C is such an
/// error, after which the program goes on.
///
/// Of several processes each reads all of its batches, as the devices of one wait for those of the others: one that stops
/// earlier ends the run for all.
pub struct PredictedBatches {
    runtime: Runtime,
    compiled: Compiled,
    names: Vec<String>,
    values: Vec<DeviceArray>,
    batches: DeviceBatches,
    /// Samples that are still to come, of all processes together, and how many a batch holds.
    left: usize,
    batch_size: usize,
    pending: VecDeque<Pending>,
    interrupt: interrupt::Guard,
    /// The other processes, if there are any.
    hosts: Option<Arc<Hosts>>,
    _guard: Option<hosts::Guard>,
    /// How many batches were launched, and of how many.
    launched: usize,
    batches_in_all: usize,
    /// No batch is to be launched any more.
    ended: bool,
    /// Why not; told after the predictions that had been launched before.
    failed: Option<Error>,
}

/// A batch of predictions on its way to the host.
struct Pending {
    values: PendingLiterals,
    valid: usize,
    /// Kept until the values have arrived.
    _arrays: Vec<DeviceArray>,
}

/// Batches that the device is given before the first of them is read.
const AHEAD: usize = 2;

/// After how many batches processes ask each other whether Ctrl-C was pressed.
const ASK_EVERY: usize = 8;

impl PredictedBatches {
    pub(crate) fn new(
        runtime: &Runtime,
        compiled: Compiled,
        program: PredictProgram,
        values: Vec<DeviceArray>,
        loader: &DataLoader,
        hosts: Option<&Arc<Hosts>>,
    ) -> PredictedBatches {
        let interrupt = interrupt::Guard::new();
        // What was predicted before Ctrl-C is the caller's to keep.
        interrupt.stepped();
        PredictedBatches {
            interrupt,
            _guard: hosts.map(|hosts| hosts.guard()),
            hosts: hosts.cloned(),
            launched: 0,
            batches_in_all: loader.len(),
            runtime: runtime.clone(),
            compiled,
            names: program.names,
            values,
            batches: loader.prefetch_to(runtime, &Strategy::batch(runtime.mesh()), 0, 0),
            left: loader.num_samples(),
            batch_size: loader.batch_size(),
            pending: VecDeque::new(),
            ended: false,
            failed: None,
        }
    }

    /// All predictions as one.
    ///
    /// # Errors
    /// As each of the batches.
    ///
    /// ```no_run
    /// # fn f(trainer: &mut fulmen_trainer::Trainer, module: &impl fulmen_trainer::TrainingModule,
    /// #      loader: &fulmen_data::DataLoader) -> fulmen_trainer::Result<()> {
    /// use fulmen_trainer::Weights;
    /// let predicted = trainer.predict(module, loader, Weights::Current)?.concat()?;
    /// let digits: Option<Vec<i32>> = predicted.get("digit").map(|digits| digits.to_vec()).transpose()?;
    /// # let _ = digits; Ok(())
    /// # }
    /// ```
    pub fn concat(self) -> Result<Predicted> {
        let mut types: Vec<TensorType> = vec![];
        let mut parts: Vec<Vec<u8>> = vec![vec![]; self.names.len()];
        let (names, mut rows) = (self.names.clone(), 0);
        for batch in self {
            let batch = batch?;
            rows += batch.num_samples();
            for ((_, literal), part) in batch.values.iter().zip(&mut parts) {
                part.extend_from_slice(literal.bytes());
            }
            types = batch.values.into_iter().map(|(_, literal)| literal.ty().clone()).collect();
        }
        let whole = |(ty, bytes): (TensorType, Vec<u8>)| {
            let dims = [&[rows], &ty.shape.dims()[1..]].concat();
            Ok(Literal::from_bytes(TensorType::new(ty.dtype, dims), &bytes)?)
        };
        let literals = types.into_iter().zip(parts).map(whole).collect::<Result<Vec<_>>>()?;
        Ok(Predicted { values: names.into_iter().zip(literals).collect() })
    }

    /// Whether Ctrl-C was pressed. Several processes end after the same batch.
    fn is_interrupted(&self) -> Result<bool> {
        let Some(hosts) = &self.hosts else { return Ok(self.interrupt.requested()) };
        hosts.health()?;
        Ok((self.launched + 1).is_multiple_of(ASK_EVERY) && hosts.any("interrupt", self.interrupt.requested())?)
    }

    fn launch(&mut self) -> Result<bool> {
        if self.is_interrupted()? {
            return Err(Error::interrupted("predicting"));
        }
        let Some(batch) = self.batches.next().transpose()? else {
            return Ok(false);
        };
        let values = self.values.iter().map(Argument::Borrow);
        let outputs = self.compiled.call(values.chain(batch.arrays.iter().map(Argument::Borrow)).collect())?;
        let values = self.runtime.read(&outputs.arrays.iter().collect::<Vec<_>>())?;
        // Not the batch's own number, which is that of this process.
        let valid = self.left.min(self.batch_size);
        self.left -= valid;
        self.pending.push_back(Pending { values, valid, _arrays: outputs.arrays });
        self.launched += 1;
        Ok(true)
    }

    /// The others would wait for this process, unless they have the same error at the same batch.
    fn tell(&self, error: &Error) {
        if let Some(hosts) = self.hosts.as_ref().filter(|_| !error.is_interrupted()) {
            hosts.fail(error);
        }
    }

    fn try_next(&mut self) -> Result<Option<Predicted>> {
        while !self.ended && self.pending.len() <= AHEAD {
            match self.launch() {
                Ok(launched) => self.ended = !launched,
                Err(error) => {
                    self.tell(&error);
                    (self.ended, self.failed) = (true, Some(error));
                }
            }
        }
        let Some(Pending { values, valid, _arrays }) = self.pending.pop_front() else {
            return self.failed.take().map_or(Ok(None), Err);
        };
        let literals = hosts::arrive(self.hosts.as_ref(), values)?;
        let rows = literals.into_iter().map(|literal| first_rows(literal, valid)).collect::<Result<Vec<_>>>()?;
        Ok(Some(Predicted { values: self.names.iter().cloned().zip(rows).collect() }))
    }
}

impl Iterator for PredictedBatches {
    type Item = Result<Predicted>;

    fn next(&mut self) -> Option<Result<Predicted>> {
        let next = self.try_next().transpose();
        if let Some(Err(error)) = &next {
            self.tell(error);
            self.ended = true;
            self.pending.clear();
        }
        next
    }
}

impl Drop for PredictedBatches {
    fn drop(&mut self) {
        if !self.ended {
            self.tell(&Error::usage(format!(
                "it stopped reading its predictions after {} batches of {}; read them to the end in every process",
                self.launched - self.pending.len(),
                self.batches_in_all
            )));
        }
    }
}
