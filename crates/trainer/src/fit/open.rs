//! How a fit begins: it is resumed, traced, agreed on with the other processes, given a folder, compiled and run. All is
//! checked before anything changes.

use std::path::Path;
use std::time::Instant;

use fulmen_data::DataLoader;
use fulmen_tensor::Literal;

use super::Fit;
use crate::bad_samples::BadCount;
use crate::callback::{Callback, FitStart, numbered};
use crate::checkpoint::{self, Position};
use crate::evaluate::Evaluation;
use crate::executor::Executor;
use crate::hints::hints;
use crate::interrupt;
use crate::limits::NO_LIMIT;
use crate::prepare::{Prepared, prepare};
use crate::resume::Start;
use crate::say::note;
use crate::session::Session;
use crate::setting::Setting;
use crate::stage::Stage;
use crate::state::{self, State};
use crate::summary::StepTimes;
use crate::{FitSummary, Plan, Result, TrainingModule, hosts};

/// Trains a module.
pub(crate) fn fit(
    session: &mut Session,
    module: &dyn TrainingModule,
    train: &DataLoader,
    validation: Option<&DataLoader>,
) -> Result<FitSummary> {
    let started = Instant::now();
    let interrupt = interrupt::Guard::new(session.choices.options.grace);
    (session.record.best_checkpoint, session.record.last_checkpoint) = (None, None);
    let setting = session.setting()?;
    let mut start = Start::new(&setting.options)?;
    let prepared = prepare(module, &setting, start.position.seed, train, validation)?;
    start.take_state(&prepared, &setting)?;
    agree(session, module, &prepared, &start)?;
    open_run(session, &prepared.train)?;
    let executor = Executor::new(&session.runtime, session.hosts.as_ref(), Some(interrupt));
    Fit::compile(session, module, &setting, prepared, start, (executor, started))?.run()
}

/// Compares with the other processes what each is about to train, and from which values.
fn agree(session: &Session, module: &dyn TrainingModule, prepared: &Prepared, start: &Start) -> Result<()> {
    let (runtime, seed) = (&session.runtime, start.position.seed);
    session.agree("fit", |facts| {
        hosts::add_program(facts, "training", prepared.program.step.functions(), &prepared.train, runtime)?;
        if let Some((loader, eval)) = &prepared.validation {
            hosts::add_program(facts, "validation", eval.functions(), loader, runtime)?;
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
    let run_dir = session.start_run()?;
    if checkpoints && session.writes() {
        checkpoint::check_writable(&run_dir.join("checkpoints"))?;
    }
    Ok(())
}

impl<'a> Fit<'a> {
    /// Moves the state to the devices, tells the callbacks, and compiles the steps.
    fn compile(
        session: &'a mut Session,
        module: &dyn TrainingModule,
        setting: &Setting,
        prepared: Prepared,
        mut start: Start,
        (executor, started): (Executor<(u64, u64)>, Instant),
    ) -> Result<Fit<'a>> {
        let Prepared { plan, limits, train, layout, program, validation } = prepared;
        let (runtime, seed) = (session.runtime.clone(), start.position.seed);
        module.initialize(seed);
        let state = State::new(layout, start.values.take(), &runtime, |f| session.compile_one("starting values", f))?;
        let of_start = fit_start(session, module, setting, plan, &train, start.position.epoch);
        if plan.total_steps == NO_LIMIT {
            note(
                "note: only max_time ends this run, so that its steps are not known: a schedule over Plan::total_steps stays \
                 where it begins. Set max_steps or max_epochs too for one",
            );
        }
        tell(&mut session.callbacks, &of_start, &start.position);
        for hint in hints(&runtime, setting, &train, program.step.functions())? {
            note(&format!("hint: {hint}"));
        }
        let step = session.compile("training step", &train, program.step)?;
        let validation = match validation {
            Some((loader, program)) => {
                let step = session.compile("validation step", &loader, program)?;
                Some(Evaluation { stage: Stage::Validation, step, loader })
            }
            None => None,
        };
        let averages = match state.to_validate_with().filter(|_| validation.is_some()) {
            Some((function, entries)) => Some((session.compile_one("averaged weights", &function)?, entries)),
            None => None,
        };
        let summary = FitSummary {
            last_checkpoint: start.checkpoint().map(Path::to_owned),
            best_checkpoint: start.best.take(),
            state_bytes: state.bytes(),
            train_compilations: step.compilations(),
            eval_compilations: validation.as_ref().map_or(0, |validation| validation.step.compilations()),
            ..FitSummary::default()
        };
        session.record.eval_compilations += summary.eval_compilations;
        let key = Literal::from_slice(&[(seed >> 32) as u32, seed as u32], [2])?;
        Ok(Fit {
            executor,
            loss: program.loss,
            step,
            validation,
            averages,
            state,
            key: runtime.to_device(&key)?,
            sums: start.logs.map(|logs| runtime.to_device(&logs)).transpose()?,
            position: start.position,
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
fn tell(callbacks: &mut [Box<dyn Callback>], start: &FitStart, position: &Position) {
    callbacks.iter_mut().for_each(|c| c.on_fit_start(start));
    for (name, callback) in numbered(callbacks) {
        if let Some(saved) = position.callbacks.get(&name) {
            callback.load_state(saved);
        }
    }
}

/// What callbacks are told of the start.
fn fit_start(
    session: &Session,
    module: &dyn TrainingModule,
    setting: &Setting,
    plan: Plan,
    train: &DataLoader,
    epoch: u64,
) -> FitStart {
    FitStart {
        run_dir: session.record.run_dir.clone().unwrap_or_default(),
        plan,
        epoch,
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
