//! Predicting: a module's `predict_step`, run over a loader, its rows read back in order.
//!
//! Not here: how predictions are written to a file, which the command line does.

use fulmen_data::{DataLoader, DeviceBatches};
use fulmen_tensor::{DeviceArray, Literal, TensorType};

use crate::callbacks::calls::Callbacks;
use crate::hooks::EvaluationProgress;
use crate::process_group;
use crate::program::CompiledStep;
use crate::run::evaluate::Evaluation;
use crate::run::executor::Executor;
use crate::run::session::Session;
use crate::stage::Stage;
use crate::state::Fixed;
use crate::{Actions, Error, EvaluationSets, Predicted, Result, Strategy, TrainingModule, Weights};

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
/// The device works on the next batch while one is looked at. After an error there is nothing more. Ctrl-C, SIGTERM
/// and SIGHUP are such errors, after which the program goes on.
///
/// Of several processes each reads all of its batches, as the devices of one wait for those of the others: one that stops
/// earlier ends the run for all.
pub struct PredictedBatches {
    /// Each batch that is read has the number of its real samples.
    executor: Executor<usize>,
    step: CompiledStep,
    weights: Vec<DeviceArray>,
    batches: DeviceBatches,
    /// Samples that are still to come, of all processes together, and how many a batch holds.
    left: usize,
    batch_size: usize,
    _guard: Option<process_group::Guard>,
    /// How many batches were launched.
    launched: usize,
    callbacks: Callbacks,
    /// What callbacks are told of.
    progress: EvaluationProgress,
    /// No batch is to be launched any more.
    ended: bool,
    /// Why not; told after the predictions that had been launched before.
    failed: Option<Error>,
}

/// Batches that the device is given before the first of them is read.
const AHEAD: usize = 2;

/// Predicts with a module, a batch at a time.
pub(crate) fn predict(
    session: &mut Session,
    module: &dyn TrainingModule,
    loader: &DataLoader,
    weights: Weights,
) -> Result<PredictedBatches> {
    let (mut evaluations, weights) =
        Evaluation::open(session, module, &EvaluationSets::from(loader), Stage::Prediction, weights)?;
    let evaluation = evaluations.remove(0);
    let progress = evaluation.progress(session.record.reached);
    let Evaluation { step, loader, .. } = evaluation;
    session.callbacks.each(|callback| callback.on_predict_start(&progress));
    let (runtime, hosts) = (&session.runtime, session.hosts.as_ref());
    let interrupt = fulmen_signals::Guard::new(session.choices.options.grace);
    // What was predicted before a signal is the caller's to keep.
    interrupt.stepped();
    Ok(PredictedBatches {
        executor: Executor::new(runtime, hosts, Some(interrupt)),
        step,
        weights,
        batches: loader.prefetch_to(runtime, &Strategy::batch(runtime.mesh()), 0, 0),
        left: loader.num_samples(),
        batch_size: loader.batch_size(),
        _guard: hosts.map(|hosts| hosts.guard()),
        callbacks: session.callbacks.clone(),
        progress,
        launched: 0,
        ended: false,
        failed: None,
    })
}

impl PredictedBatches {
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
        let mut parts: Vec<Vec<u8>> = vec![vec![]; self.step.outputs().len()];
        let (names, mut rows) = (self.step.outputs().to_vec(), 0);
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

    /// Whether this process is the one that writes.
    pub(crate) fn is_coordinator(&self) -> bool {
        self.executor.hosts().is_none_or(|hosts| hosts.process().is_coordinator())
    }

    fn launch(&mut self) -> Result<bool> {
        if let Some(signal) = self.executor.interrupted()? {
            return Err(Error::interrupted("predicting", signal));
        }
        let Some(batch) = self.batches.next().transpose()? else {
            return Ok(false);
        };
        let (_, arrays) = self.executor.step(&self.step, &mut Fixed(&self.weights), &mut None, None, &batch)?;
        // Not the batch's own number, which is that of this process.
        let valid = self.left.min(self.batch_size);
        self.executor.read(valid, arrays)?;
        self.left -= valid;
        self.launched += 1;
        Ok(true)
    }

    /// The others would wait for this process, unless they have the same error at the same batch.
    fn tell(&self, error: &Error) {
        if let Some(hosts) = self.executor.hosts().filter(|_| !error.is_interrupted()) {
            hosts.fail(error);
        }
    }

    fn try_next(&mut self) -> Result<Option<Predicted>> {
        while !self.ended && self.executor.reading() <= AHEAD {
            match self.launch() {
                Ok(launched) => self.ended = !launched,
                Err(error) => {
                    self.tell(&error);
                    (self.ended, self.failed) = (true, Some(error));
                }
            }
        }
        let arrived = match self.executor.arrived() {
            // The others know of this process's failure by now. To wait for them only says so once more.
            Err(_) if self.failed.is_some() => None,
            arrived => arrived?,
        };
        let Some((valid, literals)) = arrived else {
            return self.failed.take().map_or(Ok(None), Err);
        };
        let rows = literals.into_iter().map(|literal| first_rows(literal, valid)).collect::<Result<Vec<_>>>()?;
        let predicted = Predicted { values: self.step.outputs().iter().cloned().zip(rows).collect() };
        self.progress.batch += 1;
        self.callbacks.each(|callback| callback.on_predict_batch_end(&self.progress, &predicted));
        if self.progress.batch == self.progress.batches {
            self.callbacks.each(|callback| callback.on_predict_end());
        }
        Ok(Some(predicted))
    }
}

impl Iterator for PredictedBatches {
    type Item = Result<Predicted>;

    fn next(&mut self) -> Option<Result<Predicted>> {
        let next = self.try_next().transpose();
        if let Some(Err(error)) = &next {
            self.callbacks.each(|callback| callback.on_exception(error, &mut Actions::outside()));
            self.tell(error);
            self.ended = true;
            self.executor.forget_reads();
        }
        next
    }
}

impl Drop for PredictedBatches {
    fn drop(&mut self) {
        if !self.ended {
            self.tell(&Error::usage(format!(
                "it stopped reading its predictions after {} batches of {}; read them to the end in every process",
                self.launched - self.executor.reading(),
                self.progress.batches
            )));
        }
    }
}
