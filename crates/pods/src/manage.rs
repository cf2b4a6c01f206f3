//! `pod status`, `logs` and `stop`: queries about existing runs. All state is on the hosts, none on
//! this machine.

use std::io::{BufReader, Write};
use std::process::Stdio;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use fulmen_signals::Signal;
use serde::Serialize;

use crate::arguments::{Logs, Status, Stop, Targets};
use crate::lines::Lines;
use crate::monitor::{Limits, Monitor};
use crate::output::{Output, WhenFull, print_line};
use crate::parallel::{distinct_hosts, parallel_map, parallel_results};
use crate::plan::{SCRIPT_TIMEOUT, Worker};
use crate::providers::Providers;
use crate::session::MAX_ERRORS;
use crate::ssh::{Input, LOGS, SIGNAL, STATUS, Ssh, explain};
use crate::{Error, Result};

/// Sends a signal to all workers that can be reached.
pub(crate) fn signal_all(ssh: &Ssh, run: &str, workers: &[Worker], signal: &str) {
    let send = |worker: &Worker| {
        let command = SIGNAL.command(&[run, &worker.index.to_string(), signal]);
        ssh.ask(&worker.host, &command, Input::Text(""), SCRIPT_TIMEOUT).result()
    };
    // The caller checks afterwards whether the workers have ended.
    drop(parallel_map(workers, Worker::to_string, send));
}

/// A worker as its host reports it.
#[derive(Clone, Debug, Serialize)]
struct Row {
    run: String,
    worker: usize,
    host: String,
    /// `running`, `stopped`, `ended`, or `lost`: it has ended with an unknown exit code.
    state: String,
    exit_code: Option<u8>,
    pid: Option<u32>,
    /// When it was started, in Unix seconds by the host's clock.
    started: u64,
    /// For how many seconds it has existed. Unlike `started`, it can be compared between hosts.
    age: i64,
    log_bytes: u64,
    /// The launcher that started it. Hosts that share a home directory report the same worker.
    #[serde(skip)]
    launcher: String,
    /// Whether its processes are, or were, on this host.
    #[serde(skip)]
    is_here: bool,
    step: Option<String>,
}

impl Row {
    fn parse(host: &str, line: &str) -> Option<Row> {
        let mut words = line.split(' ');
        let (run, worker) = words.next()?.rsplit_once('/')?;
        let run = run.to_owned();
        let host = host.to_owned();
        let worker = worker.parse().ok()?;
        let reported_state = words.next()?;
        let exit_code = words.next()?.parse().ok();
        let pid = words.next()?.parse().ok();
        let started = words.next()?.parse().ok()?;
        let age = words.next()?.parse().ok()?;
        let log_bytes = words.next()?.parse().ok()?;
        let launcher = words.next()?.to_owned();
        let is_here = words.next()? == "yes";
        let step = words.next().filter(|step| !step.is_empty()).map(str::to_owned);
        let is_lost = reported_state == "ended" && exit_code.is_none();
        let state = if is_lost { "lost" } else { reported_state }.to_owned();
        Some(Row {
            run,
            worker,
            host,
            state,
            exit_code,
            pid,
            started,
            age,
            log_bytes,
            launcher,
            is_here,
            step,
        })
    }

    fn is_running(&self) -> bool {
        self.state == "running" || self.state == "stopped"
    }
}

/// The workers that hosts report.
struct Report {
    rows: Vec<Row>,
    unreachable: Vec<Unreachable>,
}

/// A host that did not answer.
struct Unreachable {
    host: String,
    reason: String,
}

impl Report {
    /// Asks hosts for the workers of all runs, or of one.
    fn ask(ssh: &Ssh, hosts: &[String], run: Option<&str>) -> Report {
        let arguments: Vec<&str> = run.into_iter().collect();
        let ask = |host: &String| {
            ssh.ask(host, &STATUS.command(&arguments), Input::Text(""), SCRIPT_TIMEOUT).result()
        };
        let hosts = distinct_hosts(hosts);
        let mut rows = Vec::new();
        let mut unreachable = Vec::new();
        for (host, answer) in hosts.iter().zip(parallel_results(&hosts, ask)) {
            match answer {
                Ok(text) => rows.extend(text.lines().filter_map(|line| Row::parse(host, line))),
                Err(reason) => unreachable.push(Unreachable { host: host.clone(), reason }),
            }
        }
        Report { rows: without_repetitions(rows), unreachable }
    }

    fn is_unreachable(&self, host: &str) -> bool {
        self.unreachable.iter().any(|unreachable| unreachable.host == host)
    }

    /// The result of a command that did its work on all hosts that answered.
    ///
    /// # Errors
    /// One line for each host that did not answer.
    fn finish(&self, code: u8) -> Result<u8> {
        let failures: Vec<String> =
            self.unreachable.iter().map(|host| format!("{}: {}", host.host, host.reason)).collect();
        if failures.is_empty() { Ok(code) } else { Err(Error::new(failures.join("\n"))) }
    }
}

/// Hosts with a shared home directory report all workers: keeps the row of the worker's own host.
/// The result is sorted by run and worker.
fn without_repetitions(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort_by(|a, b| {
        let key = |row: &Row| (row.run.clone(), row.worker, row.launcher.clone(), !row.is_here);
        key(a).cmp(&key(b))
    });
    rows.dedup_by(|later, kept| {
        (&later.run, later.worker, &later.launcher) == (&kept.run, kept.worker, &kept.launcher)
            && later.host != kept.host
    });
    rows
}

/// A run, and how to reach its hosts.
struct FoundRun {
    ssh: Ssh,
    hosts: Vec<String>,
    name: String,
    report: Report,
}

impl FoundRun {
    /// The named run, or the newest. The age of a run does not depend on the hosts' clocks.
    ///
    /// # Errors
    /// There is no such run; a host that did not answer is named.
    fn newest(targets: &Targets, providers: &Providers, name: Option<&str>) -> Result<FoundRun> {
        let (hosts, ssh) = targets.resolve(providers)?;
        let report = Report::ask(&ssh, &hosts, name);
        let newest = report.rows.iter().min_by_key(|row| row.age).map(|row| row.run.clone());
        FoundRun { ssh, hosts, name: String::new(), report }.named(newest, name)
    }

    /// The named run, or the only one that is running.
    ///
    /// # Errors
    /// There is no such run, or more than one; a host that did not answer is named.
    fn running(targets: &Targets, providers: &Providers, name: Option<&str>) -> Result<FoundRun> {
        let (hosts, ssh) = targets.resolve(providers)?;
        let mut report = Report::ask(&ssh, &hosts, name);
        if name.is_none() {
            report.rows.retain(Row::is_running);
        }
        let mut runs = report.rows.iter().map(|row| row.run.clone()).collect::<Vec<_>>();
        runs.dedup();
        if runs.len() > 1 {
            return Err(Error::usage(format!(
                "several runs are running; name one: {}",
                runs.join(", ")
            )));
        }
        let found = FoundRun { ssh, hosts, name: String::new(), report };
        if name.is_none() && runs.is_empty() {
            let hosts = found.hosts.join(", ");
            found.report.finish(0)?;
            return Err(Error::new(format!("no run is running on {hosts}")));
        }
        found.named(runs.pop(), name)
    }

    fn named(mut self, found: Option<String>, wanted: Option<&str>) -> Result<FoundRun> {
        let Some(found) = found else {
            self.report.finish(0)?;
            let missing = wanted.map_or("no run".into(), |run| format!("no run {run}"));
            return Err(Error::new(format!("there is {missing} on {}", self.hosts.join(", "))));
        };
        self.report.rows.retain(|row| row.run == found);
        self.name = found;
        Ok(self)
    }

    fn workers(&self) -> Vec<Worker> {
        self.report.rows.iter().map(|row| Worker::existing(row.worker, &row.host)).collect()
    }
}

pub(crate) fn status(arguments: &Status, providers: &Providers, out: &mut dyn Write) -> Result<u8> {
    let (hosts, ssh) = arguments.targets.resolve(providers)?;
    let report = Report::ask(&ssh, &hosts, arguments.run.as_deref());
    if arguments.json {
        let text =
            serde_json::to_string_pretty(&report.rows).map_err(|e| Error::new(e.to_string()))?;
        print_line(out, &text);
        return report.finish(0);
    }
    for row in &report.rows {
        let code = row
            .exit_code
            .filter(|_| !row.is_running())
            .map(|code| format!(" with code {code}"))
            .unwrap_or_default();
        let step = row.step.as_ref().map(|step| format!(", step {step}")).unwrap_or_default();
        print_line(
            out,
            &format!("{} worker {} ({}): {}{code}{step}", row.run, row.worker, row.host, row.state),
        );
    }
    report.finish(0)
}

pub(crate) fn logs(
    arguments: &Logs,
    providers: &Providers,
    out: &mut dyn Write,
    signals: impl FnOnce() -> Result<Receiver<Signal>>,
) -> Result<u8> {
    let found = FoundRun::newest(&arguments.targets, providers, arguments.run.as_deref())?;
    if arguments.follow {
        found.report.finish(0)?;
        let never = Duration::from_secs(u32::MAX.into());
        let limits = Limits {
            lost_timeout: arguments.lost_timeout,
            stuck_timeout: never,
            start_timeout: never,
            grace: never,
        };
        let output = Output::new(&found.name, WhenFull::Wait);
        let workers = found.workers();
        let monitor = Monitor::new(found.ssh, found.name, limits, None, 0, output);
        return Ok(monitor.run_and_print(vec![workers], signals()?, out));
    }
    let lines = arguments.lines.map_or("+1".to_owned(), |lines| lines.to_string());
    let mut failures = Vec::new();
    for worker in found.workers() {
        let command = LOGS.command(&[&found.name, &worker.index.to_string(), &lines]);
        if let Err(reason) = print_log(&found.ssh, &worker, &command, out) {
            failures.push(format!("{worker}: {reason}"));
        }
    }
    if !failures.is_empty() {
        return Err(Error::new(failures.join("\n")));
    }
    found.report.finish(0)
}

/// Prints a worker's log as it arrives, because it may be larger than memory.
fn print_log(ssh: &Ssh, worker: &Worker, command: &str, out: &mut dyn Write) -> Result<(), String> {
    let failed = |e: std::io::Error| ssh.failure(&e);
    let mut command = ssh.command(&worker.host, command);
    let mut child = command.stdin(Stdio::null()).spawn().map_err(failed)?;
    let errors = child.stderr.take();
    let errors = thread::spawn(move || {
        let mut last = Vec::new();
        for line in errors.into_iter().flat_map(|errors| Lines::new(BufReader::new(errors))) {
            last.push(line.text);
            if last.len() > MAX_ERRORS {
                last.remove(0);
            }
        }
        last
    });
    if let Some(log) = child.stdout.take() {
        let mut lines = Lines::new(BufReader::new(log));
        for line in lines.by_ref() {
            print_line(out, &format!("[worker {}] {}", worker.index, line.text));
        }
        if let Some(line) = lines.rest() {
            print_line(out, &format!("[worker {}] {}", worker.index, line.text));
        }
    }
    let errors = errors.join().unwrap_or_default();
    let status = child.wait().map_err(failed)?;
    if status.success() { Ok(()) } else { Err(explain(status.code(), &errors.join("\n"))) }
}

pub(crate) fn stop(arguments: &Stop, providers: &Providers, out: &mut dyn Write) -> Result<u8> {
    let mut found = FoundRun::running(&arguments.targets, providers, arguments.run.as_deref())?;
    found.report.rows.retain(Row::is_running);
    if arguments.dry_run {
        for worker in found.workers() {
            let command = SIGNAL.command(&[found.name.as_str(), &worker.index.to_string(), "TERM"]);
            print_line(out, &found.ssh.shell_line(&worker.host, &command));
        }
        return found.report.finish(0);
    }
    for (signal, timeout) in [("TERM", arguments.grace), ("KILL", Duration::from_secs(10))] {
        signal_all(&found.ssh, &found.name, &found.workers(), signal);
        let deadline = Instant::now() + timeout;
        while !found.report.rows.is_empty() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(300));
            let hosts: Vec<String> = found.report.rows.iter().map(|row| row.host.clone()).collect();
            let now = Report::ask(&found.ssh, &hosts, Some(&found.name));
            found.report.rows.retain(|row| {
                let same = |other: &&Row| other.worker == row.worker;
                now.is_unreachable(&row.host)
                    || now.rows.iter().find(same).is_some_and(Row::is_running)
            });
        }
    }
    if let Some(row) = found.report.rows.first() {
        return Err(Error::new(format!(
            "{}: worker {} ({}) still runs after SIGKILL",
            found.name, row.worker, row.host
        )));
    }
    found.report.finish(0)?;
    print_line(out, &format!("[pod] {}: all workers have ended", found.name));
    Ok(0)
}
