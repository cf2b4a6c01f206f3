//! [`Event`]: what a part says while it works, one line of JSON each. [`Context`] writes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use fulmen_error::{Error, Result};
use fulmen_pjrt::locate::Platform;
use fulmen_tensor::{Accelerator, Devices, Runtime};
use fulmen_trainer::Trainer;
use serde::{Deserialize, Serialize};

use crate::Options;

/// Something that is wrong.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// What was tested.
    pub name: String,
    /// How: the dtype, the precision of products, and the devices.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub setting: String,
    /// What is wrong.
    pub message: String,
    /// The types of the inputs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<String>,
    /// The largest error of a number in units of its last place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ulps: Option<f64>,
    /// The program that computed it, as StableHLO.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
}

/// A measured number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// What was measured.
    pub name: String,
    /// The number.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// Its share of what the data sheet of the device says, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// Why the number may be low, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What a part says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// Work begins. If the process ends before `End`, it ended in this work.
    Begin(String),
    /// Work ended, whatever came of it.
    End(String),
    /// Work that began is done again as smaller work, after which it ends.
    Divided(String),
    /// The process ended too early, and another does the rest.
    Restart,
    /// The number of comparisons that agreed.
    Passed(u64),
    Failed(Failure),
    /// Something that this device or this run does not test, with the reason.
    Skipped(String),
    Fact(String, String),
    Measured(Measurement),
    /// The part has done everything.
    Finished,
}

impl Event {
    fn failed(name: &str, message: String) -> Event {
        Event::Failed(Failure { name: name.to_owned(), message, ..Failure::default() })
    }
}

/// What a process of a part is told of earlier ones. The file of events has what they did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Past {
    /// The work that ended a process, and how. It is not done again.
    pub(crate) fatal: BTreeMap<String, String>,
    /// The work during which a process ended that did other work too. It is done alone.
    pub(crate) suspects: BTreeSet<String>,
}

/// The place of a process among those of a pod that do a part together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) index: usize,
    pub(crate) count: usize,
    /// Whether all processes have the same folder.
    pub(crate) shares_folder: bool,
}

/// What a process of a part is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) part: String,
    pub(crate) options: Options,
    pub(crate) events: PathBuf,
    /// An empty folder.
    pub(crate) folder: PathBuf,
    pub(crate) past: Past,
    /// `None` in a test of one process.
    pub(crate) place: Option<Place>,
}

/// The name of the work of opening the devices, without which a part can do nothing.
pub(crate) const OPENING: &str = "opening the devices";

/// Whether work is to be done.
pub(crate) enum Start<'a> {
    /// An earlier process did it.
    Ended,
    /// An earlier process ended while it did it. The text says how.
    Fatal(String),
    Begun(#[allow(dead_code, reason = "held while the work is done")] Turn<'a>),
}

/// Held while work is done.
pub(crate) enum Turn<'a> {
    Alone(#[allow(dead_code, reason = "held")] RwLockWriteGuard<'a, ()>),
    WithOthers(#[allow(dead_code, reason = "held")] RwLockReadGuard<'a, ()>),
}

/// What a part works with.
pub(crate) struct Context {
    pub(crate) options: Options,
    pub(crate) folder: PathBuf,
    pub(crate) place: Option<Place>,
    /// Keeps this process among those of the pod until the part has ended.
    pod: Mutex<Option<Trainer>>,
    past: Past,
    /// The work that earlier processes did.
    ended: BTreeSet<String>,
    turns: RwLock<()>,
    events: File,
}

impl Context {
    pub(crate) fn new(job: Job) -> Result<Context> {
        let text = fs::read(&job.events).unwrap_or_default();
        let Events { ended, .. } = Events::read(&String::from_utf8_lossy(&text));
        let open = OpenOptions::new().append(true).create(true).open(&job.events);
        let events = open.map_err(|e| Error::runtime("opening the file of events", e))?;
        let Job { options, folder, past, place, .. } = job;
        let pod = Mutex::new(None);
        let turns = RwLock::new(());
        Ok(Context { options, folder, place, pod, past, ended, turns, events })
    }

    #[cfg(test)]
    pub(crate) fn for_test(options: Options, folder: &std::path::Path) -> Context {
        let events = folder.join("events");
        let folder = folder.to_owned();
        let past = Past::default();
        let part = String::new();
        Context::new(Job { part, options, events, folder, past, place: None }).unwrap()
    }

    /// Writes an event. Without a place to write, there is nobody to tell.
    pub(crate) fn say(&self, event: &Event) {
        self.write(std::slice::from_ref(event));
    }

    fn write(&self, events: &[Event]) {
        let lines = events.iter().filter_map(|event| serde_json::to_string(event).ok());
        let text: String = lines.map(|line| line + "\n").collect();
        let _ = (&self.events).write_all(text.as_bytes());
    }

    /// Begins work, unless an earlier process did it. Work that begins or was fatal needs an
    /// [`end`](Self::end). A thread does not begin other work
    /// before it has dropped its turn.
    pub(crate) fn start(&self, name: &str) -> Start<'_> {
        if self.ended.contains(name) {
            return Start::Ended;
        }
        if let Some(how) = self.past.fatal.get(name) {
            return Start::Fatal(format!("the process {how}"));
        }
        let turn = if self.past.suspects.contains(name) {
            Turn::Alone(self.turns.write().unwrap_or_else(PoisonError::into_inner))
        } else {
            Turn::WithOthers(self.turns.read().unwrap_or_else(PoisonError::into_inner))
        };
        self.say(&Event::Begin(name.to_owned()));
        Start::Begun(turn)
    }

    /// Ends work with its results. They are written at once, so that a crash in other work makes
    /// none of them count twice.
    pub(crate) fn end(&self, name: &str, mut results: Vec<Event>) {
        results.push(Event::End(name.to_owned()));
        self.write(&results);
    }

    /// Does some work. Its error is a failure with this name.
    pub(crate) fn check(&self, name: &str, work: impl FnOnce() -> Result<()>) {
        let outcome = match self.start(name) {
            Start::Ended => return,
            Start::Fatal(how) => Err(how),
            Start::Begun(_turn) => work().map_err(|error| error.to_string()),
        };
        let result = match outcome {
            Ok(()) => Event::Passed(1),
            Err(message) => Event::failed(name, message),
        };
        self.end(name, vec![result]);
    }

    pub(crate) fn fail(&self, name: &str, message: impl Into<String>) {
        self.say(&Event::failed(name, message.into()));
    }

    pub(crate) fn fact(&self, name: impl Into<String>, value: impl ToString) {
        self.say(&Event::Fact(name.into(), value.to_string()));
    }

    pub(crate) fn skip(&self, what: impl Into<String>) {
        self.say(&Event::Skipped(what.into()));
    }

    pub(crate) fn platform(&self) -> Platform {
        self.accelerator().platform()
    }

    pub(crate) fn accelerator(&self) -> Accelerator {
        self.options.accelerator.parse().unwrap_or_default()
    }

    pub(crate) fn devices(&self) -> Devices {
        self.options.devices.map_or_else(Devices::auto, Devices::from)
    }

    /// All devices, without a compile cache: the compiler is part of what is tested.
    pub(crate) fn runtime(&self) -> Result<Runtime> {
        match self.place {
            Some(place) => self.open_pod(place),
            None => self.open(&self.devices()),
        }
    }

    /// The devices of all processes of the pod.
    fn open_pod(&self, place: Place) -> Result<Runtime> {
        let mut pod = self.pod.lock().unwrap_or_else(PoisonError::into_inner);
        let trainer = match &*pod {
            Some(trainer) => trainer,
            None => {
                self.say(&Event::Begin(OPENING.to_owned()));
                let trainer = Trainer::builder()
                    .accelerator(self.accelerator())
                    .devices(self.devices())
                    .loggers("none")
                    .enable_progress_bar(false)
                    .enable_model_summary(false)
                    .build();
                self.end(OPENING, Vec::new());
                &*pod.insert(trainer?)
            }
        };
        let runtime = trainer.runtime();
        let devices = runtime.client().devices().iter();
        let processes = devices.map(|device| device.process_index()).collect::<BTreeSet<_>>();
        if processes.len() != place.count {
            return Err(Error::usage(format!(
                "{} processes have joined, but the plugin `{}` sees the devices of {}; FULMEN_NUM_PROCESSES=1 tests each \
                 host alone, and `fulmen pod run --virtual` rehearses a pod on CPUs",
                place.count,
                runtime.client().platform_name(),
                processes.len()
            )));
        }
        Ok(runtime.clone().with_compile_cache(None))
    }

    /// The number of processes that do the part together.
    pub(crate) fn processes(&self) -> usize {
        self.place.map_or(1, |place| place.count)
    }

    fn open(&self, devices: &Devices) -> Result<Runtime> {
        self.say(&Event::Begin(OPENING.to_owned()));
        let runtime = Runtime::open(self.accelerator(), devices);
        self.end(OPENING, Vec::new());
        Ok(runtime?.with_compile_cache(None))
    }

    /// The first device of this process alone.
    pub(crate) fn first_device(&self) -> Result<Runtime> {
        if self.place.is_some() {
            // Of the client that all processes have opened.
            self.runtime()?;
            return Ok(Runtime::global()?.with_compile_cache(None));
        }
        self.open(&match self.platform() {
            Platform::Cpu => Devices::from(1),
            Platform::Cuda | Platform::Tpu => Devices::from([0]),
        })
    }
}

/// Whether some devices are those of other processes, so that all processes must launch the same.
pub(crate) fn spans_processes(runtime: &Runtime) -> bool {
    runtime.devices().iter().any(|device| !device.is_addressable())
}

/// The events of a part, put together.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) passed: u64,
    pub(crate) failures: Vec<Failure>,
    pub(crate) skipped: Vec<String>,
    pub(crate) facts: BTreeMap<String, String>,
    pub(crate) measurements: Vec<Measurement>,
    /// The work that began and did not end.
    pub(crate) doing: Vec<String>,
    pub(crate) ended: BTreeSet<String>,
    pub(crate) finished: bool,
}

impl Events {
    /// Reads the lines of a file of events. The last line of a process that died may be cut.
    pub(crate) fn read(text: &str) -> Events {
        let mut all = Events::default();
        for event in text.lines().filter_map(|line| serde_json::from_str(line).ok()) {
            match event {
                Event::Begin(name) => all.doing.push(name),
                Event::End(name) => {
                    all.doing.retain(|other| *other != name);
                    all.ended.insert(name);
                }
                Event::Divided(name) => all.doing.retain(|other| *other != name),
                Event::Restart => all.doing.clear(),
                Event::Passed(count) => all.passed += count,
                Event::Failed(failure) => all.failures.push(failure),
                // Each process of a part says it.
                Event::Skipped(what) if all.skipped.contains(&what) => {}
                Event::Skipped(what) => all.skipped.push(what),
                Event::Fact(name, value) => {
                    all.facts.insert(name, value);
                }
                Event::Measured(measurement) => all.measurements.push(measurement),
                Event::Finished => all.finished = true,
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_died_was_doing_what_it_began_and_did_not_end() {
        let lines = [
            Event::Begin("exp".into()),
            Event::Begin("log".into()),
            Event::Passed(3),
            Event::End("exp".into()),
        ];
        let lines = lines.map(|event| serde_json::to_string(&event).unwrap());
        let events = Events::read(&(lines.join("\n") + "\n{\"passed\":"));
        assert_eq!((events.passed, events.doing, events.finished), (3, vec!["log".into()], false));
    }

    #[test]
    fn what_an_earlier_process_did_is_not_done_again() {
        let folder = tempfile::tempdir().unwrap();
        let context = Context::for_test(Options::default(), folder.path());
        context.check("a", || Ok(()));
        context.say(&Event::Begin("b".into()));
        let mut later = Context::for_test(Options::default(), folder.path());
        later.past.fatal.insert("b".into(), "crashed".into());
        for name in ["a", "b"] {
            later.check(name, || panic!("{name} is done again"));
        }
        later.check("c", || Ok(()));
        let events = Events::read(&fs::read_to_string(folder.path().join("events")).unwrap());
        assert_eq!((events.passed, events.failures.len(), events.doing), (2, 1, vec![]));
        assert_eq!(events.failures[0].message, "the process crashed");
    }
}
