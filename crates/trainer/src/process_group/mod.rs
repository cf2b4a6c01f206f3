//! The other processes of a run, where there are any: [`ProcessGroup`] is what a Trainer asks of them.
//!
//! Not here: how processes find and hear each other (`fulmen-coordination`), and collectives, which are XLA's.

mod facts;
mod runtime;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use fulmen_coordination::{Coordination, Halt, Process, Timeouts, on_preemption};
use fulmen_pjrt::locate::Platform;
use fulmen_tensor::{Accelerator, Devices, Literal, PendingLiterals, Runtime};
use parking_lot::Mutex;

use facts::of_run;
pub(crate) use facts::{RunFingerprint, add_program};
pub(crate) use runtime::check_alone;

use crate::console::{print_line, silence};
use crate::{Error, Options, Result, Signal};

/// How long a fit may go on after another process is gone. A collective that waits for it never ends.
const GRACE: Duration = Duration::from_secs(30);

/// How long the processes wait for each other once all have joined: as long as they are there, which their heartbeats
/// tell. One of them may write a checkpoint for an hour.
const WHILE_ALIVE: Duration = Duration::MAX;

/// The processes that train together with this one.
pub(crate) struct ProcessGroup {
    coordination: Coordination,
    /// Whether programs span the processes; tests let each process run its own.
    spans: fn(&Process, &Runtime) -> Result<()>,
    /// How many values were shared and questions decided, which is the same number in all processes.
    turns: AtomicU64,
    /// How often texts were gathered.
    gathered: AtomicU64,
    /// Nothing has gone wrong in this process alone, so the processes part in order.
    well: AtomicBool,
    /// What has gone wrong goes wrong in all processes alike: none needs to be told.
    alike: AtomicBool,
}

/// The processes that this one has joined, for its next Trainer.
static JOINED: Mutex<Weak<ProcessGroup>> = Mutex::new(Weak::new());

impl ProcessGroup {
    /// Joins the other processes that the environment tells of; `None` if it tells of none. Trainers that live at the
    /// same time share the place in the run.
    ///
    /// libtpu's variables count only for a TPU: the hosts of a pod may each train on their own processors.
    pub(crate) fn from_env(options: &Options, runtime: Option<&Runtime>) -> Result<Option<Arc<ProcessGroup>>> {
        static WATCHED: Once = Once::new();
        let env = |name: &str| std::env::var_os(name);
        WATCHED.call_once(|| {
            on_preemption(env, |why| {
                print_line(why);
                Signal::Terminate.raise();
            });
        });
        let is_tpu = match runtime {
            Some(runtime) => runtime.client().platform_name() == "tpu",
            None => options.accelerator.candidates().first() == Some(&Platform::Tpu),
        };
        let process = if is_tpu { Process::detect(env)? } else { Process::from_fulmen_env(env)? };
        if process.count() == 1 {
            return Ok(None);
        }
        let mut joined = JOINED.lock();
        if let Some(hosts) = joined.upgrade() {
            return Ok(Some(hosts));
        }
        if !process.is_coordinator() {
            silence();
        }
        let timeouts = Timeouts::from_env(env)?;
        let told = process.coordinator().to_owned();
        let join = Coordination::builder(process).timeouts(timeouts).on_listening(move |address| {
            if address != told {
                print_line(&format!("the coordinator listens at {address}"));
            }
        });
        let join = join.on_refused(print_line);
        let hosts = Arc::new(ProcessGroup::new(join.join()?, runtime::check));
        *joined = Arc::downgrade(&hosts);
        Ok(Some(hosts))
    }

    fn new(coordination: Coordination, spans: fn(&Process, &Runtime) -> Result<()>) -> ProcessGroup {
        let (well, alike) = (AtomicBool::new(true), AtomicBool::new(false));
        ProcessGroup { coordination, spans, turns: AtomicU64::new(0), gathered: AtomicU64::new(0), well, alike }
    }

    pub(crate) fn process(&self) -> &Process {
        self.coordination.process()
    }

    /// Opens this process's devices as part of those of all processes.
    pub(crate) fn open(&self, accelerator: Accelerator, devices: &Devices) -> Result<Runtime> {
        runtime::open(&self.coordination, accelerator, devices)
    }

    /// Whether the runtime's programs span the processes. To be called when the processes agree on the platform: the
    /// answer is the same in all.
    pub(crate) fn check_runtime(&self, runtime: &Runtime) -> Result<()> {
        let spans = (self.spans)(self.process(), runtime);
        self.alike.store(spans.is_err(), Ordering::Relaxed);
        spans
    }

    /// Compares with the other processes what each is about to run.
    pub(crate) fn agree(&self, what: &str, facts: &RunFingerprint) -> Result<()> {
        Ok(self.coordination.agree(what, facts, WHILE_ALIVE)?)
    }

    /// What all processes take from process 0: there `make` makes it, the others wait for it.
    pub(crate) fn broadcast<T: Shared>(&self, what: &str, make: impl FnOnce() -> Result<T>) -> Result<T> {
        let key = format!("trainer/{what}/{}", self.turns.fetch_add(1, Ordering::Relaxed));
        if self.process().is_coordinator() {
            let value = make()?;
            let text = value.to_text();
            let text = text.ok_or_else(|| {
                Error::usage(format!("{what}: a path is not UTF-8, and processes share paths as UTF-8"))
            })?;
            self.coordination.put(&key, text)?;
            return Ok(value);
        }
        let text = String::from_utf8(self.coordination.get(&key, WHILE_ALIVE)?).ok();
        let value = text.and_then(|text| T::from_text(&text));
        value.ok_or_else(|| Error::usage(format!("{what}: process 0 shares what is none; use one build for all")))
    }

    /// Gathers a text or a failure of each process in process 0, and gives all what it makes of the texts. One failure is
    /// that of all. It may run in parallel to the loop, but only once at a time.
    pub(crate) fn gather(
        &self,
        what: &str,
        mine: Result<String, String>,
        make: impl FnOnce(Vec<String>) -> Result<String, String>,
    ) -> Result<Result<String, String>> {
        let key = format!("trainer/{what}/{}", self.gathered.fetch_add(1, Ordering::Relaxed));
        let own = self.process().index();
        let put = |key: &str, told: &Result<String, String>| {
            let (mark, text) = told.as_ref().map_or_else(|why| ("-", why), |text| ("+", text));
            self.coordination.put(key, format!("{mark}{text}"))
        };
        let get = |key: &str| -> Result<Result<String, String>> {
            let text = String::from_utf8_lossy(&self.coordination.get(key, WHILE_ALIVE)?).into_owned();
            Ok(text.strip_prefix('+').map(str::to_owned).ok_or_else(|| text.chars().skip(1).collect()))
        };
        if own > 0 {
            put(&format!("{key}/{own}"), &mine)?;
            return get(&key);
        }
        let mut all = vec![mine];
        for process in 1..self.process().count() {
            all.push(get(&format!("{key}/{process}"))?.map_err(|why| format!("process {process}: {why}")));
        }
        let made = all.into_iter().collect::<Result<_, _>>().and_then(make);
        put(&key, &made)?;
        Ok(made)
    }

    /// Waits until all processes have come here.
    pub(crate) fn meet(&self, what: &str) -> Result<()> {
        Ok(self.coordination.barrier(&format!("trainer/{what}"), WHILE_ALIVE)?)
    }

    /// Whether any process wants something. All ask at the same point, and get the same answer.
    pub(crate) fn any(&self, what: &str, wanted: bool) -> Result<bool> {
        let key = format!("trainer/{what}/{}", self.turns.fetch_add(1, Ordering::Relaxed));
        if wanted {
            self.coordination.put(&key, "yes")?;
        }
        // A process that wants it has said so before this point.
        self.meet(what)?;
        Ok(self.coordination.try_get(&key)?.is_some())
    }

    /// The least of the numbers of all processes. All ask at the same point.
    pub(crate) fn least(&self, what: &str, own: u64) -> Result<u64> {
        let number = |text: &str| {
            text.parse::<u64>().map_err(|_| format!("`{text}` is not a number; run the same build in all processes"))
        };
        let least = self.gather(what, Ok(own.to_string()), |all| {
            let numbers = all.iter().map(|text| number(text)).collect::<Result<Vec<_>, _>>()?;
            Ok(numbers.into_iter().fold(own, u64::min).to_string())
        })?;
        least.and_then(|text| number(&text)).map_err(|why| Error::usage(format!("{what}: {why}")))
    }

    /// Lets all processes end something after the same step. All ask for it at the same point.
    pub(crate) fn halt(&self) -> Halt {
        self.coordination.halt(&format!("trainer/{}", self.turns.fetch_add(1, Ordering::Relaxed)))
    }

    /// Whether all processes are still there.
    pub(crate) fn health(&self) -> Result<()> {
        Ok(self.coordination.health()?)
    }

    /// Waits for something that may need the other processes, but no longer than they are there.
    pub(crate) fn wait_until(&self, ready: impl Fn() -> bool) -> Result<()> {
        while !ready() {
            self.health()?;
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// Tells the others that this process cannot go on, unless they cannot either.
    pub(crate) fn fail(&self, error: &Error) {
        if self.alike.load(Ordering::Relaxed) {
            return;
        }
        self.well.store(false, Ordering::Relaxed);
        self.coordination.fail(&error.to_string());
    }

    /// From here until the guard is dropped, the devices may wait for other processes inside of the plugin, where no
    /// error reaches. If one is gone and the fit has not ended by itself some time later, the process ends.
    pub(crate) fn guard(&self) -> Guard {
        self.guard_for(GRACE)
    }

    fn guard_for(&self, grace: Duration) -> Guard {
        let over = Arc::new(AtomicBool::new(false));
        let seen = over.clone();
        self.coordination.on_failure(move |error| {
            std::thread::sleep(grace);
            if !seen.load(Ordering::SeqCst) {
                print_line(&format!("error: {error}\nThe devices still wait for it, so this process ends itself."));
                fulmen_signals::exit(1);
            }
        });
        Guard(over)
    }
}

/// What processes share.
pub(crate) trait Shared: Sized {
    /// As it travels, if it can.
    fn to_text(&self) -> Option<String>;
    fn from_text(text: &str) -> Option<Self>;
}

impl Shared for PathBuf {
    fn to_text(&self) -> Option<String> {
        self.to_str().map(str::to_owned)
    }

    fn from_text(text: &str) -> Option<PathBuf> {
        Some(text.into())
    }
}

/// Compares with the other processes, if there are any, what each is about to run with these options, before any of them
/// waits for another on a device.
pub(crate) fn agree(
    hosts: Option<&Arc<ProcessGroup>>,
    options: &Options,
    runtime: &Runtime,
    what: &str,
    facts: impl FnOnce(&mut RunFingerprint) -> Result<()>,
) -> Result<()> {
    let Some(hosts) = hosts else { return Ok(()) };
    let mut all = of_run(options, runtime)?;
    facts(&mut all)?;
    hosts.agree(what, &all)?;
    hosts.check_runtime(runtime)
}

/// The values that are on their way to the host, unless another process is gone that their computation needs.
pub(crate) fn arrive(hosts: Option<&Arc<ProcessGroup>>, values: PendingLiterals) -> Result<Vec<Literal>> {
    if let Some(hosts) = hosts {
        hosts.wait_until(|| values.is_ready())?;
    }
    Ok(values.wait()?)
}

/// While it lives, this process does not outlive its peers by long.
#[must_use]
pub(crate) struct Guard(Arc<AtomicBool>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The last Trainer of a process is gone: it waits for the others to get there, so that none of them takes this end for
/// a failure, and none that is still at work loses its coordinator.
impl Drop for ProcessGroup {
    fn drop(&mut self) {
        runtime::leave();
        if std::thread::panicking() {
            self.coordination.fail("it panicked");
        } else if self.well.load(Ordering::Relaxed)
            && self.health().is_ok()
            && let Err(error) = self.coordination.shutdown(WHILE_ALIVE)
        {
            print_line(&format!("error: {error}"));
        }
    }
}

#[cfg(test)]
#[cfg(feature = "multi-host")]
mod tests;
