//! [`ProcessGroup`]: the processes of a run, for a Trainer with several processes.
//!
//! `fulmen-coordination` connects the processes; XLA has the collectives.

mod run_fingerprint;
mod runtime;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Once, Weak};
use std::time::{Duration, Instant};

use fulmen_coordination::{Coordination, Halt, Process, Timeouts, on_preemption};
use fulmen_pjrt::locate::Platform;
use fulmen_signals::EndListener;
use fulmen_tensor::{Accelerator, Devices, Literal, PendingLiterals, Runtime};
use parking_lot::Mutex;

use run_fingerprint::run_fingerprint;
pub(crate) use run_fingerprint::{RunFingerprint, add_program};
pub(crate) use runtime::check_alone;

use crate::console::{from_each_process, silence};
use crate::error::peer_signal;
use crate::{Error, Options, Result, Signal, error};

/// How long a fit may continue after another process has ended. A collective that waits for the
/// ended process never finishes.
const GRACE: Duration = Duration::from_secs(30);

/// How long the processes wait for each other once all have joined. While their heartbeats arrive,
/// they wait without limit, because one of them may write a checkpoint for an hour.
const NO_TIMEOUT: Duration = Duration::MAX;

/// How long a process waits for a file that another one has written: longer than an NFS client keeps
/// what it knows of a folder, which is a minute unless it is mounted otherwise.
const FILE_TIMEOUT: Duration = Duration::from_secs(90);

/// When to say that a process waits for such a file, at the latest.
const FILE_NOTE_AFTER: Duration = Duration::from_secs(5);

/// The time between two looks at such a file.
const FILE_INTERVAL: Duration = Duration::from_millis(200);

/// The processes that train together with this one.
pub(crate) struct ProcessGroup {
    coordination: Coordination,
    /// How long a process may be silent before it counts as lost.
    heartbeat_timeout: Duration,
    /// How long to wait for a file that another process has written.
    file_timeout: Duration,
    /// Checks whether programs span the processes. In tests, each process runs its own.
    spans: fn(&Process, &Runtime) -> Result<()>,
    /// The number of shared values and decisions, which is the same in all processes.
    turns: AtomicU64,
    /// The number of gathers.
    gathers: AtomicU64,
    /// The number of programs on which the processes have agreed, for all Trainers of the group.
    programs: Arc<AtomicU64>,
    /// Whether this process has not failed, so that it can leave the run in an orderly way.
    is_healthy: AtomicBool,
    /// Whether all processes fail in the same way, so that no process needs a report.
    fails_everywhere: AtomicBool,
    /// How many calls of the Trainer are under way or have failed. A program learns from a failed one
    /// that another process has ended.
    attended: Arc<AtomicUsize>,
    /// Reports a signal that ends this process to the others.
    end_listener: Option<EndListener>,
}

/// How long to wait for a file that another process has written: `FULMEN_FILE_TIMEOUT`.
pub(crate) fn file_timeout(env: impl Fn(&str) -> Option<OsString>) -> Result<Duration> {
    let name = "FULMEN_FILE_TIMEOUT";
    let Some(text) = env(name).filter(|text| !text.is_empty()) else { return Ok(FILE_TIMEOUT) };
    let text = text.to_string_lossy();
    let seconds = text.trim().parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
    seconds.ok_or_else(|| {
        error::option(format!(
            "the environment variable {name} is `{text}`; expected a number of seconds"
        ))
    })
}

/// The processes that this one has joined, for its next Trainer.
static JOINED: Mutex<Weak<ProcessGroup>> = Mutex::new(Weak::new());

impl ProcessGroup {
    /// Joins the other processes that the environment names; `None` if it names none. Trainers that
    /// exist at the same time share the group.
    ///
    /// libtpu's variables are used only for a TPU: the hosts of a pod may each train on their own
    /// CPU.
    pub(crate) fn from_env(
        options: &Options,
        runtime: Option<&Runtime>,
    ) -> Result<Option<Arc<ProcessGroup>>> {
        static WATCHED: Once = Once::new();
        let env = |name: &str| std::env::var_os(name);
        WATCHED.call_once(|| {
            on_preemption(env, |message| {
                from_each_process!(WARN, "{message}");
                Signal::Terminate.raise();
            });
        });
        let is_tpu = match runtime {
            Some(runtime) => runtime.client().platform_name() == "tpu",
            None => options.accelerator.platform() == Platform::Tpu,
        };
        let process = if is_tpu { Process::detect(env)? } else { Process::from_fulmen_env(env)? };
        if process.count() == 1 {
            return Ok(None);
        }
        let mut joined = JOINED.lock();
        if let Some(process_group) = joined.upgrade() {
            return Ok(Some(process_group));
        }
        if !process.is_coordinator() {
            silence();
        }
        let timeouts = Timeouts::from_env(env)?;
        let file_timeout = file_timeout(env)?;
        let expected = process.coordinator().to_owned();
        let coordination = Coordination::builder(process)
            .timeouts(timeouts.clone())
            .on_waiting(|text| from_each_process!(INFO, "{text}"))
            .on_listening(move |address| {
                if address != expected {
                    from_each_process!(INFO, "the coordinator listens at {address}");
                }
            })
            .on_refused(|text| from_each_process!(INFO, "{text}"))
            .join()?;
        let mut process_group = ProcessGroup::new(coordination, timeouts.heartbeat, runtime::check);
        process_group.file_timeout = file_timeout;
        process_group.end_with_the_others();
        let process_group = Arc::new(process_group);
        *joined = Arc::downgrade(&process_group);
        Ok(Some(process_group))
    }

    fn new(
        coordination: Coordination,
        heartbeat_timeout: Duration,
        spans: fn(&Process, &Runtime) -> Result<()>,
    ) -> ProcessGroup {
        ProcessGroup {
            coordination,
            heartbeat_timeout,
            file_timeout: FILE_TIMEOUT,
            spans,
            turns: AtomicU64::new(0),
            gathers: AtomicU64::new(0),
            programs: Arc::default(),
            is_healthy: AtomicBool::new(true),
            fails_everywhere: AtomicBool::new(false),
            attended: Arc::default(),
            end_listener: None,
        }
    }

    pub(crate) fn process(&self) -> &Process {
        self.coordination.process()
    }

    /// A process with its host, for messages.
    pub(crate) fn describe(&self, index: usize) -> String {
        let found = self.coordination.processes().iter().find(|process| process.index == index);
        found.map_or_else(|| format!("process {index}"), ToString::to_string)
    }

    /// Opens this process's devices, as part of the devices of all processes.
    pub(crate) fn open(&self, accelerator: Accelerator, devices: &Devices) -> Result<Runtime> {
        runtime::open(&self.coordination, &self.programs, accelerator, devices)
    }

    /// Checks that the runtime's programs span the processes. Call it after the processes agreed on
    /// the platform, so that the result is the same in all of them.
    pub(crate) fn check_runtime(&self, runtime: &Runtime) -> Result<()> {
        let spans = (self.spans)(self.process(), runtime);
        self.fails_everywhere.store(spans.is_err(), Ordering::Relaxed);
        spans
    }

    /// Checks that all processes are about to run the same.
    pub(crate) fn check_consistent(&self, action: &str, facts: &RunFingerprint) -> Result<()> {
        self.coordination.check_consistent(action, facts, NO_TIMEOUT)
    }

    /// Shares a value of process 0 with all processes. Process 0 calls `make`; the others wait.
    pub(crate) fn broadcast<T: Shareable>(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let key = format!("trainer/{name}/{}", self.turns.fetch_add(1, Ordering::Relaxed));
        if self.process().is_coordinator() {
            let value = make()?;
            let text = value.to_text().ok_or_else(|| {
                Error::usage(format!(
                    "{name}: a path is not valid UTF-8, but processes share paths as UTF-8"
                ))
            })?;
            self.coordination.put(&key, text)?;
            return Ok(value);
        }
        let text = String::from_utf8(self.coordination.get(&key, NO_TIMEOUT)?).ok();
        let value = text.and_then(|text| T::from_text(&text));
        let message = || {
            format!(
                "{name}: the value of process 0 is not valid; run the same build in all processes"
            )
        };
        value.ok_or_else(|| Error::usage(message()))
    }

    /// Gathers a text or a failure of each process in process 0, which computes a result from the
    /// texts. All processes get this result. If one process fails, all get its failure. It may run
    /// in parallel to the loop, but only one at a time.
    pub(crate) fn gather(
        &self,
        name: &str,
        text: Result<String, String>,
        make: impl FnOnce(Vec<String>) -> Result<String, String>,
    ) -> Result<Result<String, String>> {
        let key = format!("trainer/{name}/{}", self.gathers.fetch_add(1, Ordering::Relaxed));
        let index = self.process().index();
        let put = |key: &str, result: &Result<String, String>| {
            let (mark, text) =
                result.as_ref().map_or_else(|failure| ("-", failure), |text| ("+", text));
            self.coordination.put(key, format!("{mark}{text}"))
        };
        let get = |key: &str| -> Result<Result<String, String>> {
            let text =
                String::from_utf8_lossy(&self.coordination.get(key, NO_TIMEOUT)?).into_owned();
            Ok(text
                .strip_prefix('+')
                .map(str::to_owned)
                .ok_or_else(|| text.chars().skip(1).collect()))
        };
        if index > 0 {
            put(&format!("{key}/{index}"), &text)?;
            return get(&key);
        }
        let mut texts = vec![text];
        for process in 1..self.process().count() {
            texts.push(
                get(&format!("{key}/{process}"))?
                    .map_err(|failure| format!("process {process}: {failure}")),
            );
        }
        let result = texts.into_iter().collect::<Result<_, _>>().and_then(make);
        put(&key, &result)?;
        Ok(result)
    }

    /// Waits until all processes call this.
    pub(crate) fn barrier(&self, name: &str) -> Result<()> {
        self.coordination.barrier(&format!("trainer/{name}"), NO_TIMEOUT)
    }

    /// Whether `value` is true in any process. All processes call this at the same point and get
    /// the same result.
    pub(crate) fn any(&self, name: &str, value: bool) -> Result<bool> {
        let key = format!("trainer/{name}/{}", self.turns.fetch_add(1, Ordering::Relaxed));
        if value {
            self.coordination.put(&key, "yes")?;
        }
        // After this barrier, each process has put its value.
        self.barrier(name)?;
        Ok(self.coordination.try_get(&key)?.is_some())
    }

    /// The smallest of the numbers of all processes. All processes call this at the same point.
    pub(crate) fn minimum(&self, name: &str, own: u64) -> Result<u64> {
        let number = |text: &str| {
            text.parse::<u64>().map_err(|_| {
                format!("`{text}` is not a number; run the same build in all processes")
            })
        };
        let least = self.gather(name, Ok(own.to_string()), |texts| {
            let numbers = texts.iter().map(|text| number(text)).collect::<Result<Vec<_>, _>>()?;
            Ok(numbers.into_iter().fold(own, u64::min).to_string())
        })?;
        least
            .and_then(|text| number(&text))
            .map_err(|failure| Error::usage(format!("{name}: {failure}")))
    }

    /// Creates a halt, by which all processes stop after the same step. All processes call this at
    /// the same point.
    pub(crate) fn halt(&self) -> Halt {
        self.coordination.halt(&format!("trainer/{}", self.turns.fetch_add(1, Ordering::Relaxed)))
    }

    /// Checks that all processes are still alive.
    pub(crate) fn health(&self) -> Result<()> {
        self.coordination.health()
    }

    /// Waits until `ready` returns true. Fails if another process ends, since the work may need it.
    pub(crate) fn wait_until(&self, ready: impl Fn() -> bool) -> Result<()> {
        while !ready() {
            self.health()?;
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// Waits until this process sees what another one has written at a path, and returns whether it
    /// does.
    ///
    /// # Errors
    /// Another process ends.
    pub(crate) fn wait_for_file(&self, path: &Path, is_here: impl Fn() -> bool) -> Result<bool> {
        let started = Instant::now();
        let mut noted = false;
        while !is_here() {
            let waited = started.elapsed();
            if !noted && waited >= FILE_NOTE_AFTER.min(self.file_timeout / 2) {
                noted = true;
                from_each_process!(
                    INFO,
                    "{} does not see yet what another process has written to {}; it waits for {} s (FULMEN_FILE_TIMEOUT)",
                    self.describe(self.process().index()),
                    path.display(),
                    self.file_timeout.as_secs_f64(),
                );
            }
            if waited >= self.file_timeout {
                return Ok(false);
            }
            self.health()?;
            std::thread::sleep(FILE_INTERVAL);
        }
        Ok(true)
    }

    /// If the devices failed because another process is gone, an error that names that process. The
    /// devices may notice it before the missing heartbeats do, so this waits for those.
    pub(crate) fn explain(&self, error: Error) -> Error {
        if !error.is_runtime() || error.is_out_of_memory() || self.process().count() == 1 {
            return error;
        }
        let deadline = Instant::now() + self.heartbeat_timeout + Duration::from_secs(2);
        while Instant::now() < deadline {
            if let Err(lost) = self.health() {
                return lost.note(format_args!(". The devices reported: {error}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        error
    }

    /// Reports to the other processes that this one failed, unless all of them fail in the same
    /// way.
    pub(crate) fn fail(&self, error: &Error) {
        // The program reports the error.
        self.attended.fetch_add(1, Ordering::SeqCst);
        if self.fails_everywhere.load(Ordering::Relaxed) {
            return;
        }
        self.is_healthy.store(false, Ordering::Relaxed);
        self.coordination.fail(&error.to_string());
    }

    /// A signal that ends one process while there is nothing to save ends all, with the same exit
    /// code: before the first step of a fit, in other work, and between two calls of the Trainer.
    fn end_with_the_others(&mut self) {
        let coordination = self.coordination.clone();
        self.end_listener = Some(fulmen_signals::before_end(move |end| {
            let place = if end.is_in_run { "before its first step" } else { "outside of a fit" };
            let reason = format!("{} {place}", end.signal);
            coordination.fail_before_exit(&reason, Some(end.signal.number()));
        }));
        let attended = self.attended.clone();
        self.coordination.on_failure(move |error| {
            let Some(signal) = peer_signal(error) else { return };
            // Work that is under way and needs the other processes fails with this error, which the
            // program reports. Work that no longer needs them ends first.
            while attended.load(Ordering::SeqCst) > 0 {
                std::thread::sleep(Duration::from_millis(10));
            }
            from_each_process!(ERROR, "{error}");
            fulmen_signals::exit(signal.exit_code());
        });
    }

    /// Guards work in which the devices may wait for other processes inside the plugin, where no
    /// error reaches them. If another process ends and the guard still exists after [`GRACE`], this
    /// process ends.
    pub(crate) fn guard(&self) -> Guard {
        self.guard_for(GRACE)
    }

    fn guard_for(&self, grace: Duration) -> Guard {
        let is_over = Arc::new(AtomicBool::new(false));
        self.attended.fetch_add(1, Ordering::SeqCst);
        let guard = Guard { is_over: is_over.clone(), attended: self.attended.clone() };
        self.coordination.on_failure(move |error| {
            std::thread::sleep(grace);
            if !is_over.load(Ordering::SeqCst) {
                from_each_process!(
                    ERROR,
                    "{error}\nThe devices still wait for it, so this process ends itself."
                );
                let signal =
                    peer_signal(error).or(error.is_peer_silent().then_some(Signal::Terminate));
                fulmen_signals::exit(signal.map_or(1, Signal::exit_code));
            }
        });
        guard
    }
}

/// A value that processes can share.
pub(crate) trait Shareable: Sized {
    /// The text to send; `None` if the value has no text.
    fn to_text(&self) -> Option<String>;
    fn from_text(text: &str) -> Option<Self>;
}

impl Shareable for PathBuf {
    fn to_text(&self) -> Option<String> {
        self.to_str().map(str::to_owned)
    }

    fn from_text(text: &str) -> Option<PathBuf> {
        Some(text.into())
    }
}

/// Checks that all processes are about to run the same with these options, before any of them waits
/// for another on a device.
pub(crate) fn check_consistent(
    process_group: Option<&Arc<ProcessGroup>>,
    options: &Options,
    runtime: &Runtime,
    action: &str,
    facts: impl FnOnce(&mut RunFingerprint) -> Result<()>,
) -> Result<()> {
    let Some(process_group) = process_group else { return Ok(()) };
    let mut fingerprint = run_fingerprint(options, runtime)?;
    facts(&mut fingerprint)?;
    process_group.check_consistent(action, &fingerprint)?;
    process_group.check_runtime(runtime)
}

/// Waits for values on their way to the host. Fails if another process ends, since their
/// computation may need it.
pub(crate) fn wait_for_literals(
    process_group: Option<&Arc<ProcessGroup>>,
    values: PendingLiterals,
) -> Result<Vec<Literal>> {
    if let Some(process_group) = process_group {
        process_group.wait_until(|| values.is_ready())?;
    }
    values.wait()
}

/// While this exists, this process ends soon after another process of the group ends.
#[must_use]
pub(crate) struct Guard {
    is_over: Arc<AtomicBool>,
    attended: Arc<AtomicUsize>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.attended.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs after the last Trainer of a process was dropped. It waits until the other processes get
/// here too. Otherwise, they could take the end of this process for a failure, or lose their
/// coordinator.
impl Drop for ProcessGroup {
    fn drop(&mut self) {
        runtime::leave();
        if std::thread::panicking() {
            self.coordination.fail("it panicked");
        } else if self.is_healthy.load(Ordering::Relaxed)
            && self.health().is_ok()
            && let Err(error) = self.coordination.shutdown(NO_TIMEOUT)
        {
            from_each_process!(ERROR, "{error}");
        }
    }
}

#[cfg(test)]
#[cfg(feature = "multi-host")]
mod tests;
