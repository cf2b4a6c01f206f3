//! [`Pod`]: the processes of a pod that test their devices together. Each runs the parts in
//! processes of its own, which join each other for a part. Process 0 puts the reports together.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fulmen_coordination::{Coordination, Process, Timeouts};
use fulmen_error::{Error, Result};
use fulmen_pjrt::locate::Platform;
use fulmen_tensor::Accelerator;

use crate::Options;
use crate::event::{Failure, Place};
use crate::report::{Ending, PartReport};

/// The processes wait for each other without a limit: parts have limits, and the loss of a process
/// is noticed.
const NO_TIMEOUT: Duration = Duration::MAX;

/// The file by which processes see whether they have the same folder.
const MARK: &str = "pod";

/// What the processes of a part need to join each other, besides what [`Pod::begin`] sets.
const HANDED_ON: [&str; 5] = [
    "FULMEN_RUN_TOKEN",
    "FULMEN_HOSTS",
    "FULMEN_JOIN_TIMEOUT",
    "FULMEN_HEARTBEAT_TIMEOUT",
    "FULMEN_FILE_TIMEOUT",
];

/// The processes that test their devices together.
pub(crate) struct Pod {
    coordination: Coordination,
    /// The folder of process 0, if all processes see it.
    folder: Option<PathBuf>,
}

/// How a process of a part begins.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Beginning {
    pub(crate) place: Option<Place>,
    /// The folder of process 0, if all processes see it.
    pub(crate) folder: Option<PathBuf>,
    pub(crate) variables: Vec<(&'static str, String)>,
}

impl Beginning {
    /// A process without others, whatever the environment says.
    pub(crate) fn alone() -> Beginning {
        let variables = vec![("FULMEN_NUM_PROCESSES", "1".to_owned())];
        Beginning { variables, ..Beginning::default() }
    }
}

impl Pod {
    /// Joins the processes that the environment names; `None` if it names none. `folder` is a new
    /// folder of this process.
    ///
    /// # Errors
    /// A process does not come, or has other options.
    pub(crate) fn join(options: &Options, folder: &Path) -> Result<Option<Pod>> {
        let variable = |name: &str| env::var_os(name);
        let is_tpu = options.accelerator.parse::<Accelerator>()?.platform() == Platform::Tpu;
        let process =
            if is_tpu { Process::detect(variable)? } else { Process::from_fulmen_env(variable)? };
        if process.count() == 1 {
            return Ok(None);
        }
        let coordination = Coordination::builder(process)
            .timeouts(Timeouts::from_env(variable)?)
            .on_waiting(print)
            .on_refused(print)
            .join()
            .map_err(|e| {
                e.note(
                    ". `fulmen pod run` starts the test on all hosts of a pod; FULMEN_NUM_PROCESSES=1 tests this host \
                     alone",
                )
            })?;
        let mut pod = Pod { coordination, folder: None };
        let text =
            serde_json::to_string(options).map_err(|e| Error::runtime("sharing the options", e))?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let facts =
            BTreeMap::from([("options".into(), text), ("version of fulmen".into(), version)]);
        pod.coordination.check_consistent("selftest", &facts, NO_TIMEOUT)?;
        pod.share_folder(folder)?;
        Ok(Some(pod))
    }

    fn process(&self) -> &Process {
        self.coordination.process()
    }

    /// Whether this process prints and writes the report.
    pub(crate) fn is_first(&self) -> bool {
        self.process().is_coordinator()
    }

    /// The names of all hosts.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &str> {
        self.coordination.processes().iter().map(|process| process.host.as_str())
    }

    fn share_folder(&mut self, own: &Path) -> Result<()> {
        let path = PathBuf::from(self.share("folder", || {
            fs::write(own.join(MARK), "").map_err(|e| Error::runtime("sharing a folder", e))?;
            Ok(own.to_string_lossy().into_owned())
        })?);
        let sees = if path.join(MARK).is_file() { "yes" } else { "no" };
        self.put(&format!("sees/{}", self.process().index()), sees)?;
        let all = self.all("sees")?;
        self.folder = all.iter().all(|sees| sees == "yes").then_some(path);
        Ok(())
    }

    fn put(&self, name: &str, text: &str) -> Result<()> {
        self.coordination.put(&format!("selftest/{name}"), text)
    }

    fn get(&self, name: &str) -> Result<String> {
        let bytes = self.coordination.get(&format!("selftest/{name}"), NO_TIMEOUT)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// What each process put as `NAME/INDEX`.
    fn all(&self, name: &str) -> Result<Vec<String>> {
        (0..self.process().count()).map(|i| self.get(&format!("{name}/{i}"))).collect()
    }

    /// A text of process 0, in all processes.
    fn share(&self, name: &str, make: impl FnOnce() -> Result<String>) -> Result<String> {
        if self.is_first() {
            self.put(name, &make()?)?;
        }
        self.get(name)
    }

    /// Tells the process of a part how it joins the others.
    pub(crate) fn begin(&self, part: &str, options: &Options) -> Result<Beginning> {
        let process = self.process();
        let address = self.share(&format!("{part}/address"), || {
            let host = process.coordinator().rsplit_once(':').map_or("", |(host, _)| host);
            Ok(format!("{host}:{}", free_port()?))
        })?;
        let mut variables = vec![
            ("FULMEN_COORDINATOR", address),
            ("FULMEN_RUN_ID", format!("{} {part}", process.run_id())),
            ("FULMEN_ACCELERATOR", options.accelerator.clone()),
        ];
        // Otherwise a launcher says it, which also says which GPUs of the host are whose.
        if process.local() == (0, 1) {
            variables.push(("FULMEN_PROCESS_ID", process.index().to_string()));
            variables.push(("FULMEN_NUM_PROCESSES", process.count().to_string()));
        }
        let set = HANDED_ON.into_iter().filter_map(|name| Some((name, env::var(name).ok()?)));
        variables.extend(set);
        let place = Place {
            index: process.index(),
            count: process.count(),
            shares_folder: self.folder.is_some(),
        };
        Ok(Beginning { place: Some(place), folder: self.folder.clone(), variables })
    }

    /// Tells the others that the process of a part ended too early.
    pub(crate) fn stop(&self, part: &str) -> Result<()> {
        self.put(&format!("{part}/stopped"), "yes")
    }

    /// Whether that of any process did.
    pub(crate) fn is_stopped(&self, part: &str) -> Result<bool> {
        Ok(self.coordination.try_get(&format!("selftest/{part}/stopped"))?.is_some())
    }

    /// What all processes found in a part.
    pub(crate) fn put_together(&self, own: &PartReport) -> Result<PartReport> {
        let wrong = |e: serde_json::Error| Error::runtime("sharing a report", e);
        let name = format!("{}/report", own.name);
        let text = serde_json::to_string(own).map_err(wrong)?;
        self.put(&format!("{name}/{}", self.process().index()), &text)?;
        let text = self.share(&name, || {
            let texts = self.all(&name)?;
            let reports = texts.iter().map(|text| serde_json::from_str(text));
            let reports = reports.collect::<Result<Vec<PartReport>, _>>().map_err(wrong)?;
            serde_json::to_string(&put_together(reports)).map_err(wrong)
        })?;
        serde_json::from_str(&text).map_err(wrong)
    }

    /// Waits until all processes have read everything.
    pub(crate) fn leave(&self) -> Result<()> {
        self.coordination.shutdown(NO_TIMEOUT)
    }
}

fn print(message: &str) {
    // Unlike `eprintln!`, this cannot panic.
    let _ = writeln!(std::io::stderr(), "{message}");
}

fn free_port() -> Result<u16> {
    let bound = TcpListener::bind(("0.0.0.0", 0)).and_then(|listener| listener.local_addr());
    Ok(bound.map_err(|e| Error::runtime("looking for a free port", e))?.port())
}

/// The reports of all processes about a part, as one. What not all of them say has their number.
fn put_together(reports: Vec<PartReport>) -> PartReport {
    let count = reports.len();
    let mut failures: Vec<(Failure, Vec<usize>)> = Vec::new();
    let mut all: Option<PartReport> = None;
    let mut skipped = BTreeSet::new();
    let mut doing = BTreeSet::new();
    for (process, mut report) in reports.into_iter().enumerate() {
        for failure in std::mem::take(&mut report.failures) {
            let is_same = |other: &Failure| {
                (&other.name, &other.setting, &other.message)
                    == (&failure.name, &failure.setting, &failure.message)
            };
            match failures.iter_mut().find(|other| is_same(&other.0)) {
                Some(other) => other.1.push(process),
                None => failures.push((failure, vec![process])),
            }
        }
        skipped.extend(std::mem::take(&mut report.skipped));
        doing.extend(std::mem::take(&mut report.doing));
        match &mut all {
            None => all = Some(report),
            Some(all) => add(all, report, process),
        }
    }
    let mut all = all.unwrap_or_else(|| PartReport::of_nothing("part"));
    all.failures = failures
        .into_iter()
        .map(
            |(failure, processes)| {
                if processes.len() == count { failure } else { of(failure, &processes) }
            },
        )
        .collect();
    all.skipped = skipped.into_iter().collect();
    all.doing = doing.into_iter().collect();
    all
}

/// A failure with the numbers of the processes that had it.
fn of(mut failure: Failure, processes: &[usize]) -> Failure {
    let numbers: Vec<String> = processes.iter().map(usize::to_string).collect();
    let word = if numbers.len() == 1 { "process" } else { "processes" };
    let separator = if failure.setting.is_empty() { "" } else { ", " };
    failure.setting = format!("{}{separator}{word} {}", failure.setting, numbers.join(" and "));
    failure
}

fn add(all: &mut PartReport, other: PartReport, process: usize) {
    all.passed &= other.passed;
    all.seconds = all.seconds.max(other.seconds);
    all.comparisons += other.comparisons;
    // The cause, not what came of it in the others.
    let is_cause = |ending: &Ending| !matches!(ending, Ending::Finished | Ending::Stopped);
    if !is_cause(&all.ending) && other.ending != Ending::Finished {
        all.ending = other.ending;
        all.last_output = other.last_output;
    }
    for (name, value) in other.facts {
        if all.facts.get(&name) != Some(&value) {
            all.facts.insert(format!("{name} in process {process}"), value);
        }
    }
    all.measurements.extend(other.measurements.into_iter().map(|mut measured| {
        measured.name = format!("{} in process {process}", measured.name);
        measured
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(failures: &[(&str, &str)], ending: Ending) -> PartReport {
        let failure = |&(name, message): &(&str, &str)| Failure {
            name: name.into(),
            message: message.into(),
            ..Failure::default()
        };
        let failures: Vec<Failure> = failures.iter().map(failure).collect();
        let passed = failures.is_empty() && ending == Ending::Finished;
        let facts = BTreeMap::from([("devices".into(), "4".into())]);
        PartReport {
            failures,
            passed,
            ending,
            facts,
            comparisons: 3,
            ..PartReport::of_nothing("device")
        }
    }

    #[test]
    fn reports_are_put_together_and_say_which_process_failed() {
        let together = put_together(vec![
            report(&[("all", "wrong")], Ending::Finished),
            report(&[("all", "wrong"), ("one", "wrong")], Ending::Finished),
        ]);
        assert!(!together.passed && together.comparisons == 6, "{together:?}");
        assert_eq!(together.facts.len(), 1, "{together:?}");
        let failures: Vec<String> = together.failures.iter().map(ToString::to_string).collect();
        assert_eq!(failures, ["all: wrong", "one (process 1): wrong"]);
    }

    #[test]
    fn the_ending_is_that_of_the_process_that_ended_first() {
        let crashed = Ending::Signal { signal: 6, name: "SIGABRT".into() };
        for order in [[Ending::Stopped, crashed.clone()], [crashed.clone(), Ending::Stopped]] {
            let together = put_together(order.map(|ending| report(&[], ending)).into());
            assert!(together.ending == crashed && !together.passed, "{together:?}");
        }
        let together = put_together(vec![report(&[], Ending::Finished); 2]);
        assert!(together.passed && together.ending == Ending::Finished, "{together:?}");
    }
}
