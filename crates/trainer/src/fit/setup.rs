//! Sets up a fit: resumes and traces it, compares it with the other processes, creates its folder,
//! and compiles it. All checks run before anything changes.

use std::path::Path;
use std::time::Instant;

use fulmen_data::DataLoader;

use super::Fit;
use super::checkpoints;
use super::dataloader_reload;
use super::goodput::GoodputFile;
use super::report::Reports;
use super::step_end::Program;
use super::step_times::StepTimes;
use super::validation::Validation;
use crate::callbacks::hook_calls::Hooks;
use crate::checkpoint::locations::{self, RunFiles};
use crate::checkpoint::resume::ResumePoint;
use crate::console::{inform, note};
use crate::evaluation::Evaluation;
use crate::hooks::actions::Actions;
use crate::hooks::{CheckpointFile, FitStart};
use crate::program::declared_programs::DeclaredProgram;
use crate::program::trace_fit::{TracedFit, trace_fit};
use crate::session::Session;
use crate::stage::Stage;
use crate::step::{TrainStep, WeightConversion, check_consistent};
use crate::step_config::StepConfig;
use crate::step_config::limits::tokens_of_a_sample;
use crate::{EvaluationSets, FitSummary, Result, TrainStart, TrainingModule};

/// Prepares a fit up to its first step.
pub(super) fn set_up<'a>(
    session: &'a mut Session,
    hooks: &Hooks<'a>,
    module: &'a dyn TrainingModule,
    train: &DataLoader,
    validation: &EvaluationSets,
) -> Result<Fit<'a>> {
    let started = Instant::now();
    let interrupt = fulmen_signals::Guard::new(session.choices.options.grace);
    (session.record.best_checkpoint, session.record.last_checkpoint) = (None, None);
    let config = session.config()?;
    let (start, prepared) =
        ResumePoint::find("fit", &config.options, session.process_group.as_ref(), |start| {
            let reloaded =
                dataloader_reload::reloaded_loader(module, &config, start.position.epoch)?;
            let prepared = trace_fit(
                module,
                &config,
                start.position.seed,
                reloaded.as_ref().unwrap_or(train),
                validation,
            )?;
            dataloader_reload::check(module, &config, &prepared.train, prepared.limits.epochs)?;
            let TracedFit { train, layout, program, limits, .. } = &prepared;
            start.take_state(train, layout, program.logs(), limits, &config, &session.runtime)?;
            Ok(prepared)
        })?;
    check_consistent(session, "fit", module, &prepared, &start)?;
    let run_files = open_run(session, &prepared.train, start.checkpoint().is_some())?;
    let opened = OpenedRun { session, hooks: hooks.clone(), interrupt, started, run_files };
    Fit::compile(opened, module, &config, prepared, start)
}

/// A fit whose run is open, before its programs are compiled.
struct OpenedRun<'a> {
    session: &'a mut Session,
    hooks: Hooks<'a>,
    interrupt: fulmen_signals::Guard,
    started: Instant,
    run_files: RunFiles,
}

/// Creates the folder of the run and checks that checkpoints can be written there.
fn open_run(session: &mut Session, train: &DataLoader, resumed: bool) -> Result<RunFiles> {
    let checkpoints = session.choices.options.enable_checkpointing;
    if checkpoints && !train.is_ordered() {
        note!(
            "the training loader is not ordered (ordered(false)): if the run is interrupted within an epoch, it can \
             only resume from the checkpoint at the end of an epoch"
        );
    }
    match session.start_run()? {
        Some(run_dir) if checkpoints && session.writes() => {
            locations::check(&session.choices.options, &session.open_store, &run_dir, resumed)
        }
        _ => Ok(RunFiles::default()),
    }
}

impl<'a> Fit<'a> {
    /// Calls the callbacks, moves the state to the devices, and compiles the steps.
    fn compile(
        opened: OpenedRun<'a>,
        module: &'a dyn TrainingModule,
        config: &StepConfig,
        mut prepared: TracedFit,
        mut start: ResumePoint,
    ) -> Result<Fit<'a>> {
        let OpenedRun { session, hooks, interrupt, started, run_files } = opened;
        let fit_start = fit_start(session, module, config, &prepared, &start);
        call_start_hooks(&hooks, &fit_start, &start);
        let conversion = prepared.weight_conversion();
        let sets = std::mem::take(&mut prepared.validation);
        let declared = std::mem::take(&mut prepared.declared);
        let checkpoint = start.checkpoint().map(Path::to_owned);
        let best = start.best.take();
        let run_dir = session.record.run_dir.as_deref().filter(|_| session.writes());
        let first_step = start.position.global_step;
        let options = &config.options;
        let goodput = GoodputFile::new(run_dir, first_step, checkpoint.as_deref(), options);
        let kernels = config.kernels.describe(&prepared.program.taken);
        let step = TrainStep::new(session, module, config, prepared, start, Some(interrupt))?;
        let copy_program = checkpoints::copy_program(session, &step)?;
        let mut validation = Vec::new();
        for set in sets {
            let stage = Stage::Validation;
            let evaluation =
                Evaluation::compile(session, stage, set.name, set.loader, set.program)?;
            validation.push(Validation { cadence: set.cadence, evaluation, has_run: false });
        }
        let programs = compile_declared(session, declared)?;
        let conversion = match conversion {
            Some((function, entries)) => {
                let program = session.compile_one("averaged weights", &function)?;
                Some(WeightConversion { program, entries })
            }
            None => None,
        };
        let summary = FitSummary {
            last_checkpoint: checkpoint,
            best_checkpoint: best,
            state_bytes: step.state.bytes(),
            train_compilations: step.compilations(),
            eval_compilations: validation
                .iter()
                .map(|set| set.evaluation.step.compilations())
                .sum(),
            ..FitSummary::default()
        };
        let start = TrainStart::new(&step.steps, &step.state.layout().phases, &session.runtime);
        if options.enable_model_summary {
            say(&start, kernels);
        }
        hooks.callbacks.each(|callback| callback.on_train_start(&start));
        let reports = Reports::new(module, config, &fit_start, &start);
        session.record.eval_compilations += summary.eval_compilations;
        Ok(Fit {
            hooks,
            actions: Actions::new(step.position.lr_factor.unwrap_or(1.0)),
            programs,
            step,
            validation,
            conversion,
            training_start: started,
            stop_reason: None,
            times: StepTimes::default(),
            goodput,
            hosts: Vec::new(),
            running_save: None,
            copy_program,
            run_files,
            failed_saves: 0,
            running_removals: Vec::new(),
            reports,
            first_step,
            reads_before: fulmen_tensor::internal::host_reads(),
            started,
            session,
            summary,
        })
    }
}

/// Prints what a step costs, and what its methods named `auto` take.
fn say(start: &TrainStart, kernels: Vec<String>) {
    let cost = start.cost().map(ToString::to_string);
    cost.into_iter().chain(kernels).for_each(|line| inform!("{line}"));
}

/// Compiles the programs that the module declares.
fn compile_declared(session: &mut Session, declared: Vec<DeclaredProgram>) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for DeclaredProgram { name, function, outputs } in declared {
        let compiled = session.compile_one(&format!("program `{name}`"), &function)?;
        programs.push(Program { name, compiled, outputs });
    }
    Ok(programs)
}

/// Calls the hooks for the start of a fit, and restores the callbacks' state from the checkpoint.
fn call_start_hooks(hooks: &Hooks<'_>, fit_start: &FitStart, start: &ResumePoint) {
    hooks.on_fit_start(fit_start);
    let position = &start.position;
    hooks.callbacks.each_named(|name, callback| {
        if let Some(saved) = position.callbacks.get(&name) {
            callback.load_state(saved);
        }
    });
    if let Some(path) = start.checkpoint() {
        let path = path.to_owned();
        let epoch = position.epoch;
        let global_step = position.global_step;
        hooks.on_load_checkpoint(&CheckpointFile { path, epoch, global_step, weights_only: false });
    }
}

/// The facts about a fit for `on_fit_start`.
fn fit_start(
    session: &Session,
    module: &dyn TrainingModule,
    config: &StepConfig,
    prepared: &TracedFit,
    start: &ResumePoint,
) -> FitStart {
    let TracedFit { plan, train, program, validation, .. } = prepared;
    FitStart {
        run_dir: session.record.run_dir.clone(),
        checkpoint_dir: session
            .record
            .run_dir
            .as_ref()
            .map(|run| locations::folder(&session.choices.options, run)),
        plan: *plan,
        epoch: start.position.epoch,
        global_step: start.position.global_step,
        resumes_within_epoch: train.is_ordered(),
        platform: session.runtime.client().platform_name().to_owned(),
        devices: session.runtime.devices().iter().map(|device| device.id()).collect(),
        processes: session.processes(),
        learning_rate_factor: config.learning_rate_factor(),
        mesh: config.mesh.to_string(),
        strategy: config.options.strategy,
        batch_size: train.batch_size(),
        per_device_batch_size: train.per_device_batch_size(),
        tokens_per_batch: tokens_of_a_sample(train)
            .ok()
            .map(|tokens| tokens * train.batch_size() as u64),
        precision: config.options.precision.to_string(),
        matmul_precision: config.options.matmul_precision.to_string(),
        num_parameters: module.num_parameters(),
        loss: program.loss.clone(),
        validates: !validation.is_empty(),
    }
}
