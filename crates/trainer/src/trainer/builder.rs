//! [`TrainerBuilder`]: collects options, callbacks and loggers, and fills in defaults.

use std::fmt;
use std::panic::Location;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fulmen_loggers::{CsvLogger, JsonlLogger, Logger, TensorBoardLogger};
use fulmen_nn::axes::AxisRules;
use fulmen_pjrt::check_variables;
use fulmen_tensor::{Accelerator, Devices, MatmulPrecision, Mesh, Runtime};
use serde::Serialize;
use serde_json::{Map, Value as Json};

use crate::approved_kernels::ApprovedKernels;
use crate::callbacks::callback::Callback;
#[cfg(feature = "prometheus")]
use crate::callbacks::metrics_endpoint::MetricsEndpoint;
use crate::callbacks::{ModelCheckpoint, ProgressBar};
use crate::checkpoint::locations;
use crate::checkpoint::run_config::RunConfig;
use crate::console::init_logging;
use crate::goodput::Clock;
use crate::options::environment;
use crate::options::{TrainerArgs, option_table};
use crate::process_group::{ProcessGroup, check_alone};
use crate::rules;
use crate::session::{Record, Session};
use crate::step_config::Choices;
use crate::{
    BatchLimit, Error, FastDevRun, GradientClipAlgorithm, LearningRateScaling, LoggerSet,
    MetricsPort, Options, Precision, Profiler, Result, Resume, Strategy, TrainDuration, Trainer,
    WeightAveraging, error,
};

/// Builds a [`Trainer`]. There is one method for each row of [`Options::table`].
///
/// ```
/// # fn main() -> fulmen_trainer::Result<()> {
/// use fulmen_trainer::Trainer;
/// use fulmen_trainer::callbacks::{EarlyStopping, Mode};
///
/// let builder = Trainer::builder()
///     .max_epochs(20)
///     .gradient_clip_val(1.0)
///     .callback(EarlyStopping::new("val_loss", Mode::Min));
/// assert_eq!(builder.options()?.max_epochs, 20);
/// let trainer = builder.build()?; // opens the devices
/// # let _ = trainer;
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
#[must_use]
pub struct TrainerBuilder {
    pub(crate) trainer_args: TrainerArgs,
    /// The first option whose text could not be parsed, and why.
    rejection: Option<String>,
    callbacks: Vec<Box<dyn Callback>>,
    loggers: Vec<Box<dyn Logger>>,
    runtime: Option<Runtime>,
    averaging: Option<WeightAveraging>,
    pub(crate) mesh: Option<Mesh>,
    axis_rules: Option<AxisRules>,
    run_config: RunConfig,
}

impl TrainerBuilder {
    /// Merges the options from the command line. Later calls override earlier ones.
    pub fn args(mut self, args: TrainerArgs) -> TrainerBuilder {
        self.trainer_args.merge(args);
        self
    }

    /// Adds a callback. Callbacks run in the order in which they were added. The Trainer adds a
    /// [`ModelCheckpoint`] and a [`ProgressBar`] itself, unless you add your own or an option turns
    /// them off.
    pub fn callback(mut self, callback: impl Callback + 'static) -> TrainerBuilder {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// Adds a logger. This turns off the default loggers, unless
    /// [`loggers`](TrainerBuilder::loggers) names them.
    pub fn logger(mut self, logger: impl Logger + 'static) -> TrainerBuilder {
        self.loggers.push(Box::new(logger));
        self
    }

    /// Trains on this runtime instead of opening one for the accelerator.
    pub fn runtime(mut self, runtime: Runtime) -> TrainerBuilder {
        self.runtime = Some(runtime);
        self
    }

    /// Averages the weights over many steps. Validation, tests and saved weights use the average.
    pub fn weight_averaging(mut self, averaging: WeightAveraging) -> TrainerBuilder {
        self.averaging = Some(averaging);
        self
    }

    /// Records the run's hyperparameters, like Lightning's `save_hyperparameters`. They are a
    /// struct or a map with named values. Every checkpoint stores them, and
    /// [`load_hyperparameters`](crate::load_hyperparameters) reads them back. The loggers get them
    /// too. A program built on `fulmen-trainer-cli` records its arguments without this call.
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
    /// If the value has no names, for example because it is a number,
    /// [`build`](TrainerBuilder::build) returns an error.
    #[track_caller]
    pub fn hyperparameters(mut self, hyperparameters: impl Serialize) -> TrainerBuilder {
        let why = match serde_json::to_value(hyperparameters) {
            Ok(Json::Object(named)) => {
                self.run_config.hyperparameters = named;
                return self;
            }
            Ok(other) => format!("expected a struct or a map with named values, got {other}"),
            Err(error) => error.to_string(),
        };
        self.reject("hyperparameters", &why, Location::caller());
        self
    }

    /// Records the arguments of a program's command line, by flag. Every checkpoint stores them,
    /// and [`load_arguments`](crate::load_arguments) reads them back. The loggers get them too.
    /// `config` is the text of `config.toml` in the run's folder; by default, that is the Trainer's
    /// options. `fulmen-trainer-cli` calls this.
    ///
    /// ```
    /// use fulmen_trainer::Trainer;
    /// let arguments = [("hidden".to_owned(), 64.into())].into_iter().collect();
    /// let builder = Trainer::builder().program_arguments(arguments, Some("hidden = 64\n".into()));
    /// ```
    pub fn program_arguments(
        mut self,
        arguments: Map<String, Json>,
        config: Option<String>,
    ) -> TrainerBuilder {
        (self.run_config.arguments, self.run_config.config) = (arguments, config);
        self
    }

    /// The settings that decide how steps are recorded.
    pub(crate) fn choices(&self, options: Options) -> Result<Choices> {
        if let Some(averaging) = &self.averaging {
            averaging.check()?;
        }
        for callback in &self.callbacks {
            if let Some(message) = callback.config_error() {
                return Err(Error::usage(format!("{}: {message}", callback.name())));
            }
        }
        let added = self
            .callbacks
            .iter()
            .filter_map(|callback| Some((callback.name(), callback.step_rule()?)));
        let callback_rules = rules::of_callbacks(added, &options)?;
        let scales_learning_rate =
            self.callbacks.iter().any(|callback| callback.changes_learning_rate());
        let choices = Choices::from(options);
        Ok(Choices {
            axis_rules: self.axis_rules.clone().map(Arc::new).or(choices.axis_rules.clone()),
            evaluated: self.averaging.clone().map(|averaging| Arc::new(averaging) as _),
            scales_learning_rate,
            callback_rules,
            ..choices
        })
    }

    /// Remembers why an option's value was rejected; [`TrainerBuilder::options`] reports it.
    pub(crate) fn reject(&mut self, option: &str, why: &dyn fmt::Display, line: &Location<'_>) {
        self.rejection.get_or_insert_with(|| format!("{option}: {why}\n  at {line}"));
    }

    /// Resolves the options without opening a device.
    ///
    /// # Errors
    /// An invalid option, or a misspelled environment variable `FULMEN_...`.
    pub fn options(&self) -> Result<Options> {
        let options = self.resolve()?;
        environment::note_unread();
        Ok(options)
    }

    fn resolve(&self) -> Result<Options> {
        init_logging();
        if let Some(message) = &self.rejection {
            return Err(Error::usage(message.clone()));
        }
        environment::check()?;
        self.trainer_args.clone().resolve(|name| std::env::var_os(name))
    }

    /// Arranges the devices as a grid with these named axes, instead of the single axis `data`. A
    /// batch is split over `data` and `fsdp`. [`Strategy::Fsdp`](crate::Strategy) splits parameters
    /// over `fsdp`, or over `data` if there is no such axis. Other axes are for your own shardings, or
    /// for [`axis_rules`](TrainerBuilder::axis_rules). A strategy with sizes, such as `tp=8`, makes
    /// its own mesh.
    pub fn mesh(mut self, mesh: Mesh) -> TrainerBuilder {
        self.mesh = Some(mesh);
        self
    }

    /// Splits the axes that modules name ([`Parameter::with_axes`](fulmen_nn::Parameter::with_axes),
    /// [`constrain`](fulmen_nn::axes::constrain)) by this table. A strategy with sizes, such as
    /// `tp=8`, has the default table; this replaces it. With another strategy, axes have no rules
    /// unless this sets them.
    ///
    /// ```
    /// use fulmen_nn::axes::AxisRules;
    /// use fulmen_trainer::Trainer;
    ///
    /// // The vocabulary is not split.
    /// let builder = Trainer::builder().strategy("tp=8").axis_rules(AxisRules::default().without("vocab"));
    /// assert_eq!(builder.options()?.strategy.to_string(), "tp=8");
    /// # Ok::<(), fulmen_trainer::Error>(())
    /// ```
    pub fn axis_rules(mut self, rules: AxisRules) -> TrainerBuilder {
        self.axis_rules = Some(rules);
        self
    }

    /// Resolves the options, joins the run's other processes if there are any, and opens the
    /// devices. The variables `FULMEN_COORDINATOR`, `FULMEN_PROCESS_ID` and `FULMEN_NUM_PROCESSES`
    /// describe the processes. On TPUs, libtpu's own variables or the metadata server can describe
    /// them too.
    ///
    /// # Errors
    /// An invalid option; no plugin or device for the accelerator; a mesh with a different number
    /// of devices; a process that did not join in time, which the error names.
    pub fn build(self) -> Result<Trainer> {
        let choices = self.choices(self.resolve()?)?;
        if self.runtime.is_none() {
            check_variables().map_err(|e| error::option(e.to_string()))?;
        }
        let process_group = ProcessGroup::from_env(&choices.options, self.runtime.as_ref());
        // Only now is it known whether another process prints this.
        environment::note_unread();
        environment::note_unused(&self.trainer_args);
        let process_group = process_group?;
        let built = self.build_with(choices, process_group.clone());
        if let (Some(process_group), Err(error)) = (&process_group, &built) {
            process_group.fail(error);
        }
        built
    }

    pub(crate) fn build_with(
        self,
        choices: Choices,
        process_group: Option<Arc<ProcessGroup>>,
    ) -> Result<Trainer> {
        let mut clock = Clock::new();
        let options = &choices.options;
        let opened = match (self.runtime, &process_group) {
            (Some(runtime), _) => runtime,
            (None, Some(process_group)) => {
                process_group.open(options.accelerator, &options.devices)?
            }
            (None, None) => Runtime::open(options.accelerator, &options.devices)?,
        };
        if process_group.is_none() {
            check_alone(&opened)?;
        }
        let devices = opened.mesh().num_devices();
        let arranged = match &options.strategy.mesh(self.mesh.as_ref(), devices)? {
            Some(mesh) => opened.with_mesh(mesh)?,
            None => opened,
        };
        let runtime = if options.aot.as_os_str().is_empty() {
            arranged
        } else {
            arranged.with_saved_programs(&options.aot).map_err(|e| e.context("aot"))?
        };
        let mut choices = choices.for_platform(runtime.client().platform_name());
        choices.kernels = approved_kernels(&runtime, process_group.as_deref())?;
        let options = &choices.options;
        let mut callbacks = self.callbacks;
        let has =
            |callbacks: &[Box<dyn Callback>], name| callbacks.iter().any(|c| c.name() == name);
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
            let message = "two ModelCheckpoint callbacks would write the same files; keep one";
            return Err(Error::usage(message));
        }
        let mut loggers = select_loggers(&options.loggers, self.loggers)?;
        if options.writes_no_files() {
            loggers.clear();
        }
        if process_group
            .as_ref()
            .is_some_and(|process_group| !process_group.process().is_coordinator())
        {
            // Process 0 does all logging and reporting.
            loggers.clear();
            callbacks.retain(|c| c.name() != "ProgressBar");
        }
        let loggers = Session::loggers(loggers)?;
        let open_store = locations::opener(&choices.options)?;
        let mut run_config = self.run_config;
        run_config.config = run_config
            .config
            .or_else(|| Some(choices.options.to_toml(&self.trainer_args.explicit())));
        clock.pause();
        Ok(Trainer::new(Session {
            choices,
            runtime,
            process_group,
            callbacks: callbacks.into(),
            loggers,
            clock,
            run_config: run_config.without_secrets(),
            open_store,
            record: Record::default(),
        }))
    }
}

/// Which kernels the methods named `auto` take. Process 0 decides for all, so that they run the same
/// program.
fn approved_kernels(
    runtime: &Runtime,
    process_group: Option<&ProcessGroup>,
) -> Result<ApprovedKernels> {
    let client = runtime.client();
    let kind = || match runtime.devices().first() {
        Some(device) => Ok(device.kind().to_owned()),
        None => Err("there is no device".to_owned()),
    };
    let find = || ApprovedKernels::of(client.platform_name(), client.plugin(), kind);
    match process_group {
        Some(process_group) => process_group.broadcast("kernels", || Ok(find())),
        None => Ok(find()),
    }
}

/// The server for this process's metrics, if `metrics_port` is set.
#[cfg(feature = "prometheus")]
fn metrics_endpoint(port: MetricsPort, runtime: &Runtime) -> Result<Option<Box<dyn Callback>>> {
    let open = |address| {
        MetricsEndpoint::open(address, runtime.metrics())
            .map(|it| Box::new(it) as Box<dyn Callback>)
    };
    port.address().map(open).transpose()
}

/// Only builds with the feature `prometheus` can serve metrics.
#[cfg(not(feature = "prometheus"))]
fn metrics_endpoint(port: MetricsPort, _: &Runtime) -> Result<Option<Box<dyn Callback>>> {
    match port.address() {
        None => Ok(None),
        Some(_) => Err(error::option(
            "metrics_port: needs a build with the feature `prometheus` of the crate fulmen"
                .to_owned(),
        )),
    }
}

/// The loggers of a run: the built-in ones that `set` selects, and those that the program added.
fn select_loggers(set: &LoggerSet, added: Vec<Box<dyn Logger>>) -> Result<Vec<Box<dyn Logger>>> {
    let names = match set {
        LoggerSet::Auto if added.is_empty() => &["csv", "jsonl", "tensorboard"][..],
        LoggerSet::Auto => &[],
        LoggerSet::Only(names) => names,
    };
    let built_in = names.iter().map(|name| -> Result<Box<dyn Logger>> {
        Ok(match *name {
            "csv" => Box::new(CsvLogger::new()),
            "jsonl" => Box::new(JsonlLogger::new()),
            "tensorboard" => Box::new(TensorBoardLogger::new()),
            #[cfg(feature = "mlflow")]
            "mlflow" => {
                let logger = fulmen_loggers::MlflowLogger::from_env();
                Box::new(logger.map_err(|e| error::option(format!("loggers: mlflow: {e}")))?)
            }
            #[cfg(feature = "wandb")]
            "wandb" => {
                let logger = fulmen_loggers::WandbLogger::from_env()
                    .map_err(|e| error::option(format!("loggers: wandb: {e}")))?;
                // From now on, nothing that the run writes has the key.
                let _ = crate::Secret::new(logger.api_key());
                Box::new(logger)
            }
            name => {
                let why = format!(
                    "loggers: {name} needs a build with the feature `{name}` of the crate fulmen"
                );
                return Err(error::option(why));
            }
        })
    });
    built_in.chain(added.into_iter().map(Ok)).collect()
}

/// The builder's method for an option. Numbers and switches take their own type, so that a literal
/// needs no suffix. Other options take anything that converts into their type, such as the name
/// used on the command line. If a name is unknown, [`TrainerBuilder::options`] reports it.
macro_rules! setter {
    (@plain $(#[$doc:meta])* $name:ident: $ty:ident) => {
        $(#[$doc])*
        pub fn $name(mut self, $name: $ty) -> Self {
            self.trainer_args.$name = Some($name);
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
                Ok(value) => self.trainer_args.$name = Some(value),
                Err(e) => self.reject(stringify!($name), &e, std::panic::Location::caller()),
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
