//! How a fit begins: it is resumed, traced, agreed on with the other processes, given a folder, compiled and run. All is
//! checked before anything changes.

use std::path::Path;
use std::time::Instant;

use fulmen_data::DataLoader;
use fulmen_durable::NewFile;
use fulmen_loggers::Status;

use super::Fit;
use super::goodput::GoodputFile;
use super::reloading;
use super::report::{Reports, report_failure};
use super::saving;
use super::step_times::StepTimes;
use super::turn::Program;
use super::validating::Validation;
use crate::callbacks::calls::Hooks;
use crate::checkpoint::places;
use crate::checkpoint::resume::ResumePoint;
use crate::console::note;
use crate::hooks::actions::Actions;
use crate::hooks::{CheckpointFile, FitStart};
use crate::program::trace_fit::{TracedFit, trace_fit};
use crate::run::evaluate::Evaluation;
use crate::run::session::Session;
use crate::stage::Stage;
use crate::step::{TrainStep, agree};
use crate::step_config::StepConfig;
use crate::step_config::limits::tokens_of_a_sample;
use crate::{EvaluationSets, FitSummary, Result, TrainStart, TrainingModule};

/// Trains a module.
pub(crate) fn fit(
    session: &mut Session,
    module: &dyn TrainingModule,
    train: &DataLoader,
    validation: &EvaluationSets,
) -> Result<FitSummary> {
    let hooks = session.callbacks.with(module);
    session.clock.begin();
    let before = session.record.run_dir.clone();
    let result = match open(session, &hooks, module, train, validation) {
        Ok(fit) => fit.run(),
        Err(error) => {
            if session.record.run_dir != before {
                report_failure(session, &error);
            }
            hooks.on_exception(&error, &mut Actions::outside());
            Err(error)
        }
    };
    let interrupted = result.as_ref().is_ok_and(|summary| summary.interrupted);
    let status = if interrupted { Status::Interrupted } else { Status::Finished };
    // Last, so that the loggers' thread has done all that it was given.
    session.finish_logging(status, result.as_ref().err());
    session.clock.pause();
    result
}

/// Brings a fit to its first step.
fn open<'a>(
    session: &'a mut Session,
    hooks: &Hooks<'a>,
    module: &'a dyn TrainingModule,
    train: &DataLoader,
    validation: &EvaluationSets,
) -> Result<Fit<'a>> {
    let started = Instant::now();
    let interrupt = fulmen_signals::Guard::new(session.choices.options.grace);
    (session.record.best_checkpoint, session.record.last_checkpoint) = (None, None);
    let setting = session.setting()?;
    let (start, prepared) = ResumePoint::find(&setting.options, session.hosts.as_ref(), |start| {
        let reloaded = reloading::reloaded(module, &setting, start.position.epoch)?;
        let prepared =
            trace_fit(module, &setting, start.position.seed, reloaded.as_ref().unwrap_or(train), validation)?;
        reloading::check(module, &setting, &prepared.train, prepared.limits.epochs)?;
        let TracedFit { train, layout, program, limits, .. } = &prepared;
        start.take_state(train, layout, program.logs(), limits, &setting, &session.runtime)?;
        Ok(prepared)
    })?;
    agree(session, "fit", module, &prepared, &start)?;
    let alive = open_run(session, &prepared.train, start.checkpoint().is_some())?;
    Fit::compile((session, hooks.clone()), module, &setting, prepared, start, (interrupt, started, alive))
}

/// Makes the folder of the run, to which checkpoints must be writable.
fn open_run(session: &mut Session, train: &DataLoader, resumed: bool) -> Result<Option<NewFile>> {
    let checkpoints = session.choices.options.enable_checkpointing;
    if checkpoints && !train.is_ordered() {
        note(
            "note: the training loader is not ordered (ordered(false)): a run that is interrupted within an epoch can only \
             be resumed from the checkpoint of an epoch's end",
        );
    }
    match session.start_run()? {
        Some(run_dir) if checkpoints && session.writes() => {
            places::check(&session.choices.options, &session.open_store, &run_dir, resumed)
        }
        _ => Ok(None),
    }
}

impl<'a> Fit<'a> {
    /// Moves the state to the devices, tells the callbacks, and compiles the steps.
    fn compile(
        (session, hooks): (&'a mut Session, Hooks<'a>),
        module: &'a dyn TrainingModule,
        setting: &StepConfig,
        mut prepared: TracedFit,
        mut start: ResumePoint,
        (interrupt, started, alive): (fulmen_signals::Guard, Instant, Option<NewFile>),
    ) -> Result<Fit<'a>> {
        let of_start = fit_start(session, module, setting, &prepared, &start);
        tell(&hooks, &of_start, &start);
        let averages = prepared.averages();
        let (sets, declared) = (std::mem::take(&mut prepared.validation), std::mem::take(&mut prepared.declared));
        let (checkpoint, best) = (start.checkpoint().map(Path::to_owned), start.best.take());
        let run_dir = session.record.run_dir.as_deref().filter(|_| session.writes());
        let (at, options) = (start.position.global_step, &setting.options);
        let goodput = GoodputFile::new(run_dir, at, checkpoint.as_deref(), options);
        let step = TrainStep::new(session, module, setting, prepared, start, Some(interrupt))?;
        let copy = saving::copy_program(session, &step)?;
        let mut validation = vec![];
        for set in sets {
            let stage = Stage::Validation;
            let evaluation = Evaluation::compile(session, (stage, set.name), set.loader, set.program)?;
            validation.push(Validation { cadence: set.cadence, evaluation });
        }
        let mut programs = vec![];
        for program in declared {
            let compiled = session.compile_one(&format!("program `{}`", program.name), &program.function)?;
            programs.push(Program { name: program.name, compiled, outputs: program.outputs });
        }
        let averages = averages
            .map(|(function, entries)| session.compile_one("averaged weights", &function).map(|it| (it, entries)))
            .transpose()?;
        let summary = FitSummary {
            last_checkpoint: checkpoint,
            best_checkpoint: best,
            state_bytes: step.state.bytes(),
            train_compilations: step.compilations(),
            eval_compilations: validation.iter().map(|set| set.evaluation.step.compilations()).sum(),
            ..FitSummary::default()
        };
        let start = TrainStart::new(&step.steps, &step.state.layout().phases, &session.runtime);
        if let (true, Some(cost)) = (options.enable_model_summary, start.cost()) {
            note(&cost.to_string());
        }
        hooks.callbacks.each(|callback| callback.on_train_start(&start));
        let reports = Reports::new(module, setting, &of_start, &start);
        session.record.eval_compilations += summary.eval_compilations;
        Ok(Fit {
            hooks,
            asked: Actions::new(step.position.lr_factor.unwrap_or(1.0)),
            programs,
            step,
            validation,
            averages,
            training_since: started,
            wish: None,
            times: StepTimes::default(),
            goodput,
            saving: None,
            copy,
            alive,
            reports,
            began: (at, fulmen_tensor::host_reads()),
            started,
            session,
            summary,
        })
    }
}

/// Tells callbacks that a fit starts, and gives them back what a checkpoint has of them.
fn tell(hooks: &Hooks<'_>, of_start: &FitStart, start: &ResumePoint) {
    hooks.on_fit_start(of_start);
    let position = &start.position;
    hooks.callbacks.each_named(|name, callback| {
        if let Some(saved) = position.callbacks.get(&name) {
            callback.load_state(saved);
        }
    });
    if let Some(path) = start.checkpoint() {
        let (path, epoch, global_step) = (path.to_owned(), position.epoch, position.global_step);
        hooks.on_load_checkpoint(&CheckpointFile { path, epoch, global_step, weights_only: false });
    }
}

/// What callbacks are told of the start.
fn fit_start(
    session: &Session,
    module: &dyn TrainingModule,
    setting: &StepConfig,
    prepared: &TracedFit,
    start: &ResumePoint,
) -> FitStart {
    let TracedFit { plan, train, program, validation, .. } = prepared;
    FitStart {
        run_dir: session.record.run_dir.clone(),
        checkpoint_dir: session.record.run_dir.as_ref().map(|run| places::folder(&session.choices.options, run)),
        plan: *plan,
        epoch: start.position.epoch,
        global_step: start.position.global_step,
        resumes_within_epoch: train.is_ordered(),
        platform: session.runtime.client().platform_name().to_owned(),
        devices: session.runtime.devices().iter().map(|device| device.id()).collect(),
        processes: session.processes(),
        learning_rate_factor: setting.learning_rate_factor(),
        mesh: setting.mesh.to_string(),
        strategy: setting.options.strategy,
        batch_size: train.batch_size(),
        per_device_batch_size: train.per_device_batch_size(),
        tokens_per_batch: tokens_of_a_sample(train).ok().map(|tokens| tokens * train.batch_size() as u64),
        precision: setting.options.precision.to_string(),
        matmul_precision: setting.options.matmul_precision.to_string(),
        num_parameters: module.num_parameters(),
        loss: program.loss.clone(),
        validates: !validation.is_empty(),
    }
}
