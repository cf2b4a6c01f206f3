//! [`Session`]: what a Trainer works with, whatever it does: its options, the devices, the other processes, callbacks,
//! loggers and the folder of the run.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fulmen_data::{DataLoader, LoaderReport, Replicas};
use fulmen_loggers::{Logger, Loggers, Status};
use fulmen_tensor::{Compiled, Function, Preloaded, Runtime};

use crate::callbacks::calls::Callbacks;
use crate::checkpoint::OpenStore;
use crate::checkpoint::run_config::RunConfig;
use crate::checkpoint::weights::load_values;
use crate::console::{log_line, log_to, note};
use crate::goodput::{Clock, TimeBucket};
use crate::process_group::{self, ProcessGroup};
use crate::program::trace_fit::set_up;
use crate::program::{CompiledStep, StepProgram};
use crate::run::dump::dump;
use crate::run::environment;
use crate::run::profiler::RunProfiler;
use crate::step_config::{Choices, StepConfig};
use crate::{Actions, Error, LogPoint, Result, Sink, Strategy, TrainingModule, Weights, checkpoint};

pub(crate) struct Session {
    pub(crate) choices: Choices,
    pub(crate) runtime: Runtime,
    /// The other processes, if there are any.
    pub(crate) hosts: Option<Arc<ProcessGroup>>,
    pub(crate) callbacks: Callbacks,
    pub(crate) loggers: Loggers,
    pub(crate) clock: Clock,
    pub(crate) told: RunConfig,
    /// Where checkpoints are written.
    pub(crate) open_store: OpenStore,
    pub(crate) record: Record,
}

/// What has come of it so far.
#[derive(Default)]
pub(crate) struct Record {
    /// The folder of the run, once something was run.
    pub(crate) run_dir: Option<PathBuf>,
    /// Of the latest fit.
    pub(crate) best_checkpoint: Option<PathBuf>,
    pub(crate) last_checkpoint: Option<PathBuf>,
    /// The epoch and the step that training has reached, for what is logged after it.
    pub(crate) reached: (u64, u64),
    pub(crate) log_points: u64,
    /// Whether the loggers have something that they have not finished.
    pub(crate) logging: bool,
    pub(crate) eval_compilations: u64,
    /// The programs that were compiled for the run, with the seconds that it took, where that is known.
    pub(crate) compilations: Vec<(String, Option<f64>)>,
    /// Of the training loader in the latest fit.
    pub(crate) loader: Option<LoaderReport>,
    /// The advice that the start of the latest fit gave, and its end.
    pub(crate) hints: Vec<String>,
    pub(crate) measured: Vec<String>,
    /// How many programs were written to `dump_dir`.
    dumped: u64,
    /// While something is run, in the process that writes.
    profiler: Option<RunProfiler>,
}

/// How long the beginning and the end of a run wait for a logger that does not answer.
const PATIENCE: Duration = Duration::from_secs(30);

impl Session {
    /// Starts the thread of these loggers.
    pub(crate) fn loggers(loggers: Vec<Box<dyn Logger>>) -> Result<Loggers> {
        Loggers::new(loggers, PATIENCE, note).map_err(|e| Error::usage(format!("the loggers have no thread: {e}")))
    }

    /// How steps are recorded for these devices.
    pub(crate) fn setting(&self) -> Result<StepConfig> {
        let replicas = Replicas::from_runtime(&self.runtime, &Strategy::batch(self.runtime.mesh()));
        let replicas = replicas.map_err(|e| Error::usage(e.to_string()))?;
        Ok(self.choices.on(self.runtime.mesh().clone(), replicas))
    }

    /// How many processes train together.
    pub(crate) fn processes(&self) -> usize {
        self.hosts.as_ref().map_or(1, |hosts| hosts.process().count())
    }

    /// Whether this process writes what is written once.
    pub(crate) fn writes(&self) -> bool {
        self.hosts.as_ref().is_none_or(|hosts| hosts.process().is_coordinator())
    }

    /// Makes a new folder for a run, starts the loggers in it, and writes there with what the run is made. With several
    /// processes, process 0 makes it for all. A run that leaves nothing behind has none.
    pub(crate) fn start_run(&mut self) -> Result<Option<PathBuf>> {
        if self.choices.options.leaves_nothing() {
            return Ok(None);
        }
        let make = || checkpoint::new_version_folder(&self.choices.options.default_root_dir);
        let folder = match &self.hosts {
            Some(hosts) => hosts.broadcast("run_dir", make)?,
            None => make()?,
        };
        self.loggers.start(&folder, self.told.for_loggers()).map_err(|e| Error::logger(&folder, e))?;
        self.record.logging = true;
        self.record.compilations.clear();
        if self.writes() {
            log_to(&folder.join("run.log"));
            let (environment, runtime) =
                (environment::environment(&self.runtime, self.processes()), self.runtime.clone());
            let path = folder.join("environment.json");
            self.loggers.run("environment", move || {
                if let Err(error) = environment::write(&path, environment, &runtime) {
                    note(&format!("warning: {} could not be written: {error}", path.display()));
                }
            });
            let config = self.told.config.as_deref().unwrap_or_default();
            let written = fulmen_durable::write(&folder.join("config.toml"), Some(config.len() as u64), |file| {
                file.write_all(config.as_bytes())
            });
            written.map_err(|e| Error::logger(&folder, e))?;
            self.record.profiler = Some(RunProfiler::start(&folder, self.choices.options.profiler, &self.runtime));
        }
        self.record.run_dir = Some(folder.clone());
        Ok(Some(folder))
    }

    /// Compiles a step for each shape of batches. Those of its functions that were preloaded come in their order.
    pub(crate) fn compile<'f>(
        &mut self,
        step: &str,
        loader: &DataLoader,
        program: &'f StepProgram,
        preloaded: Vec<Preloaded<'f>>,
    ) -> Result<CompiledStep> {
        let mut preloaded = preloaded.into_iter();
        program.compile(step, loader, |title, function| {
            self.compile_one(title, preloaded.next().unwrap_or_else(|| function.into()))
        })
    }

    /// Compiles a program and tells the callbacks.
    pub(crate) fn compile_one<'f>(
        &mut self,
        program: &str,
        function: impl Into<Preloaded<'f>>,
    ) -> fulmen_tensor::Result<Compiled> {
        let before = self.clock.enter(TimeBucket::Compile);
        let mut announced = false;
        let preloaded = function.into();
        let function = preloaded.function();
        let compiled = self.runtime.compile_announced(preloaded, |differs| {
            announced = true;
            if let Some(differs) = differs {
                note(&format!("another `{program}` is on disk: {differs}"));
            }
            self.callbacks.each(|callback| callback.on_compile_start(program));
        });
        if announced {
            let time = compiled.as_ref().ok().and_then(Compiled::compile_time);
            self.callbacks.each(|callback| callback.on_compile_end(program, time));
            self.record.compilations.push((program.to_owned(), time.map(|time| time.as_secs_f64())));
        }
        if let Ok(compiled) = &compiled {
            self.dump(program, function, compiled);
        }
        self.clock.enter(before);
        compiled
    }

    /// Writes a program to `dump_dir`, if there is one.
    fn dump(&mut self, program: &str, function: &Function, compiled: &Compiled) {
        let folder = &self.choices.options.dump_dir;
        if folder.as_os_str().is_empty() || !self.writes() {
            return;
        }
        self.record.dumped += 1;
        let dumped = dump(folder, self.record.dumped, program, (function, compiled), self.runtime.mesh());
        if let Err(error) = dumped {
            note(&format!("warning: dump_dir: `{program}` could not be written to {}: {error}", folder.display()));
        }
    }

    /// Does something that needs the other processes, if there are any: each of them hears when it fails in one.
    pub(crate) fn with_hosts<T>(&mut self, doing: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
        let hosts = self.hosts.clone();
        let _guard = hosts.as_ref().map(|hosts| hosts.guard());
        let result = doing(self);
        if let (Some(hosts), Err(error)) = (&hosts, &result) {
            hosts.fail(error);
        }
        result
    }

    /// As [`Session::with_hosts`]; callbacks and the module hear of a failure.
    pub(crate) fn telling<T>(
        &mut self,
        module: &dyn TrainingModule,
        doing: impl FnOnce(&mut Session) -> Result<T>,
    ) -> Result<T> {
        self.with_hosts(|session| {
            let hooks = session.callbacks.with(module);
            let result = doing(session).inspect_err(|error| hooks.on_exception(error, &mut Actions::outside()));
            session.finish_logging(Status::Finished, result.as_ref().err());
            result
        })
    }

    /// Compares with the other processes what each is about to run, before any of them waits for another on a device.
    pub(crate) fn agree(
        &self,
        what: &str,
        facts: impl FnOnce(&mut process_group::RunFingerprint) -> Result<()>,
    ) -> Result<()> {
        process_group::agree(self.hosts.as_ref(), &self.choices.options, &self.runtime, what, facts)
    }

    /// Gives a module the weights that were chosen.
    pub(crate) fn load(&self, module: &dyn TrainingModule, weights: Weights) -> Result<()> {
        set_up(module, &self.setting()?)?;
        let none = |which: &str| Error::usage(format!("there is no {which} checkpoint: the last fit saved none"));
        let file = match weights {
            Weights::Current => return Ok(()),
            Weights::Best => self.record.best_checkpoint.clone().ok_or_else(|| none("best"))?,
            Weights::Last => self.record.last_checkpoint.clone().ok_or_else(|| none("last"))?,
            Weights::File(path) => path,
        };
        load_values(module, &file)
    }

    /// Hands a log point to the loggers.
    pub(crate) fn log(&mut self, point: &LogPoint) {
        self.record.log_points += 1;
        self.record.logging = true;
        self.loggers.log(point.shown_by(Sink::Logger).into_owned());
    }

    /// Waits until all that was logged and recorded is written. It comes last in a fit, a validation or a test.
    pub(crate) fn finish_logging(&mut self, status: Status, error: Option<&Error>) {
        error.iter().for_each(|error| log_line(&format!("error: {error}")));
        self.record.profiler = None;
        if std::mem::take(&mut self.record.logging) {
            self.loggers.finish(if error.is_some() { Status::Failed } else { status });
        }
    }
}
