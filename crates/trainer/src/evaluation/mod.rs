//! [`Evaluation`]: a validation, test or prediction step with the weights of a module, and its pass
//! over a loader.

pub(crate) mod predicted_batches;
pub(crate) mod prediction_writer;

use std::borrow::Borrow;
use std::sync::Arc;

use fulmen_data::DataLoader;
use fulmen_tensor::{DeviceArray, Literal, Runtime};
use tracing::debug_span;

use crate::bad_samples::BadSampleCount;
use crate::callbacks::hook_calls::Hooks;
use crate::executor::Executor;
use crate::hooks::EvaluationProgress;
use crate::position::StepPosition;
use crate::process_group::{self, ProcessGroup};
use crate::program::trace_fit::check_shardings;
use crate::program::{self, CompiledStep, StepProgram};
use crate::session::Session;
use crate::stage::Stage;
use crate::state::{self, FixedWeights};
use crate::{
    Actions, BatchLimit, Error, EvaluationSets, LogPoint, Result, Signal, Strategy, TrainingModule,
    Weights, error,
};

/// A compiled step that doesn't train, with its loader.
pub(crate) struct Evaluation {
    pub(crate) stage: Stage,
    /// The name of the evaluation set.
    pub(crate) dataset: String,
    pub(crate) step: CompiledStep,
    pub(crate) loader: DataLoader,
}

impl Evaluation {
    /// Compiles the steps for these sets and loads the weights. Returns the steps and the weights
    /// on the device.
    pub(crate) fn open(
        session: &mut Session,
        module: &dyn TrainingModule,
        sets: &EvaluationSets,
        stage: Stage,
        weights: Weights,
    ) -> Result<(Vec<Evaluation>, Vec<DeviceArray>)> {
        if sets.is_empty() {
            return Err(Error::usage(format!(
                "there is no loader to {} on; pass at least one",
                stage.verb()
            )));
        }
        sets.check(stage)?;
        session.load(module, weights)?;
        let config = session.config()?;
        let seed = session.choices.options.seed;
        check_shardings(module, &config)?;
        module.initialize(seed);
        let entries = state::of_module(module, &config);
        let mut recorded = Vec::new();
        for set in &sets.0 {
            let loader = config.evaluation_loader(set.loader(), stage)?;
            let program = program::record_eval_step(
                module,
                stage,
                set.name(),
                &loader,
                &entries,
                &config,
                seed,
            )?;
            if program.logs().is_empty() && stage != Stage::Prediction {
                return Err(error::nothing_logged(stage.step()));
            }
            recorded.push((set.name(), loader, program));
        }
        session.check_consistent(stage.verb(), |facts| {
            for (dataset, loader, program) in &recorded {
                let title =
                    if dataset.is_empty() { stage.verb().into() } else { stage.title(dataset) };
                process_group::add_program(
                    facts,
                    &title,
                    program.functions(),
                    loader,
                    &session.runtime,
                )?;
            }
            facts.insert(
                "weights".into(),
                state::to_compute(&entries).fingerprint(session.runtime.mesh())?,
            );
            Ok(())
        })?;
        if session.record.run_dir.is_none() && stage != Stage::Prediction {
            session.start_run()?;
        }
        let values = state::compute(&session.runtime, &entries)?;
        let mut evaluations = Vec::new();
        for (dataset, loader, program) in recorded {
            let evaluation =
                Evaluation::compile(session, stage, dataset.to_owned(), loader, program)?;
            session.record.eval_compilations += evaluation.step.compilations();
            evaluations.push(evaluation);
        }
        Ok((evaluations, values))
    }

    /// Compiles the step of a set.
    pub(crate) fn compile(
        session: &mut Session,
        stage: Stage,
        dataset: String,
        loader: DataLoader,
        program: StepProgram,
    ) -> Result<Evaluation> {
        let step = session.compile(
            &format!("{} step", stage.title(&dataset)),
            &loader,
            &program,
            Vec::new(),
        )?;
        Ok(Evaluation { stage, dataset, step, loader })
    }

    /// The progress before the first batch, at this position of the training.
    pub(crate) fn progress(&self, position: StepPosition) -> EvaluationProgress {
        let StepPosition { epoch, global_step } = position;
        let dataset = self.dataset.clone();
        let batches = self.loader.len() as u64;
        EvaluationProgress { dataset, batch: 0, batches, epoch, global_step }
    }

    /// Runs [`Evaluation::run`] over all batches, and calls the hooks of callbacks and module.
    /// `position` is that of the training.
    pub(crate) fn run_all<A: Borrow<DeviceArray>>(
        &self,
        runtime: &Runtime,
        process_group: Option<&Arc<ProcessGroup>>,
        hooks: &Hooks<'_>,
        position: StepPosition,
        values: &[A],
        interrupted: impl Fn() -> Result<Option<Signal>>,
    ) -> Result<EvaluationResult> {
        let mut progress = self.progress(position);
        self.stage.call_hooks(hooks, &progress);
        self.run(runtime, process_group, values, BatchLimit::ALL, |batch| {
            progress.batch = batch;
            self.stage.call_hooks(hooks, &progress);
            interrupted()
        })
    }

    /// Runs the step over all batches, or the first ones. It calls `after_batch` with the number of
    /// batches so far, and ends if that returns a signal. The sums of logged values stay on the
    /// device, so that the caller can read them with others.
    pub(crate) fn run<A: Borrow<DeviceArray>>(
        &self,
        runtime: &Runtime,
        process_group: Option<&Arc<ProcessGroup>>,
        values: &[A],
        batches: BatchLimit,
        mut after_batch: impl FnMut(u64) -> Result<Option<Signal>>,
    ) -> Result<EvaluationResult> {
        let loader = batches.apply(self.loader.clone(), "num_sanity_val_steps")?;
        // Dropping this reports bad samples, even if the pass ends with an error.
        let _bad = BadSampleCount::new(&loader, self.stage.noun());
        let mut sums = Some(runtime.to_device(&self.step.logs().start()?)?);
        let mut media = None;
        let mut executor = Executor::<()>::new(runtime, process_group, None);
        let loaded = loader.prefetch_to(runtime, &Strategy::batch(runtime.mesh()), 0, 0);
        for (batch, number) in loaded.zip(1..) {
            let _step = debug_span!("evaluation step", number).entered();
            let (_, outputs) =
                executor.step(&self.step, &mut FixedWeights(values), &mut sums, None, &batch?)?;
            media.get_or_insert(outputs);
            if let Some(signal) = after_batch(number)? {
                return Ok(EvaluationResult::Interrupted(signal));
            }
        }
        executor.drain()?;
        let sums = sums.ok_or_else(|| error::data("the evaluation step gave no result"))?;
        Ok(EvaluationResult::Logged(
            [sums].into_iter().chain(media.into_iter().flatten()).collect(),
        ))
    }
}

impl Stage {
    /// Calls the hooks of callbacks and module for the start of a pass over a loader, or for one
    /// more batch.
    pub(crate) fn call_hooks(self, hooks: &Hooks<'_>, progress: &EvaluationProgress) {
        match (self, progress.batch) {
            (Stage::Validation, 0) => hooks.on_validation_start(progress),
            (Stage::Validation, _) => hooks.on_validation_batch_end(progress),
            (Stage::Test, 0) => hooks.on_test_start(progress),
            (Stage::Test, _) => hooks.on_test_batch_end(progress),
            // `predicted_batches.rs` calls them when the predictions arrive.
            (Stage::Prediction, _) => {}
        }
    }
}

/// The result of a pass over a loader.
pub(crate) enum EvaluationResult {
    /// The sums of logged values, followed by the other outputs of the first batch.
    Logged(Vec<DeviceArray>),
    Interrupted(Signal),
}

/// Builds a log point from the values that were read. The name of each set is appended to the names
/// of its values.
pub(crate) fn evaluation_point<'a>(
    evaluations: impl IntoIterator<Item = &'a Evaluation>,
    mut read: &[Literal],
    position: StepPosition,
) -> Result<LogPoint> {
    let StepPosition { epoch, global_step } = position;
    let mut point = LogPoint { epoch, global_step, ..LogPoint::default() };
    for Evaluation { dataset, step, .. } in evaluations {
        let suffix = if dataset.is_empty() { String::new() } else { format!("/{dataset}") };
        point.extend(&step.logs().pass(&mut read, &suffix, position)?);
    }
    Ok(point)
}

/// Validates or tests a module. Returns the values that its step logs, over all samples of each
/// set.
pub(crate) fn evaluate(
    session: &mut Session,
    module: &dyn TrainingModule,
    sets: &EvaluationSets,
    stage: Stage,
    weights: Weights,
) -> Result<LogPoint> {
    let (evaluations, values) = Evaluation::open(session, module, sets, stage, weights)?;
    let process_group = session.process_group.as_ref();
    let hooks = session.callbacks.with(module);
    let position = session.record.position;
    let mut logged = Vec::new();
    for evaluation in &evaluations {
        match evaluation.run_all(
            &session.runtime,
            process_group,
            &hooks,
            position,
            &values,
            || Ok(None),
        )? {
            EvaluationResult::Logged(arrays) => logged.extend(arrays),
            EvaluationResult::Interrupted(signal) => {
                return Err(error::interrupted("evaluating", signal));
            }
        }
    }
    let literals = process_group::wait_for_literals(
        process_group,
        session.runtime.read(&logged.iter().collect::<Vec<_>>())?,
    )?;
    let point = evaluation_point(&evaluations, &literals, position)?;
    session.log(&point);
    match stage {
        Stage::Test => hooks.on_test_end(&point),
        _ => hooks.on_validation_end(&point, &mut Actions::ignored()),
    }
    Ok(point)
}
