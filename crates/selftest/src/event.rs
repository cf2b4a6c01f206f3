//! [`Event`]: what a part says while it works, one line of JSON each. [`Context`] writes them.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;

use fulmen_error::{Error, Result};
use fulmen_pjrt::locate::Platform;
use fulmen_tensor::{Accelerator, Devices, Runtime};
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

/// What a process of a part is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) part: String,
    pub(crate) options: Options,
    pub(crate) events: PathBuf,
    /// An empty folder.
    pub(crate) folder: PathBuf,
}

/// What a part works with.
pub(crate) struct Context {
    pub(crate) options: Options,
    pub(crate) folder: PathBuf,
    events: File,
}

impl Context {
    pub(crate) fn new(job: Job) -> Result<Context> {
        let open = OpenOptions::new().append(true).create(true).open(&job.events);
        let events = open.map_err(|e| Error::runtime("opening the file of events", e))?;
        Ok(Context { options: job.options, folder: job.folder, events })
    }

    #[cfg(test)]
    pub(crate) fn for_test(options: Options, folder: &std::path::Path) -> Context {
        let events = folder.join("events");
        let folder = folder.to_owned();
        Context::new(Job { part: String::new(), options, events, folder }).unwrap()
    }

    /// Writes an event. Without a place to write, there is nobody to tell.
    pub(crate) fn say(&self, event: &Event) {
        if let Ok(mut line) = serde_json::to_vec(event) {
            line.push(b'\n');
            let _ = (&self.events).write_all(&line);
        }
    }

    /// Does some work. Its error is a failure with this name.
    pub(crate) fn check(&self, name: &str, work: impl FnOnce() -> Result<()>) {
        self.say(&Event::Begin(name.to_owned()));
        match work() {
            Ok(()) => self.say(&Event::Passed(1)),
            Err(error) => self.fail(name, error.to_string()),
        }
        self.say(&Event::End(name.to_owned()));
    }

    pub(crate) fn fail(&self, name: &str, message: impl Into<String>) {
        let message = message.into();
        let failure = Failure { name: name.to_owned(), message, ..Failure::default() };
        self.say(&Event::Failed(failure));
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
        Ok(Runtime::open(self.accelerator(), &self.devices())?.with_compile_cache(None))
    }

    /// The first device alone.
    pub(crate) fn first_device(&self) -> Result<Runtime> {
        let runtime = match self.platform() {
            Platform::Cpu => Runtime::open(self.accelerator(), &Devices::from(1))?,
            Platform::Cuda | Platform::Tpu => {
                Runtime::open(self.accelerator(), &Devices::from([0]))?
            }
        };
        Ok(runtime.with_compile_cache(None))
    }
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
                    if let Some(place) = all.doing.iter().position(|other| *other == name) {
                        all.doing.remove(place);
                    }
                }
                Event::Passed(count) => all.passed += count,
                Event::Failed(failure) => all.failures.push(failure),
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
}
