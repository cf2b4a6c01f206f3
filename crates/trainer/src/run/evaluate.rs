//! What does not train: a validation, test or prediction step with the weights of a module, and a pass of it over a loader.

use std::borrow::Borrow;
use std::sync::Arc;

use fulmen_data::DataLoader;
use fulmen_tensor::{DeviceArray, Runtime};

use crate::callbacks::calls::Hooks;
use crate::hooks::EvaluationProgress;
use crate::hosts::{self, Hosts};
use crate::program::prepare::check_shardings;
use crate::program::{self, CompiledStep};
use crate::run::bad_samples::BadCount;
use crate::run::executor::Executor;
use crate::run::session::Session;
use crate::stage::Stage;
use crate::state::{self, Fixed};
use crate::{Actions, BatchLimit, Error, LogPoint, Result, Signal, Strategy, TrainingModule, Weights};

/// A compiled step that does not train, with the batches that it runs on.
pub(crate) struct Evaluation {
    pub(crate) stage: Stage,
    pub(crate) step: CompiledStep,
    pub(crate) loader: DataLoader,
}

impl Evaluation {
    /// Makes everything ready to run a step with these weights, and gives them.
    pub(crate) fn new(
        session: &mut Session,
        module: &dyn TrainingModule,
        loader: &DataLoader,
        stage: Stage,
        weights: Weights,
    ) -> Result<(Evaluation, Vec<DeviceArray>)> {
        session.load(module, weights)?;
        let (setting, seed) = (session.setting()?, session.choices.options.seed);
        check_shardings(module, &setting)?;
        module.initialize(seed);
        let loader = setting.evaluation_loader(loader, stage)?;
        let entries = state::of_module(module, &setting);
        let program = program::eval(module, stage, &loader, &entries, &setting, seed)?;
        if program.logs().is_empty() && stage != Stage::Prediction {
            return Err(Error::nothing_logged(stage.step()));
        }
        session.agree_on(stage.verb(), program.functions(), &loader, &entries)?;
        if session.record.run_dir.is_none() && stage != Stage::Prediction {
            session.start_run()?;
        }
        let values = state::compute(&session.runtime, &entries)?;
        let step = session.compile(&format!("{} step", stage.noun()), &loader, program)?;
        session.record.eval_compilations += step.compilations();
        Ok((Evaluation { stage, step, loader }, values))
    }

    /// Runs the step over all batches, or the first ones, unless `each` says after one of them that a signal came; it is told
    /// how many have run. The sums of logged values stay on the device, for the caller to read with others.
    pub(crate) fn run<A: Borrow<DeviceArray>>(
        &self,
        runtime: &Runtime,
        hosts: Option<&Arc<Hosts>>,
        values: &[A],
        batches: BatchLimit,
        mut each: impl FnMut(u64) -> Result<Option<Signal>>,
    ) -> Result<Evaluated> {
        let loader = batches.apply(self.loader.clone(), "num_sanity_val_steps")?;
        // Tells of them when the pass ends, however that is.
        let _bad = BadCount::new(&loader, self.stage.noun());
        let mut sums = Some(runtime.to_device(&self.step.logs().start()?)?);
        let mut media = None;
        let mut executor = Executor::<()>::new(runtime, hosts, None);
        let loaded = loader.prefetch_to(runtime, &Strategy::batch(runtime.mesh()), 0, 0);
        for (batch, number) in loaded.zip(1..) {
            let (_, outputs) = executor.step(&self.step, &mut Fixed(values), &mut sums, None, &batch?)?;
            media.get_or_insert(outputs);
            if let Some(signal) = each(number)? {
                return Ok(Evaluated::Interrupted(signal));
            }
        }
        executor.drain()?;
        let sums = sums.ok_or_else(|| Error::data("the evaluation step gave no result"))?;
        Ok(Evaluated::Logged([sums].into_iter().chain(media.into_iter().flatten()).collect()))
    }
}

impl Stage {
    /// Tells callbacks and the module that a pass over a loader begins, or that one more batch of it was run.
    pub(crate) fn tell(self, hooks: &Hooks<'_>, progress: &EvaluationProgress) {
        match (self, progress.batch) {
            (Stage::Validation, 0) => hooks.on_validation_start(progress),
            (Stage::Validation, _) => hooks.on_validation_batch_end(progress),
            (Stage::Test, 0) => hooks.on_test_start(progress),
            (Stage::Test, _) => hooks.on_test_batch_end(progress),
            // `predict.rs` tells of them as they arrive.
            (Stage::Prediction, _) => {}
        }
    }
}

/// What came of a pass over a loader.
pub(crate) enum Evaluated {
    /// The sums of what was logged, and what the first batch gave besides.
    Logged(Vec<DeviceArray>),
    Interrupted(Signal),
}

/// Validates or tests a module: what its step logs, over all samples of a loader.
pub(crate) fn evaluate(
    session: &mut Session,
    module: &dyn TrainingModule,
    loader: &DataLoader,
    stage: Stage,
    weights: Weights,
) -> Result<LogPoint> {
    let (evaluation, values) = Evaluation::new(session, module, loader, stage, weights)?;
    let (hosts, hooks) = (session.hosts.as_ref(), session.callbacks.with(module));
    let mut progress = session.progress(&evaluation.loader);
    stage.tell(&hooks, &progress);
    let each = |batch| {
        progress.batch = batch;
        stage.tell(&hooks, &progress);
        Ok(None)
    };
    let logged = match evaluation.run(&session.runtime, hosts, &values, BatchLimit::ALL, each)? {
        Evaluated::Logged(logged) => logged,
        Evaluated::Interrupted(signal) => return Err(Error::interrupted("evaluating", signal)),
    };
    let literals = hosts::arrive(hosts, session.runtime.read(&logged.iter().collect::<Vec<_>>())?)?;
    let point = evaluation.step.logs().pass(&mut &literals[..], "", session.record.reached)?;
    session.log(&point, &mut false);
    match stage {
        Stage::Test => hooks.on_test_end(&point),
        _ => hooks.on_validation_end(&point, &mut Actions::outside()),
    }
    Ok(point)
}
