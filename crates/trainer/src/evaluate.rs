//! What does not train: a validation, test or prediction step with the weights of a module, and a pass of it over a loader.

use std::borrow::Borrow;
use std::sync::Arc;

use fulmen_data::DataLoader;
use fulmen_tensor::{DeviceArray, Runtime};

use crate::bad_samples::BadCount;
use crate::executor::Executor;
use crate::hosts::{self, Hosts};
use crate::prepare::check_shardings;
use crate::program::{self, CompiledStep};
use crate::session::Session;
use crate::stage::Stage;
use crate::state::{self, Fixed};
use crate::{BatchLimit, Error, LogPoint, Result, Signal, Strategy, TrainingModule, Weights};

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
            let step = stage.step();
            return Err(Error::usage(format!("the module's {step} logs nothing, so there is nothing to evaluate")));
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

    /// Runs the step over all batches, or the first ones, unless `interrupted` says that a signal came. The sums of logged
    /// values stay on the device, for the caller to read with others.
    pub(crate) fn run<A: Borrow<DeviceArray>>(
        &self,
        runtime: &Runtime,
        hosts: Option<&Arc<Hosts>>,
        values: &[A],
        batches: BatchLimit,
        interrupted: impl Fn() -> Result<Option<Signal>>,
    ) -> Result<Evaluated> {
        let loader = batches.apply(self.loader.clone(), "num_sanity_val_steps")?;
        // Tells of them when the pass ends, however that is.
        let _bad = BadCount::new(&loader, self.stage.noun());
        let mut sums = Some(runtime.to_device(&self.step.logs().start()?)?);
        let mut executor = Executor::<()>::new(runtime, hosts, None);
        for batch in loader.prefetch_to(runtime, &Strategy::batch(runtime.mesh()), 0, 0) {
            executor.step(&self.step, &mut Fixed(values), &mut sums, None, &batch?)?;
            if let Some(signal) = interrupted()? {
                return Ok(Evaluated::Interrupted(signal));
            }
        }
        executor.drain()?;
        sums.map(Evaluated::Sums).ok_or_else(|| Error::data("the evaluation step gave no result"))
    }
}

/// What came of a pass over a loader.
pub(crate) enum Evaluated {
    /// The sums of what was logged.
    Sums(DeviceArray),
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
    let hosts = session.hosts.as_ref();
    let sums = match evaluation.run(&session.runtime, hosts, &values, BatchLimit::ALL, || Ok(None))? {
        Evaluated::Sums(sums) => sums,
        Evaluated::Interrupted(signal) => return Err(Error::interrupted("evaluating", signal)),
    };
    let literals = hosts::arrive(hosts, session.runtime.read(&[&sums])?)?;
    let literal = literals.first().ok_or_else(|| Error::data("the device gave no values"))?;
    let logs = evaluation.step.logs();
    let (metrics, arrays) = logs.values(&logs.read(literal)?, "");
    let point = LogPoint { epoch: session.record.reached.0, global_step: session.record.reached.1, metrics, arrays };
    session.log(&point, &mut false);
    Ok(point)
}
