//! [`Session`]: what all loops of a Trainer share: options, devices, other processes, callbacks,
//! loggers and the folder of the run.

pub(crate) mod advice;
mod dump;
mod environment;
mod profiler;

pub(crate) use environment::host_name;

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fulmen_data::{DataLoader, LoaderReport, Replicas};
use fulmen_loggers::{Logger, Loggers, Status};
use fulmen_report::LearningRates;
use fulmen_tensor::{Compiled, Function, Preloaded, Runtime};
use serde_json::Value as Json;

use crate::callbacks::hook_calls::Callbacks;
use crate::checkpoint::OpenStore;
use crate::checkpoint::run_config::RunConfig;
use crate::checkpoint::weights::load_values;
use crate::console::{inform, log_line, log_to, warning};
use crate::goodput::{Clock, TimeBucket};
use crate::position::StepPosition;
use crate::process_group::{self, ProcessGroup};
use crate::program::trace_fit::set_up;
use crate::program::{CompiledStep, StepProgram};
use crate::session::dump::dump;
use crate::session::profiler::RunProfiler;
use crate::step_config::{Choices, StepConfig};
use crate::{
    Actions, Error, LogPoint, Result, Sink, Strategy, TrainingModule, Weights, checkpoint, error,
};

pub(crate) struct Session {
    pub(crate) choices: Choices,
    pub(crate) runtime: Runtime,
    /// The other processes, if there are any.
    pub(crate) process_group: Option<Arc<ProcessGroup>>,
    pub(crate) callbacks: Callbacks,
    pub(crate) loggers: Loggers,
    pub(crate) clock: Clock,
    pub(crate) run_config: RunConfig,
    /// Opens the store for checkpoints.
    pub(crate) open_store: OpenStore,
    pub(crate) record: Record,
}

/// The results so far.
#[derive(Default)]
pub(crate) struct Record {
    /// The folder of the run, once something was run.
    pub(crate) run_dir: Option<PathBuf>,
    /// The best and the last checkpoint of the latest fit.
    pub(crate) best_checkpoint: Option<PathBuf>,
    pub(crate) last_checkpoint: Option<PathBuf>,
    /// The position of the latest fit at its end, for later log points.
    pub(crate) position: StepPosition,
    pub(crate) log_points: u64,
    /// Whether the loggers have unfinished work.
    pub(crate) logging: bool,
    pub(crate) eval_compilations: u64,
    /// The programs that were compiled for the run, with their compile times in seconds, if known.
    pub(crate) compilations: Vec<(String, Option<f64>)>,
    /// The statistics of the training loader in the latest fit.
    pub(crate) loader: Option<LoaderReport>,
    /// The advice at the start of the latest fit, and at its end.
    pub(crate) hints: Vec<String>,
    pub(crate) fit_advice: Vec<String>,
    /// The last search for a learning rate.
    pub(crate) learning_rates: Option<LearningRates>,
    /// The number of programs that were written to `dump_dir`.
    dumped: u64,
    /// The profiler, set during a run in the process that writes.
    profiler: Option<RunProfiler>,
}

/// The callbacks that all processes have if one has them. Processes may differ in the others, and in
/// a user's own, which for example only process 0 has.
const REQUESTING_CALLBACKS: [&str; 4] =
    ["EarlyStopping", "ModelCheckpoint", "ReduceLROnPlateau", "Timer"];

/// How long the start and the end of a run wait for a logger.
const LOGGER_TIMEOUT: Duration = Duration::from_secs(30);

impl Session {
    /// Starts the thread of these loggers.
    pub(crate) fn loggers(loggers: Vec<Box<dyn Logger>>) -> Result<Loggers> {
        let failed = |e| Error::usage(format!("cannot start the thread of the loggers: {e}"));
        Loggers::new(loggers, LOGGER_TIMEOUT, |text| warning!("{text}")).map_err(failed)
    }

    /// The configuration of steps for these devices.
    pub(crate) fn config(&self) -> Result<StepConfig> {
        let replicas = Replicas::from_runtime(&self.runtime, &Strategy::batch(self.runtime.mesh()))
            .map_err(|e| Error::usage(e.to_string()))?;
        Ok(self.choices.for_mesh(self.runtime.mesh().clone(), replicas))
    }

    /// The number of processes that train together.
    pub(crate) fn processes(&self) -> usize {
        self.process_group.as_ref().map_or(1, |process_group| process_group.process().count())
    }

    /// Whether this process writes the files that only one process writes.
    pub(crate) fn writes(&self) -> bool {
        self.process_group
            .as_ref()
            .is_none_or(|process_group| process_group.process().is_coordinator())
    }

    /// Creates a new folder for a run, starts the loggers in it, and writes the run's environment
    /// and configuration there. With several processes, process 0 creates it for all. A run that
    /// writes no files has no folder.
    pub(crate) fn start_run(&mut self) -> Result<Option<PathBuf>> {
        if self.choices.options.writes_no_files() {
            return Ok(None);
        }
        let create = || checkpoint::new_version_folder(&self.choices.options.default_root_dir);
        let folder = match &self.process_group {
            Some(process_group) => process_group.broadcast("run_dir", create)?,
            None => create()?,
        };
        self.loggers
            .start(&folder, self.run_config.for_loggers())
            .map_err(|e| error::logger(&folder, e))?;
        self.record.logging = true;
        self.record.compilations.clear();
        let environment = self.environment()?;
        if self.writes() {
            log_to(&folder.join("run.log"));
            let runtime = self.runtime.clone();
            let path = folder.join("environment.json");
            self.loggers.run("environment", move || {
                if let Err(error) = environment::write(&path, environment, &runtime) {
                    warning!("cannot write {}: {error}", path.display());
                }
            });
            let config = self.run_config.config.as_deref().unwrap_or_default();
            let written = fulmen_durable::write(
                &folder.join("config.toml"),
                Some(config.len() as u64),
                |file| file.write_all(config.as_bytes()),
            );
            written.map_err(|e| error::logger(&folder, e))?;
            self.record.profiler =
                Some(RunProfiler::start(&folder, self.choices.options.profiler, &self.runtime)?);
        }
        self.record.run_dir = Some(folder.clone());
        Ok(Some(folder))
    }

    /// The environment of the run. In process 0, it includes the hosts of all processes.
    fn environment(&self) -> Result<Json> {
        let mut environment = environment::environment(&self.runtime, self.processes());
        if let Some(process_group) = &self.process_group {
            let own = environment::of_this_process(&environment, &self.runtime);
            let mut hosts = Json::Null;
            let gathered = process_group.gather("environment", Ok(own), |all| {
                hosts = environment::hosts(&all).map_err(|e| e.to_string())?;
                Ok(String::new())
            })?;
            gathered.map_err(|failure| Error::usage(format!("environment: {failure}")))?;
            environment["hosts"] = hosts;
        }
        Ok(environment)
    }

    /// Compiles a step for each shape of batches. `preloaded` has those of its functions that were
    /// preloaded, in order.
    pub(crate) fn compile<'f>(
        &mut self,
        step: &str,
        loader: &DataLoader,
        program: &'f StepProgram,
        preloaded: Vec<Preloaded<'f>>,
    ) -> Result<CompiledStep> {
        let mut preloaded = preloaded.into_iter();
        let mesh = self.runtime.mesh().clone();
        program.compile(step, loader, &mesh, |title, function| {
            self.compile_one(title, preloaded.next().unwrap_or_else(|| function.into()))
        })
    }

    /// Compiles a program and calls the callbacks.
    pub(crate) fn compile_one<'f>(
        &mut self,
        program: &str,
        function: impl Into<Preloaded<'f>>,
    ) -> fulmen_tensor::Result<Compiled> {
        let before = self.clock.enter(TimeBucket::Compile);
        let mut announced = false;
        let preloaded = function.into();
        let function = preloaded.function();
        let compiled = self.runtime.compile_announced(preloaded, |difference| {
            announced = true;
            if let Some(difference) = difference {
                inform!("the compile cache has a different `{program}`: {difference}");
            }
            self.callbacks.each(|callback| callback.on_compile_start(program));
        });
        if announced {
            let time = compiled.as_ref().ok().and_then(Compiled::compile_time);
            self.callbacks.each(|callback| callback.on_compile_end(program, time));
            self.record
                .compilations
                .push((program.to_owned(), time.map(|time| time.as_secs_f64())));
        }
        if let Ok(compiled) = &compiled {
            self.dump(program, function, compiled);
        }
        self.clock.enter(before);
        compiled
    }

    /// Writes a program to `dump_dir`, if the option is set.
    fn dump(&mut self, program: &str, function: &Function, compiled: &Compiled) {
        let folder = &self.choices.options.dump_dir;
        if folder.as_os_str().is_empty() || !self.writes() {
            return;
        }
        self.record.dumped += 1;
        let dumped = dump(folder, self.record.dumped, program, function, compiled, &self.runtime);
        if let Err(error) = dumped {
            warning!("dump_dir: cannot write `{program}` to {}: {error}", folder.display());
        }
    }

    /// Runs work that needs the other processes, if there are any. If it fails in one process, the
    /// others are notified.
    pub(crate) fn with_process_group<T>(
        &mut self,
        work: impl FnOnce(&mut Session) -> Result<T>,
    ) -> Result<T> {
        let process_group = self.process_group.clone();
        let _guard = process_group.as_ref().map(|process_group| process_group.guard());
        let Some(process_group) = process_group else { return work(self) };
        work(self).map_err(|error| {
            let error = process_group.explain(error);
            process_group.fail(&error);
            error
        })
    }

    /// Like [`Session::with_process_group`]. If the work fails, it also calls `on_exception` of the
    /// callbacks and the module.
    pub(crate) fn with_exception_hooks<T>(
        &mut self,
        module: &dyn TrainingModule,
        work: impl FnOnce(&mut Session) -> Result<T>,
    ) -> Result<T> {
        self.with_process_group(|session| {
            let hooks = session.callbacks.with(module);
            let process_group = session.process_group.clone();
            let result = work(session)
                .map_err(|error| match process_group {
                    Some(process_group) => process_group.explain(error),
                    None => error,
                })
                .inspect_err(|error| hooks.on_exception(error, &mut Actions::ignored()));
            session.finish_logging(Status::Finished, result.as_ref().err());
            result
        })
    }

    /// Checks that all processes are about to run the same, before any of them waits for another on
    /// a device.
    pub(crate) fn check_consistent(
        &self,
        action: &str,
        facts: impl FnOnce(&mut process_group::RunFingerprint) -> Result<()>,
    ) -> Result<()> {
        process_group::check_consistent(
            self.process_group.as_ref(),
            &self.choices.options,
            &self.runtime,
            action,
            |all| {
                all.insert("callbacks".into(), self.requesting_callbacks());
                facts(all)
            },
        )
    }

    /// The library's callbacks that act by requests, for the comparison with other processes. Those
    /// that change the step are compared with the program.
    fn requesting_callbacks(&self) -> String {
        let mut names = Vec::new();
        self.callbacks.each(|callback| names.push(callback.name()));
        names.retain(|name| REQUESTING_CALLBACKS.contains(name));
        names.sort_unstable();
        if names.is_empty() { "none".into() } else { names.join(", ") }
    }

    /// Loads the chosen weights into a module.
    pub(crate) fn load(&self, module: &dyn TrainingModule, weights: Weights) -> Result<()> {
        set_up(module, &self.config()?)?;
        let missing = |kind: &str| {
            Error::usage(format!("there is no {kind} checkpoint: the last fit saved none"))
        };
        let file = match weights {
            Weights::Current => return Ok(()),
            Weights::Best => self.record.best_checkpoint.clone().ok_or_else(|| missing("best"))?,
            Weights::Last => self.record.last_checkpoint.clone().ok_or_else(|| missing("last"))?,
            Weights::File(path) => path,
        };
        load_values(module, &file)
    }

    /// Sends a log point to the loggers.
    pub(crate) fn log(&mut self, point: &LogPoint) {
        self.record.log_points += 1;
        self.record.logging = true;
        self.loggers.log(point.shown_by(Sink::Logger).into_owned());
    }

    /// Waits until all logged and recorded values are written. Called last in a fit, a validation
    /// or a test.
    pub(crate) fn finish_logging(&mut self, status: Status, error: Option<&Error>) {
        error.iter().for_each(|error| log_line(&format!("error: {error}")));
        self.record.profiler = None;
        if std::mem::take(&mut self.record.logging) {
            self.loggers.finish(if error.is_some() { Status::Failed } else { status });
        }
    }
}
