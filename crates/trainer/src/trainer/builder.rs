//! [`TrainerBuilder`]: options, callbacks and loggers, and the defaults of what was not chosen.

use std::fmt;
use std::panic::Location;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fulmen_loggers::{CsvLogger, JsonlLogger, Logger, TensorBoardLogger};
use fulmen_pjrt::diagnosis::{device_files, diagnose};
use fulmen_pjrt::locate::Platform;
use fulmen_tensor::{Accelerator, Devices, MatmulPrecision, Mesh, Runtime};
use serde::Serialize;
use serde_json::{Map, Value as Json};

use crate::callbacks::callback::Callback;
#[cfg(feature = "prometheus")]
use crate::callbacks::metrics_endpoint::MetricsEndpoint;
use crate::callbacks::{ModelCheckpoint, ProgressBar};
use crate::checkpoint::places;
use crate::checkpoint::run_config::RunConfig;
use crate::console::note;
use crate::goodput::Clock;
use crate::options::environment;
use crate::options::{TrainerArgs, option_table};
use crate::process_group::{ProcessGroup, check_alone};
use crate::run::session::{Record, Session};
use crate::step_config::Choices;
use crate::step_config::step_part::StepPart;
use crate::{
    BatchLimit, Error, FastDevRun, GradientClipAlgorithm, LearningRateScaling, LoggerSet, MetricsPort, Options,
    Precision, Profiler, Result, Resume, Strategy, TrainDuration, Trainer, WeightAveraging,
};

/// Collects what a [`Trainer`] is made of. There is one method for each row of [`Options::table`].
#[derive(Default)]
pub struct TrainerBuilder {
    pub(crate) given: TrainerArgs,
    /// The first option that was given as a text that says nothing, with why.
    refused: Option<String>,
    callbacks: Vec<Box<dyn Callback>>,
    loggers: Vec<Box<dyn Logger>>,
    runtime: Option<Runtime>,
    averaging: Option<WeightAveraging>,
    pub(crate) mesh: Option<Mesh>,
    pub(crate) told: RunConfig,
}

impl TrainerBuilder {
    /// Takes over the options that were given on the command line. What comes later wins.
    pub fn args(mut self, args: TrainerArgs) -> Self {
        self.given.merge(args);
        self
    }

    /// Adds a callback. They run in the order in which they were added. A [`ModelCheckpoint`] is added by itself
    /// unless one is given or checkpoints are off; so is a [`ProgressBar`].
    pub fn callback(mut self, callback: impl Callback + 'static) -> Self {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// Adds a logger. Those that come with Fulmen then keep nothing, unless [`loggers`](TrainerBuilder::loggers) names them.
    pub fn logger(mut self, logger: impl Logger + 'static) -> Self {
        self.loggers.push(Box::new(logger));
        self
    }

    /// Trains on this runtime instead of one opened for the accelerator.
    pub fn runtime(mut self, runtime: Runtime) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Averages the weights of many steps, and validates, tests and saves the average.
    pub fn weight_averaging(mut self, averaging: WeightAveraging) -> Self {
        self.averaging = Some(averaging);
        self
    }

    /// Keeps what the run was made with, a struct or a map with names: Lightning's `save_hyperparameters`. It goes into
    /// every checkpoint, from which [`load_hyperparameters`](crate::load_hyperparameters) reads it, and to the loggers. The
    /// arguments of a program with a command line (`fulmen-trainer-cli`) are kept without this.
    ///
    /// ```
    /// use fulmen_trainer::Trainer;
    ///
    /// #[derive(serde::Serialize)]
    /// struct Config {
    ///     hidden: usize,
    ///     dropout: f64,
    /// }
    ///
    /// let trainer = Trainer::builder().hyperparameters(Config { hidden: 64, dropout: 0.1 }).build()?;
    /// # drop(trainer);
    /// # Ok::<(), fulmen_trainer::Error>(())
    /// ```
    ///
    /// A value without names, a number say, is an error of [`build`](TrainerBuilder::build).
    #[track_caller]
    pub fn hyperparameters(mut self, hyperparameters: impl Serialize) -> Self {
        let why = match serde_json::to_value(hyperparameters) {
            Ok(Json::Object(named)) => {
                self.told.hyperparameters = named;
                return self;
            }
            Ok(other) => format!("a struct or a map is expected, whose values have names, not {other}"),
            Err(error) => error.to_string(),
        };
        self.refuse("hyperparameters", &why, Location::caller());
        self
    }

    /// Keeps the arguments of a program's command line, by their flags. They go into every checkpoint, from which
    /// [`load_arguments`](crate::load_arguments) reads them, and to the loggers. `config` is what `config.toml` in the run's
    /// folder says; without it, that is the Trainer's options. `fulmen-trainer-cli` calls this.
    ///
    /// ```
    /// use fulmen_trainer::Trainer;
    /// let arguments = [("hidden".to_owned(), 64.into())].into_iter().collect();
    /// let builder = Trainer::builder().program_arguments(arguments, Some("hidden = 64\n".into()));
    /// ```
    pub fn program_arguments(mut self, arguments: Map<String, Json>, config: Option<String>) -> Self {
        (self.told.arguments, self.told.config) = (arguments, config);
        self
    }

    /// What decides how steps are recorded.
    pub(crate) fn choices(&self, options: Options) -> Result<Choices> {
        if let Some(averaging) = &self.averaging {
            averaging.check()?;
        }
        for callback in &self.callbacks {
            if let Some(message) = callback.refusal() {
                return Err(Error::usage(format!("{}: {message}", callback.name())));
            }
        }
        let mut parts: Vec<StepPart> = vec![];
        for callback in &self.callbacks {
            let Some(part) = callback.step_part() else { continue };
            if parts.iter().any(|other| other.is_like(&part)) {
                return Err(Error::usage(format!("{}: there are two of them; keep one", callback.name())));
            }
            if let (StepPart::Accumulation { .. }, every @ 2..) = (&part, options.accumulate_grad_batches) {
                return Err(Error::option(format!(
                    "accumulate_grad_batches: it is {every}, and there is a {}; give one of the two",
                    callback.name()
                )));
            }
            parts.push(part);
        }
        let scales_learning_rate = self.callbacks.iter().any(|callback| callback.changes_learning_rate());
        Ok(Choices { options, averaging: self.averaging.clone(), scales_learning_rate, parts })
    }

    /// Keeps why an option's value was refused, for [`TrainerBuilder::options`] to report.
    pub(crate) fn refuse(&mut self, option: &str, why: &dyn fmt::Display, line: &Location<'_>) {
        self.refused.get_or_insert_with(|| format!("{option}: {why}\n  at {line}"));
    }

    /// Decides the options, and opens nothing.
    ///
    /// # Errors
    /// An option that cannot be, and an environment variable `FULMEN_...` whose name is misspelled.
    pub fn options(&self) -> Result<Options> {
        if let Some(message) = &self.refused {
            return Err(Error::usage(message.clone()));
        }
        environment::check()?;
        self.given.clone().resolve(|name| std::env::var_os(name))
    }

    /// The devices as a grid with axes of these names, instead of one axis `data`. A batch is split over `data` and `fsdp`;
    /// [`Strategy::Fsdp`](crate::Strategy) splits parameters over `fsdp`, or over `data` where there is none such; other
    /// axes are for shardings of the user's own.
    pub fn mesh(mut self, mesh: Mesh) -> Self {
        self.mesh = Some(mesh);
        self
    }

    /// Decides the options, joins the other processes if the environment tells of any (`FULMEN_COORDINATOR`,
    /// `FULMEN_PROCESS_ID` and `FULMEN_NUM_PROCESSES`, or on TPUs libtpu's own variables and the metadata server), and opens the devices.
    ///
    /// # Errors
    /// An option that cannot be; no plugin or device for the accelerator; a mesh of another number of devices; a process
    /// that has not joined in time, which is named.
    pub fn build(self) -> Result<Trainer> {
        let choices = self.choices(self.options()?)?;
        let hosts = ProcessGroup::from_env(&choices.options, self.runtime.as_ref())?;
        let built = self.build_with(choices, hosts.clone());
        if let (Some(hosts), Err(error)) = (&hosts, &built) {
            hosts.fail(error);
        }
        built
    }

    pub(crate) fn build_with(self, choices: Choices, hosts: Option<Arc<ProcessGroup>>) -> Result<Trainer> {
        let mut clock = Clock::new();
        let options = &choices.options;
        let runtime = match (self.runtime, &hosts) {
            (Some(runtime), _) => runtime,
            (None, Some(hosts)) => hosts.open(options.accelerator, &options.devices)?,
            (None, None) => Runtime::open(options.accelerator, &options.devices)?,
        };
        if hosts.is_none() {
            check_alone(&runtime)?;
        }
        say_if_a_tpu_is_idle(options, &runtime);
        let runtime = match &self.mesh {
            Some(mesh) => runtime.with_mesh(mesh)?,
            None => runtime,
        };
        let runtime = match options.aot.as_os_str().is_empty() {
            true => runtime,
            false => runtime.with_saved_programs(&options.aot).map_err(|e| Error::doing("aot", e))?,
        };
        let mut callbacks = self.callbacks;
        let has = |callbacks: &[Box<dyn Callback>], name| callbacks.iter().any(|c| c.name() == name);
        if options.enable_progress_bar && !has(&callbacks, "ProgressBar") {
            callbacks.push(Box::new(ProgressBar::new()));
        }
        callbacks.extend(metrics_endpoint(options.metrics_port, &runtime)?);
        if !options.enable_checkpointing {
            callbacks.retain(|c| c.name() != "ModelCheckpoint");
        } else if !has(&callbacks, "ModelCheckpoint") {
            callbacks.push(Box::new(ModelCheckpoint::new()));
        }
        if callbacks.iter().filter(|c| c.name() == "ModelCheckpoint").count() > 1 {
            let message = "there are two ModelCheckpoint callbacks, which would write the same files; keep one";
            return Err(Error::usage(message));
        }
        let mut loggers = chosen(&options.loggers, self.loggers)?;
        if options.leaves_nothing() {
            loggers.clear();
        }
        if hosts.as_ref().is_some_and(|hosts| !hosts.process().is_coordinator()) {
            // Process 0 writes and tells what there is to write and tell once.
            loggers.clear();
            callbacks.retain(|c| c.name() != "ProgressBar");
        }
        let loggers = Session::loggers(loggers)?;
        let open_store = places::opener(&choices.options)?;
        let mut told = self.told;
        told.config = told.config.or_else(|| Some(choices.options.to_toml(&self.given.given())));
        clock.pause();
        Ok(Trainer::new(Session {
            choices,
            runtime,
            hosts,
            callbacks: callbacks.into(),
            loggers,
            clock,
            told,
            open_store,
            record: Record::default(),
        }))
    }
}

/// What serves the metrics of this process, if that was asked for.
#[cfg(feature = "prometheus")]
fn metrics_endpoint(port: MetricsPort, runtime: &Runtime) -> Result<Option<Box<dyn Callback>>> {
    let open = |address| MetricsEndpoint::open(address, runtime.metrics()).map(|it| Box::new(it) as Box<dyn Callback>);
    port.address().map(open).transpose()
}

/// What serves the metrics of this process is in builds with the feature.
#[cfg(not(feature = "prometheus"))]
fn metrics_endpoint(port: MetricsPort, _: &Runtime) -> Result<Option<Box<dyn Callback>>> {
    match port.address() {
        None => Ok(None),
        Some(_) => Err(Error::option(
            "metrics_port: it is in builds with the feature `prometheus` of the crate fulmen".to_owned(),
        )),
    }
}

/// The loggers of a run: those that were chosen of ours, and the program's own.
fn chosen(set: &LoggerSet, own: Vec<Box<dyn Logger>>) -> Result<Vec<Box<dyn Logger>>> {
    let names = match set {
        LoggerSet::Auto if own.is_empty() => &["csv", "jsonl", "tensorboard"][..],
        LoggerSet::Auto => &[],
        LoggerSet::Only(names) => names,
    };
    let ours = names.iter().map(|name| -> Result<Box<dyn Logger>> {
        Ok(match *name {
            "csv" => Box::new(CsvLogger::new()),
            "jsonl" => Box::new(JsonlLogger::new()),
            "tensorboard" => Box::new(TensorBoardLogger::new()),
            #[cfg(feature = "mlflow")]
            "mlflow" => {
                let logger = fulmen_loggers::MlflowLogger::from_env();
                Box::new(logger.map_err(|e| Error::option(format!("loggers: mlflow: {e}")))?)
            }
            name => {
                let why = format!("loggers: {name} is in builds with the feature `{name}` of the crate fulmen");
                return Err(Error::option(why));
            }
        })
    });
    ours.chain(own.into_iter().map(Ok)).collect()
}

/// The builder's method of an option. A number or a switch is taken as it is, so that a literal has one type that it can
/// be. Any other option takes what becomes its type too, such as its name on the command line; a name that does not exist for its
/// values is kept for [`TrainerBuilder::options`] to report.
macro_rules! setter {
    (@plain $(#[$doc:meta])* $name:ident: $ty:ident) => {
        $(#[$doc])*
        pub fn $name(mut self, $name: $ty) -> Self {
            self.given.$name = Some($name);
            self
        }
    };
    ($(#[$doc:meta])* $name:ident: u64) => { setter!(@plain $(#[$doc])* $name: u64); };
    ($(#[$doc:meta])* $name:ident: f64) => { setter!(@plain $(#[$doc])* $name: f64); };
    ($(#[$doc:meta])* $name:ident: bool) => { setter!(@plain $(#[$doc])* $name: bool); };
    ($(#[$doc:meta])* $name:ident: $ty:ident) => {
        $(#[$doc])*
        #[track_caller]
        pub fn $name(mut self, $name: impl TryInto<$ty, Error: std::fmt::Display>) -> Self {
            match $name.try_into() {
                Ok(value) => self.given.$name = Some(value),
                Err(e) => self.refuse(stringify!($name), &e, std::panic::Location::caller()),
            }
            self
        }
    };
}

macro_rules! setters {
    ($($(#[doc = $doc:literal])* $(#[arg($($arg:tt)*)])? $name:ident: $ty:ident = $default:expr, $env:literal, $check:expr;)*) => {
        impl TrainerBuilder {
            $(setter! {
                $(#[doc = $doc])* #[doc = ""]
                #[doc = concat!("Environment: `", $env, "`. Default: `", stringify!($default), "`.")]
                $name: $ty
            })*
        }
    };
}

option_table!(setters);

/// A user who has a TPU and lets the Trainer choose expects the TPU.
fn say_if_a_tpu_is_idle(options: &Options, runtime: &Runtime) {
    let on_cpu = runtime.client().platform_name() == Platform::Cpu.name();
    if options.accelerator == Accelerator::Auto && on_cpu && !device_files(Platform::Tpu).is_empty() {
        note(&format!(
            "warning: training runs on the CPU, although this machine has a TPU. {}",
            diagnose(Platform::Tpu)
        ));
    }
}
