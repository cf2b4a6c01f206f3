#![doc = include_str!("../README.md")]

mod approvals;
mod compare;
mod event;
mod html;
mod parts;
mod pod;
mod report;
mod scrub;
mod supervise;

use std::ffi::OsString;
use std::time::Duration;

use fulmen_error::{Error, Result};
use fulmen_tensor::Accelerator;
use serde::{Deserialize, Serialize};

pub use compare::compare;
pub use event::{Failure, Measurement};
pub use html::page;
pub use report::{Ending, PartReport, Report};

use event::{Context, Event, Job};
use pod::Pod;
use scrub::Scrub;

/// What is tested.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// `tpu`, `cuda`, `cpu` or `auto`.
    pub accelerator: String,
    /// The number of devices; `None` for all, and for one on a CPU.
    pub devices: Option<usize>,
    /// Whether everything is tested, rather than what takes a minute.
    pub full: bool,
    /// The names of the parts; all if empty.
    pub parts: Vec<String>,
    /// Part of the names of the operations that are tested.
    pub only: Option<String>,
    /// The seconds after which work that reports nothing is ended; `None` for 120, or 300 if
    /// everything is tested.
    #[serde(default)]
    pub timeout: Option<u64>,
}

impl Options {
    /// How long work may take.
    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout.unwrap_or(if self.full { 300 } else { 120 }))
    }
}

/// How long later parts may take to open the devices if the first could not.
const SECOND_OPENING: Duration = Duration::from_secs(20);

/// The names of the parts, in their order.
pub fn part_names() -> impl Iterator<Item = &'static str> {
    parts::PARTS.iter().map(|part| part.name)
}

/// What came of a test.
#[derive(Clone, Debug, PartialEq)]
pub struct Tested {
    /// What all parts found, in all processes.
    pub report: Report,
    /// Whether this process shows the report: it is the only one, or the first of a pod.
    pub is_first: bool,
}

/// Runs each part in a process of its own: the program `program ARGUMENTS…` with a further argument,
/// which it hands to [`run_part`]. `done` is called after each part, with the report so far, which has
/// passed only after the last part.
///
/// If the environment names the processes of a pod, as it does for a Trainer, all of them call this,
/// and test their devices together. `done` is called in the first one, and all get the same report.
///
/// # Errors
/// An option is invalid, or no process can be started. The processes of a pod do not meet, or one is
/// lost. What a part finds is in the report.
pub fn run(
    options: &Options,
    program: &[OsString],
    mut done: impl FnMut(&Report),
) -> Result<Tested> {
    options.accelerator.parse::<Accelerator>()?;
    if options.devices == Some(0) {
        return Err(Error::usage("the number of devices is 0; at least one is needed"));
    }
    if let Some(unknown) = options.parts.iter().find(|name| part_names().all(|n| n != **name)) {
        let names: Vec<&str> = part_names().collect();
        let names = names.join(", ");
        return Err(Error::usage(format!("there is no part `{unknown}`; the parts are {names}")));
    }
    let folder = tempfile::tempdir().map_err(|e| Error::runtime("making a temporary folder", e))?;
    let pod = Pod::join(options, folder.path())?;
    let is_first = pod.as_ref().is_none_or(Pod::is_first);
    let scrub = Scrub::local(folder.path(), pod.iter().flat_map(Pod::hosts));
    let mut so_far = Report::new(options, Vec::new());
    let mut timeout = options.timeout();
    for part in parts::PARTS {
        if !options.parts.is_empty() && options.parts.iter().all(|name| name != part.name) {
            continue;
        }
        let report = supervise::run(part, options, timeout, program, folder.path(), pod.as_ref())?;
        let mut report = report.scrubbed(&scrub)?;
        if let Some(pod) = &pod {
            report = pod.put_together(&report)?;
        }
        approvals::settle(&mut report);
        if matches!(report.ending, Ending::TimedOut { .. }) && report.doing == [event::OPENING] {
            timeout = timeout.min(SECOND_OPENING);
        }
        so_far.parts.push(report);
        if is_first {
            done(&so_far);
        }
    }
    if let Some(pod) = &pod {
        pod.leave()?;
    }
    Ok(Tested { report: Report::new(options, so_far.parts), is_first })
}

/// Does the work of a process that [`run`] started. `job` is the argument that it got.
///
/// # Errors
/// The job is not one of [`run`]'s, or the part cannot work at all. The report has the message.
pub fn run_part(job: &str) -> Result<()> {
    let job: Job = serde_json::from_str(job)
        .map_err(|e| Error::usage(format!("this command is for `fulmen selftest` alone: {e}")))?;
    let part = parts::PARTS.iter().find(|part| part.name == job.part);
    let part = part.ok_or_else(|| Error::usage(format!("there is no part `{}`", job.part)))?;
    supervise::end_with_the_test()?;
    let context = Context::new(job)?;
    if let Err(error) = (part.run)(&context) {
        context.fail(part.name, error.to_string());
    }
    context.say(&Event::Finished);
    Ok(())
}
