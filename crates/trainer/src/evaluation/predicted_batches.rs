//! Runs a module's `predict_step` over a loader and reads the rows back in order.
//!
//! `prediction_writer.rs` writes them to a file.

use fulmen_data::{DataLoader, DeviceBatches};
use fulmen_tensor::{DeviceArray, Literal, TensorType};

use crate::callbacks::hook_calls::Callbacks;
use crate::evaluation::Evaluation;
use crate::executor::Executor;
use crate::hooks::EvaluationProgress;
use crate::process_group;
use crate::program::CompiledStep;
use crate::session::Session;
use crate::stage::Stage;
use crate::state::FixedWeights;
use crate::{
    Actions, Error, EvaluationSets, Predicted, Result, Strategy, TrainingModule, Weights, error,
};

/// The first rows of a value.
fn first_rows(literal: Literal, rows: usize) -> Result<Literal> {
    let ty = literal.ty();
    let mut dims = ty.shape.dims().to_vec();
    let num_rows = dims.first().copied().unwrap_or(0);
    if rows >= num_rows {
        return Ok(literal);
    }
    dims[0] = rows;
    let bytes = literal.bytes();
    Literal::from_bytes(TensorType::new(ty.dtype, dims), &bytes[..bytes.len() / num_rows * rows])
}

/// An iterator over predictions, one batch at a time, in the order of the loader.
/// [`Trainer::predict`] returns it.
///
/// The device computes the next batches while the caller uses one. An error ends the iteration.
/// Ctrl-C, SIGTERM and SIGHUP end it with an error too, and the program continues.
///
/// With several processes, each process must read all of its batches, since their devices wait for
/// each other. A process that stops earlier ends the run for all.
///
/// [`Trainer::predict`]: crate::Trainer::predict
pub struct PredictedBatches {
    /// Each batch that is read has the number of its real samples.
    executor: Executor<usize>,
    step: CompiledStep,
    weights: Vec<DeviceArray>,
    batches: DeviceBatches,
    /// Where the samples that are not read yet come from, if the loader knows it.
    origins: Option<Box<dyn Iterator<Item = String> + Send>>,
    /// The samples that are not launched yet, of all processes together.
    samples_left: usize,
    batch_size: usize,
    _guard: Option<process_group::Guard>,
    /// The number of launched batches.
    launched: usize,
    callbacks: Callbacks,
    /// The progress for callbacks.
    progress: EvaluationProgress,
    /// Whether no more batches are launched.
    ended: bool,
    /// The error that ended launching. It is returned after the predictions that were launched
    /// before it.
    failed: Option<Error>,
}

/// The number of batches that are enqueued on the device before the first of them is read.
const BATCHES_AHEAD: usize = 2;

/// Predicts with a module, one batch at a time.
pub(crate) fn predict(
    session: &mut Session,
    module: &dyn TrainingModule,
    loader: &DataLoader,
    weights: Weights,
) -> Result<PredictedBatches> {
    let (mut evaluations, weights) = Evaluation::open(
        session,
        module,
        &EvaluationSets::from(loader),
        Stage::Prediction,
        weights,
    )?;
    let origins = loader.origins()?;
    let evaluation = evaluations.remove(0);
    let progress = evaluation.progress(session.record.position);
    let Evaluation { step, loader, .. } = evaluation;
    session.callbacks.each(|callback| callback.on_predict_start(&progress));
    let runtime = &session.runtime;
    let process_group = session.process_group.as_ref();
    let interrupt = fulmen_signals::Guard::new(session.choices.options.grace);
    // After a signal, the caller keeps the earlier predictions.
    interrupt.stepped();
    Ok(PredictedBatches {
        executor: Executor::new(runtime, process_group, Some(interrupt)),
        step,
        weights,
        batches: loader.prefetch_to(runtime, &Strategy::batch(runtime.mesh()), 0, 0),
        origins,
        samples_left: loader.num_samples(),
        batch_size: loader.batch_size(),
        _guard: process_group.map(|process_group| process_group.guard()),
        callbacks: session.callbacks.clone(),
        progress,
        launched: 0,
        ended: false,
        failed: None,
    })
}

impl PredictedBatches {
    /// Reads all batches and joins their predictions.
    ///
    /// # Errors
    /// The first error of a batch.
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
        let mut types: Vec<TensorType> = Vec::new();
        let mut parts: Vec<Vec<u8>> = vec![Vec::new(); self.step.outputs().len()];
        let names = self.step.outputs().to_vec();
        let mut rows = 0;
        let mut origins = self.origins.is_some().then(Vec::new);
        for batch in self {
            let batch = batch?;
            rows += batch.num_samples();
            if let Some(origins) = &mut origins {
                origins.extend(batch.origins.into_iter().flatten());
            }
            for ((_, literal), part) in batch.values.iter().zip(&mut parts) {
                part.extend_from_slice(literal.bytes());
            }
            types = batch.values.into_iter().map(|(_, literal)| literal.ty().clone()).collect();
        }
        let literal = |(ty, bytes): (TensorType, Vec<u8>)| {
            let dims = [&[rows], &ty.shape.dims()[1..]].concat();
            Literal::from_bytes(TensorType::new(ty.dtype, dims), &bytes)
        };
        let literals = types.into_iter().zip(parts).map(literal).collect::<Result<Vec<_>>>()?;
        Ok(Predicted { values: names.into_iter().zip(literals).collect(), origins })
    }

    /// Whether this process writes the predictions.
    pub(crate) fn is_coordinator(&self) -> bool {
        self.executor
            .process_group()
            .is_none_or(|process_group| process_group.process().is_coordinator())
    }

    /// Enqueues the next batch on the device. Returns false if there is none.
    fn launch(&mut self) -> Result<bool> {
        if let Some(signal) = self.executor.interrupt_signal()? {
            return Err(error::interrupted("predicting", signal));
        }
        let Some(batch) = self.batches.next().transpose()? else {
            return Ok(false);
        };
        let (_, arrays) = self.executor.step(
            &self.step,
            &mut FixedWeights(&self.weights),
            &mut None,
            None,
            &batch,
        )?;
        // The batch's own count covers only this process.
        let valid = self.samples_left.min(self.batch_size);
        self.executor.read(valid, arrays)?;
        self.samples_left -= valid;
        self.launched += 1;
        Ok(true)
    }

    /// Reports the error to the other processes, which would wait for this one. An interruption
    /// reaches all of them at the same batch, so it needs no report.
    fn report(&self, error: &Error) {
        if let Some(process_group) =
            self.executor.process_group().filter(|_| !error.is_interrupted())
        {
            process_group.fail(error);
        }
    }

    fn try_next(&mut self) -> Result<Option<Predicted>> {
        while !self.ended && self.executor.pending_reads() <= BATCHES_AHEAD {
            match self.launch() {
                Ok(launched) => self.ended = !launched,
                Err(error) => {
                    let error = match self.executor.process_group() {
                        Some(process_group) => process_group.explain(error),
                        None => error,
                    };
                    self.report(&error);
                    (self.ended, self.failed) = (true, Some(error));
                }
            }
        }
        let arrived = match self.executor.next_read() {
            // The other processes know about this failure. Waiting for them only returns the same
            // error.
            Err(_) if self.failed.is_some() => None,
            arrived => arrived?,
        };
        let Some((valid, literals)) = arrived else {
            return self.failed.take().map_or(Ok(None), Err);
        };
        let rows = literals
            .into_iter()
            .map(|literal| first_rows(literal, valid))
            .collect::<Result<Vec<_>>>()?;
        let origins = self.origins.as_mut().map(|origins| origins.take(valid).collect());
        let values = self.step.outputs().iter().cloned().zip(rows).collect();
        let predicted = Predicted { values, origins };
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
            self.callbacks.each(|callback| callback.on_exception(error, &mut Actions::ignored()));
            self.report(error);
            self.ended = true;
            self.executor.forget_reads();
        }
        next
    }
}

impl Drop for PredictedBatches {
    fn drop(&mut self) {
        if !self.ended {
            self.report(&Error::usage(format!(
                "it read only {} of its {} batches of predictions; read all of them in each process",
                self.launched - self.executor.pending_reads(),
                self.progress.batches
            )));
        }
    }
}
