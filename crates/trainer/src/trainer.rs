//! [`Trainer`]: the public face of training, validating and testing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use fulmen_data::{DataLoader, LoaderReport, Replicas};
use fulmen_tensor::{Compiled, Function, Literal, Runtime};

use crate::callback::{Callback, FitStart};
use crate::checkpoint;
use crate::evaluate::Evaluation;
use crate::fit::{Fit, numbered};
use crate::hints::hints;
use crate::hosts::{self, Hosts};
use crate::interrupt;
use crate::loggers::Logger;
use crate::predict::{self, PredictedBatches};
use crate::prepare::{Prepared, check_shardings, prepare, set_up};
use crate::program::{self, Stage};
use crate::resume::Start;
use crate::say::note;
use crate::setting::{Extras, Setting};
use crate::state::{self, Entry, State};
use crate::weights::load_values;
use crate::{
    Error, FitSummary, LogPoint, Options, Precision, Result, Strategy, TrainerBuilder, TrainingModule, Weights,
};

/// Trains, validates and tests a [`TrainingModule`].
///
/// ```no_run
/// use fulmen_trainer::Trainer;
/// let trainer = Trainer::builder().max_epochs(3).log_every_n_steps(20).build()?;
/// # Ok::<(), fulmen_trainer::Error>(())
/// ```
pub struct Trainer {
    options: Options,
    extras: Extras,
    runtime: Runtime,
    /// The other processes, if there are any.
    hosts: Option<Arc<Hosts>>,
    callbacks: Vec<Box<dyn Callback>>,
    loggers: Vec<Box<dyn Logger>>,
    run_dir: Option<PathBuf>,
    best_checkpoint: Option<PathBuf>,
    last_checkpoint: Option<PathBuf>,
    /// The epoch and the step that training has reached, for what is logged after it.
    reached: (u64, u64),
    log_points: u64,
    eval_compilations: u64,
    transfers_before: u64,
    /// Of the training loader in the latest fit.
    loader: Option<LoaderReport>,
}

impl Trainer {
    pub(crate) fn new(
        (options, extras): (Options, Extras),
        runtime: Runtime,
        hosts: Option<Arc<Hosts>>,
        callbacks: Vec<Box<dyn Callback>>,
        loggers: Vec<Box<dyn Logger>>,
    ) -> Trainer {
        let transfers_before = runtime.metrics().value("TransferFromDeviceTime");
        Trainer {
            options,
            extras,
            runtime,
            hosts,
            callbacks,
            loggers,
            run_dir: None,
            best_checkpoint: None,
            last_checkpoint: None,
            reached: (0, 0),
            log_points: 0,
            eval_compilations: 0,
            transfers_before,
            loader: None,
        }
    }

    /// Options, callbacks and loggers, to be chosen.
    pub fn builder() -> TrainerBuilder {
        TrainerBuilder::default()
    }

    /// The options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The device and the programs compiled for it.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The best checkpoint of the last fit by its monitored metric.
    pub fn best_checkpoint(&self) -> Option<&Path> {
        self.best_checkpoint.as_deref()
    }

    /// The last checkpoint of the last fit.
    pub fn last_checkpoint(&self) -> Option<&Path> {
        self.last_checkpoint.as_deref()
    }

    /// Devices that a fit runs on.
    pub fn num_devices(&self) -> usize {
        self.runtime.devices().len()
    }

    /// Which process this is, from 0. Process 0 is the one that writes logs and checkpoints.
    pub fn process_index(&self) -> usize {
        self.hosts.as_ref().map_or(0, |hosts| hosts.process().index())
    }

    /// How many processes train together.
    pub fn num_processes(&self) -> usize {
        self.hosts.as_ref().map_or(1, |hosts| hosts.process().count())
    }

    /// How steps are recorded for these devices.
    fn setting(&self) -> Result<Setting> {
        let replicas = Replicas::of(&self.runtime, &Strategy::batch(self.runtime.mesh()));
        let replicas = replicas.map_err(|e| Error::usage(e.to_string()))?;
        Ok(Setting::new(&self.options, self.runtime.mesh().clone(), replicas).with(&self.extras))
    }

    /// The element types that a model is kept and computed in.
    pub fn precision(&self) -> Precision {
        self.options.precision.resolved()
    }

    /// The folder of this run, once something was run.
    pub fn run_dir(&self) -> Option<&Path> {
        self.run_dir.as_deref()
    }

    /// How many times logged values were handed to loggers: the log points of training, one for each epoch, one for
    /// each validation or test outside of training.
    pub fn log_points(&self) -> u64 {
        self.log_points
    }

    /// How often validation and test steps were compiled.
    pub fn eval_compilations(&self) -> u64 {
        self.eval_compilations
    }

    /// How many times values were asked of the device since this Trainer was built. Values asked for together, those
    /// of a checkpoint say, are one transfer.
    pub fn device_to_host_transfers(&self) -> u64 {
        self.runtime.metrics().value("TransferFromDeviceTime") - self.transfers_before
    }

    /// What the runtime did, in the grammar of PyTorch/XLA's `metrics_report`; behind it what the training loader did in the
    /// latest fit, by its stages and queues, as [`LoaderReport`] writes it.
    pub fn metrics_report(&self) -> String {
        let mut text = self.runtime.metrics().report();
        if let Some(loader) = &self.loader {
            text.push_str(&format!("Data loader: {loader}\n"));
        }
        text
    }

    /// Makes a new folder for a run and starts the loggers in it. With several processes, process 0 makes it for all.
    fn start_run(&mut self) -> Result<PathBuf> {
        let make = || checkpoint::new_version_folder(&self.options.default_root_dir);
        let folder = match &self.hosts {
            Some(hosts) => hosts.broadcast("run_dir", make)?,
            None => make()?,
        };
        for logger in &mut self.loggers {
            logger.start(&folder).map_err(|e| Error::logger(&folder, e))?;
        }
        self.run_dir = Some(folder.clone());
        Ok(folder)
    }

    /// Compiles a step for each shape of batches and says how many compilations that took: one each, or none for what was
    /// compiled before.
    fn compile(&mut self, step: &str, loader: &DataLoader, functions: &[Function]) -> Result<(Vec<Compiled>, u64)> {
        let titles = program::titles(step, loader);
        let each = functions.iter().zip(&titles);
        let compiled: Vec<Compiled> = each.map(|(f, title)| self.compile_one(title, f)).collect::<Result<_, _>>()?;
        let count = compiled.iter().filter(|c| !c.was_cached()).count() as u64;
        Ok((compiled, count))
    }

    /// Compiles a program and tells the callbacks.
    fn compile_one(&mut self, program: &str, function: &Function) -> fulmen_tensor::Result<Compiled> {
        let mut announced = false;
        let compiled = self.runtime.compile_announced(function, || {
            announced = true;
            self.callbacks.iter_mut().for_each(|c| c.on_compile_start(program));
        });
        if announced {
            let time = compiled.as_ref().ok().and_then(Compiled::compile_time);
            self.callbacks.iter_mut().for_each(|c| c.on_compile_end(program, time));
        }
        compiled
    }

    /// Trains the module on `train`, validating on `validation` if there is one and the module's `validation_step`
    /// logs something. The module is initialized with the Trainer's seed unless it has values, which it also gets
    /// back when training ends, however it ends.
    ///
    /// # Errors
    /// A mistake in a step, with the user's line; a sample that cannot be read; a loss that is not finite (if
    /// `detect_nan`); a checkpoint that cannot be read or written; whatever the device reports.
    pub fn fit<M: TrainingModule>(
        &mut self,
        module: &M,
        train: &DataLoader,
        validation: Option<&DataLoader>,
    ) -> Result<FitSummary> {
        let result = self.with_hosts(|trainer| trainer.try_fit(module, train, validation));
        match &result {
            Ok(summary) => self.callbacks.iter_mut().for_each(|c| c.on_fit_end(summary)),
            Err(error) => self.callbacks.iter_mut().for_each(|c| c.on_exception(error)),
        }
        result
    }

    /// Does something that needs the other processes, if there are any: each of them hears when it fails in one.
    fn with_hosts<T>(&mut self, doing: impl FnOnce(&mut Trainer) -> Result<T>) -> Result<T> {
        let hosts = self.hosts.clone();
        let _guard = hosts.as_ref().map(|hosts| hosts.guard());
        let result = doing(self);
        if let (Some(hosts), Err(error)) = (&hosts, &result) {
            hosts.fail(error);
        }
        result
    }

    /// Compares with the other processes what each is about to run, before any of them waits for another on a device.
    fn agree(&self, what: &str, facts: impl FnOnce(&mut hosts::Facts) -> Result<()>) -> Result<()> {
        let Some(hosts) = &self.hosts else { return Ok(()) };
        let mut all = hosts::of_run(&self.options, &self.runtime)?;
        facts(&mut all)?;
        hosts.agree(what, &all)?;
        hosts.check_runtime(&self.runtime)
    }

    /// As [`Trainer::agree`], for a program that runs with weights that do not change.
    fn agree_on(&self, what: &str, functions: &[Function], loader: &DataLoader, weights: &[Entry]) -> Result<()> {
        self.agree(what, |facts| {
            hosts::add_program(facts, what, functions, loader, &self.runtime)?;
            facts.insert("weights".into(), state::to_compute(weights).fingerprint(self.runtime.mesh())?);
            Ok(())
        })
    }

    fn try_fit<M: TrainingModule>(
        &mut self,
        module: &M,
        train: &DataLoader,
        validation: Option<&DataLoader>,
    ) -> Result<FitSummary> {
        let started = Instant::now();
        (self.best_checkpoint, self.last_checkpoint) = (None, None);
        let interrupt = interrupt::Guard::new();
        // Everything is checked before anything changes: the steps are recorded, and a checkpoint must fit.
        let mut from = Start::new(&self.options)?;
        let seed = from.position.seed;
        let setting = self.setting()?;
        let Prepared { plan, train, layout, program, validation } =
            prepare(module, &setting, self.options.max_epochs, seed, train, validation)?;
        let saved = from.take_state(&train, &layout, &program, &setting, self.options.max_epochs)?;
        self.agree("fit", |facts| {
            hosts::add_program(facts, "training", &program.functions, &train, &self.runtime)?;
            if let Some((loader, eval)) = &validation {
                hosts::add_program(facts, "validation", &eval.functions, loader, &self.runtime)?;
            }
            match &saved {
                Some(saved) => hosts::add_checkpoint(facts, &from.position, &saved.values),
                None => {
                    module.initialize(seed);
                    let initial = state::to_compute(layout.entries()).fingerprint(self.runtime.mesh())?;
                    facts.insert("initial values".into(), initial);
                }
            }
            Ok(())
        })?;
        if self.options.enable_checkpointing && !train.is_ordered() {
            note(
                "note: the training loader is not ordered (ordered(false)): a run that is interrupted within an epoch can only \
                 be resumed from the checkpoint of an epoch's end",
            );
        }
        let run_dir = self.start_run()?;
        if self.options.enable_checkpointing && self.process_index() == 0 {
            checkpoint::check_writable(&run_dir.join("checkpoints"))?;
        }
        let mut summary = FitSummary {
            last_checkpoint: from.checkpoint().map(Path::to_owned),
            best_checkpoint: from.best_checkpoint(),
            ..FitSummary::default()
        };
        let (values, logs) = saved.map_or((None, None), |saved| (Some(saved.values), saved.logs));

        module.initialize(seed);
        let runtime = self.runtime.clone();
        let mut state = State::new(layout, values, &runtime, |f| self.compile_one("starting values", f))?;
        summary.state_bytes = state.bytes();
        let start = FitStart {
            run_dir: run_dir.clone(),
            plan,
            epoch: from.position.epoch,
            platform: self.runtime.client().platform_name().to_owned(),
            devices: self.runtime.devices().iter().map(|device| device.id()).collect(),
            processes: self.num_processes(),
            learning_rate_factor: setting.learning_rate_factor(),
            mesh: setting.mesh.to_string(),
            strategy: setting.strategy,
            batch_size: train.batch_size(),
            per_device_batch_size: train.per_device_batch_size(),
            precision: setting.precision.to_string(),
            matmul_precision: setting.matmul_precision.to_string(),
            num_parameters: module.num_parameters(),
        };
        self.callbacks.iter_mut().for_each(|c| c.on_fit_start(&start));
        for (name, callback) in numbered(&mut self.callbacks) {
            if let Some(saved) = from.position.callbacks.get(&name) {
                callback.load_state(saved);
            }
        }
        for hint in hints(&self.runtime, &setting, &train, &program.functions)? {
            note(&format!("hint: {hint}"));
        }
        let (steps, train_compilations) = self.compile("training step", &train, &program.functions)?;
        summary.train_compilations = train_compilations;
        let validation = match validation {
            Some((loader, eval)) => {
                let (compiled, count) = self.compile("validation step", &loader, &eval.functions)?;
                summary.eval_compilations = count;
                Some((loader, Evaluation { compiled, layout: eval.layout, what: "validation" }))
            }
            None => None,
        };
        self.eval_compilations += summary.eval_compilations;
        let averages = match state.to_validate_with().filter(|_| validation.is_some()) {
            Some((function, places)) => Some((self.compile_one("averaged weights", &function)?, places)),
            None => None,
        };
        let key = Literal::from_slice(&[(seed >> 32) as u32, seed as u32], [2])?;
        let fit = Fit {
            runtime: &self.runtime,
            hosts: self.hosts.as_ref(),
            options: &self.options,
            run_dir: &run_dir,
            callbacks: &mut self.callbacks,
            loggers: &mut self.loggers,
            program: &program,
            steps: &steps,
            train: &train,
            validation,
            averages,
            state: &mut state,
            key: self.runtime.to_device(&key)?,
            position: from.position,
            started,
            log_points: &mut self.log_points,
            logs: logs.map(|logs| self.runtime.to_device(&logs)).transpose()?,
            summary: &mut summary,
        };
        let result = fit.run(&interrupt);
        self.loader = Some(train.report());
        self.best_checkpoint.clone_from(&summary.best_checkpoint);
        self.last_checkpoint.clone_from(&summary.last_checkpoint);
        result?;
        self.reached = (summary.epochs.saturating_sub(1), summary.global_step);
        Ok(summary)
    }

    /// Runs `validation_step` over a loader with the module's weights and returns the means of what it logs.
    ///
    /// # Errors
    /// As [`Trainer::fit`]; a `validation_step` that logs nothing.
    pub fn validate<M: TrainingModule>(&mut self, module: &M, loader: &DataLoader) -> Result<LogPoint> {
        self.validate_with(module, loader, Weights::Current)
    }

    pub(crate) fn validate_with<M: TrainingModule>(
        &mut self,
        module: &M,
        loader: &DataLoader,
        weights: Weights,
    ) -> Result<LogPoint> {
        self.with_hosts(|trainer| {
            trainer.load(module, weights)?;
            trainer.evaluate(module, loader, Stage::Validation)
        })
    }

    /// Runs `test_step` over a loader and returns the means of what it logs. The module keeps the weights that were
    /// tested.
    ///
    /// # Errors
    /// As [`Trainer::fit`]; a `test_step` that logs nothing; weights that are not there.
    pub fn test<M: TrainingModule>(&mut self, module: &M, loader: &DataLoader, weights: Weights) -> Result<LogPoint> {
        self.with_hosts(|trainer| {
            trainer.load(module, weights)?;
            trainer.evaluate(module, loader, Stage::Test)
        })
    }

    /// Runs `predict_step` over a loader and gives what it computes, a batch at a time, for the real samples and in the
    /// loader's order. The module keeps the weights that it predicted with.
    ///
    /// # Errors
    /// As [`Trainer::test`]; a module that predicts nothing, or something without a row for each sample; a loader that skips
    /// or substitutes samples, of which nobody knows whose a prediction is. What goes wrong later is told by the batch that it went wrong in.
    pub fn predict<M: TrainingModule>(
        &mut self,
        module: &M,
        loader: &DataLoader,
        weights: Weights,
    ) -> Result<PredictedBatches> {
        self.with_hosts(|trainer| trainer.try_predict(module, loader, weights))
    }

    fn try_predict<M: TrainingModule>(
        &mut self,
        module: &M,
        loader: &DataLoader,
        weights: Weights,
    ) -> Result<PredictedBatches> {
        self.load(module, weights)?;
        module.initialize(self.options.seed);
        let setting = self.setting()?;
        check_shardings(module, &setting)?;
        let loader = &setting.distribute(loader, "prediction")?;
        let entries = state::of_module(module, &setting);
        let program = predict::program(module, loader, &entries, &setting, self.options.seed)?;
        self.agree_on("predict", std::slice::from_ref(&program.function), loader, &entries)?;
        let values = state::compute(&self.runtime, &entries)?;
        let compiled = self.compile_one("prediction step", &program.function)?;
        self.eval_compilations += u64::from(!compiled.was_cached());
        Ok(PredictedBatches::new(&self.runtime, compiled, program, values, loader, self.hosts.as_ref()))
    }

    /// Gives a module the weights that were chosen.
    pub(crate) fn load<M: TrainingModule>(&self, module: &M, weights: Weights) -> Result<()> {
        set_up(module, &self.setting()?)?;
        let none = |which: &str| Error::usage(format!("there is no {which} checkpoint: the last fit saved none"));
        let file = match weights {
            Weights::Current => return Ok(()),
            Weights::Best => self.best_checkpoint.clone().ok_or_else(|| none("best"))?,
            Weights::Last => self.last_checkpoint.clone().ok_or_else(|| none("last"))?,
            Weights::File(path) => path,
        };
        load_values(module, &file)
    }

    fn evaluate<M: TrainingModule>(&mut self, module: &M, loader: &DataLoader, stage: Stage) -> Result<LogPoint> {
        let setting = self.setting()?;
        set_up(module, &setting)?;
        check_shardings(module, &setting)?;
        module.initialize(self.options.seed);
        let which = if stage == Stage::Test { "test" } else { "validation" };
        let loader = &setting.distribute(loader, which)?;
        let entries = state::of_module(module, &setting);
        let program = program::eval(module, stage, loader, &entries, &setting, self.options.seed)?;
        if program.layout.is_empty() {
            let step = stage.step();
            return Err(Error::usage(format!("the module's {step} logs nothing, so there is nothing to evaluate")));
        }
        let what = if stage == Stage::Test { "test" } else { "validate" };
        self.agree_on(what, &program.functions, loader, &entries)?;
        if self.run_dir.is_none() {
            self.start_run()?;
        }
        let values = state::compute(&self.runtime, &entries)?;
        let (compiled, count) = self.compile(&format!("{which} step"), loader, &program.functions)?;
        self.eval_compilations += count;
        let evaluation = Evaluation { compiled, layout: program.layout, what: which };
        let hosts = self.hosts.as_ref();
        let logs = evaluation.run(&self.runtime, hosts, loader, &values.iter().collect::<Vec<_>>())?;
        let literals = hosts::arrive(hosts, self.runtime.read(&[&logs])?)?;
        let literal = literals.first().ok_or_else(|| Error::data("the device gave no values"))?;
        let (metrics, arrays) = evaluation.layout.values(&evaluation.layout.read(literal)?, "");
        let point = LogPoint { epoch: self.reached.0, global_step: self.reached.1, metrics, arrays };
        self.log_points += 1;
        for logger in &mut self.loggers {
            if let Err(error) = logger.log(&point) {
                note(&format!("warning: logged values could not be written: {error}"));
            }
        }
        Ok(point)
    }
}
