//! How a fit begins: it is resumed, traced, agreed on with the other processes, given a folder, compiled and run. All is
//! checked before anything changes.

use std::path::Path;
use std::time::Instant;

use fulmen_data::DataLoader;
use fulmen_tensor::Literal;

use super::Fit;
use super::logging::Reading;
use super::reloading;
use super::turn::Program;
use super::validating::Validation;
use crate::actions::Actions;
use crate::bad_samples::BadCount;
use crate::callback::{CheckpointFile, FitStart};
use crate::checkpoint::{self, Position};
use crate::evaluate::Evaluation;
use crate::executor::Executor;
use crate::hints::hints;
use crate::hooks::Hooks;
use crate::hyperparameters::Told;
use crate::interrupt;
use crate::limits::NO_LIMIT;
use crate::prepare::{Prepared, prepare};
use crate::program::Stage;
use crate::resume::Start;
use crate::say::note;
use crate::session::Session;
use crate::setting::Setting;
use crate::state::{self, State};
use crate::summary::StepTimes;
use crate::{FitSummary, ModelSummary, Plan, Result, TrainingModule, ValidationSets, hosts};

/// Trains a module.
pub(crate) fn fit(
    session: &mut Session,
    module: &dyn TrainingModule,
    train: &DataLoader,
    validation: &ValidationSets<'_>,
) -> Result<FitSummary> {
    let hooks = session.callbacks.with(module);
    match open(session, &hooks, module, train, validation) {
        Ok(fit) => fit.run(),
        Err(error) => {
            hooks.on_exception(&error, &mut Actions::outside());
            Err(error)
        }
    }
}

/// Brings a fit to its first step.
fn open<'a>(
    session: &'a mut Session,
    hooks: &Hooks<'a>,
    module: &'a dyn TrainingModule,
    train: &DataLoader,
    validation: &ValidationSets<'_>,
) -> Result<Fit<'a>> {
    let started = Instant::now();
    let interrupt = interrupt::Guard::new(session.choices.options.grace);
    (session.record.best_checkpoint, session.record.last_checkpoint) = (None, None);
    let setting = session.setting()?;
    let mut start = Start::new(&setting.options)?;
    let reloaded = reloading::reloaded(module, &setting, start.position.epoch)?;
    let prepared = prepare(module, &setting, start.position.seed, reloaded.as_ref().unwrap_or(train), validation)?;
    reloading::check(module, &setting, &prepared.train, prepared.limits.epochs)?;
    start.take_state(&prepared, &setting)?;
    agree(session, module, &prepared, &start)?;
    open_run(session, &prepared.train)?;
    let executor = Executor::new(&session.runtime, session.hosts.as_ref(), Some(interrupt));
    Fit::compile((session, hooks.clone()), module, &setting, prepared, start, (executor, started))
}

/// Compares with the other processes what each is about to train, and from which values.
fn agree(session: &Session, module: &dyn TrainingModule, prepared: &Prepared, start: &Start) -> Result<()> {
    let (runtime, seed) = (&session.runtime, start.position.seed);
    session.agree("fit", |facts| {
        hosts::add_program(facts, "training", prepared.program.step.functions(), &prepared.train, runtime)?;
        for set in &prepared.validation {
            hosts::add_program(facts, &set.title(), set.program.functions(), &set.loader, runtime)?;
        }
        for program in &prepared.declared {
            facts.insert(format!("program `{}`", program.name), program.function.fingerprint(runtime.mesh())?);
        }
        match &start.values {
            Some(values) => hosts::add_checkpoint(facts, &start.position, values),
            None => {
                module.initialize(seed);
                let initial = state::to_compute(prepared.layout.entries()).fingerprint(runtime.mesh())?;
                facts.insert("initial values".into(), initial);
            }
        }
        Ok(())
    })
}

/// Makes the folder of the run, to which checkpoints must be writable.
fn open_run(session: &mut Session, train: &DataLoader) -> Result<()> {
    let checkpoints = session.choices.options.enable_checkpointing;
    if checkpoints && !train.is_ordered() {
        note(
            "note: the training loader is not ordered (ordered(false)): a run that is interrupted within an epoch can only \
             be resumed from the checkpoint of an epoch's end",
        );
    }
    match session.start_run()? {
        Some(run_dir) if checkpoints && session.writes() => checkpoint::check_writable(&run_dir.join("checkpoints")),
        _ => Ok(()),
    }
}

impl<'a> Fit<'a> {
    /// Moves the state to the devices, tells the callbacks, and compiles the steps.
    fn compile(
        (session, hooks): (&'a mut Session, Hooks<'a>),
        module: &dyn TrainingModule,
        setting: &Setting,
        prepared: Prepared,
        mut start: Start,
        (executor, started): (Executor<Reading>, Instant),
    ) -> Result<Fit<'a>> {
        let Prepared { plan, limits, train, layout, program, validation: sets, declared } = prepared;
        let (runtime, seed) = (session.runtime.clone(), start.position.seed);
        module.initialize(seed);
        let state = State::new(layout, start.values.take(), &runtime, |f| session.compile_one("starting values", f))?;
        if session.choices.options.enable_model_summary {
            note(&ModelSummary::new(module, 1).to_string());
        }
        let of_start = fit_start(session, module, setting, plan, &train, &start);
        if plan.total_steps == NO_LIMIT {
            note(
                "note: only max_time ends this run, so that its steps are not known: a schedule over Plan::total_steps stays \
                 where it begins. Set max_steps or max_epochs too for one",
            );
        }
        tell(&hooks, &of_start, &start);
        for hint in hints(&runtime, setting, &train, program.step.functions())? {
            note(&format!("hint: {hint}"));
        }
        let step = session.compile("training step", &train, program.step)?;
        let mut validation = vec![];
        for set in sets {
            let step = session.compile(&format!("{} step", set.title()), &set.loader, set.program)?;
            let evaluation = Evaluation { stage: Stage::Validation, step, loader: set.loader };
            validation.push(Validation { name: set.name, cadence: set.cadence, evaluation });
        }
        let mut programs = vec![];
        for program in declared {
            let compiled = session.compile_one(&format!("program `{}`", program.name), &program.function)?;
            programs.push(Program { name: program.name, compiled, outputs: program.outputs });
        }
        let evaluates = !validation.is_empty() || !programs.is_empty();
        let averages = match state.to_validate_with().filter(|_| evaluates) {
            Some((function, entries)) => Some((session.compile_one("averaged weights", &function)?, entries)),
            None => None,
        };
        let summary = FitSummary {
            last_checkpoint: start.checkpoint().map(Path::to_owned),
            best_checkpoint: start.best.take(),
            state_bytes: state.bytes(),
            train_compilations: step.compilations(),
            eval_compilations: validation.iter().map(|set| set.evaluation.step.compilations()).sum(),
            ..FitSummary::default()
        };
        session.record.eval_compilations += summary.eval_compilations;
        let told = Told { config: None, ..session.told.clone() };
        let key = Literal::from_slice(&[(seed >> 32) as u32, seed as u32], [2])?;
        Ok(Fit {
            hooks,
            asked: Actions::new(start.position.lr_factor.unwrap_or(1.0)),
            programs,
            executor,
            loss: program.loss,
            step,
            validation,
            averages,
            state,
            key: runtime.to_device(&key)?,
            sums: start.logs.map(|logs| runtime.to_device(&logs)).transpose()?,
            media: vec![],
            position: Position { told, ..start.position },
            limits,
            training_since: started,
            wish: None,
            times: StepTimes::default(),
            bad: BadCount::new(&train, "training"),
            warned_of_nan: false,
            warned_of_logger: false,
            started,
            train,
            session,
            summary,
        })
    }
}

/// Tells callbacks that a fit starts, and gives them back what a checkpoint has of them.
fn tell(hooks: &Hooks<'_>, of_start: &FitStart, start: &Start) {
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
    setting: &Setting,
    plan: Plan,
    train: &DataLoader,
    start: &Start,
) -> FitStart {
    FitStart {
        run_dir: session.record.run_dir.clone(),
        plan,
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
        precision: setting.options.precision.to_string(),
        matmul_precision: setting.options.matmul_precision.to_string(),
        num_parameters: module.num_parameters(),
    }
}
