//! `pod status`, `logs`, `stop` and `exec`: queries about existing runs. All state is on the hosts,
//! none on this machine.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_gcloud::quote;
use fulmen_signals::Signal;
use serde::Serialize;

use crate::arguments::{Exec, Logs, Status, Stop, Targets};
use crate::monitor::{Limits, Monitor};
use crate::plan::{SCRIPT_TIMEOUT, Worker};
use crate::run::print_line;
use crate::ssh::{Input, LOGS, SIGNAL, STATUS, Ssh};
use crate::{Error, Result};

/// Each distinct host, in order.
pub(crate) fn distinct_hosts<'a>(items: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    let mut unique: Vec<String> = Vec::new();
    for item in items {
        if !unique.contains(item) {
            unique.push(item.clone());
        }
    }
    unique
}

/// Calls a function for all items in parallel.
///
/// # Errors
/// One line for each failure, with the name of the item.
pub(crate) fn parallel_map<T: Sync, R: Send>(
    items: &[T],
    name: impl Fn(&T) -> String,
    work: impl Fn(&T) -> Result<R, String> + Sync,
) -> Result<Vec<R>> {
    let work = &work;
    let results: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = items.iter().map(|item| scope.spawn(move || work(item))).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let failed = |(item, result): (&T, &Result<R, String>)| {
        Some(format!("{}: {}", name(item), result.as_ref().err()?))
    };
    let failures: Vec<String> = items.iter().zip(&results).filter_map(failed).collect();
    if !failures.is_empty() {
        return Err(Error::new(failures.join("\n")));
    }
    Ok(results.into_iter().filter_map(Result::ok).collect())
}

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
    log_bytes: u64,
    step: Option<String>,
}

impl Row {
    fn parse(host: &str, line: &str) -> Option<Row> {
        let mut words = line.split(' ');
        let (run, worker) = words.next()?.rsplit_once('/')?;
        let (run, host, worker) = (run.to_owned(), host.to_owned(), worker.parse().ok()?);
        let reported_state = words.next()?;
        let exit_code = words.next()?.parse().ok();
        let pid = words.next()?.parse().ok();
        let (started, log_bytes) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let step = words.next().filter(|step| !step.is_empty()).map(str::to_owned);
        let is_lost = reported_state == "ended" && exit_code.is_none();
        let state = if is_lost { "lost" } else { reported_state }.to_owned();
        Some(Row { run, worker, host, state, exit_code, pid, started, log_bytes, step })
    }

    fn is_running(&self) -> bool {
        self.state == "running" || self.state == "stopped"
    }
}

/// The workers of all runs, or of one.
fn rows(ssh: &Ssh, hosts: &[String], run: Option<&str>) -> Result<Vec<Row>> {
    let arguments: Vec<&str> = run.into_iter().collect();
    let ask = |host: &String| {
        ssh.ask(host, &STATUS.command(&arguments), Input::Text(""), SCRIPT_TIMEOUT).result()
    };
    let hosts = distinct_hosts(hosts);
    let answers = parallel_map(&hosts, String::clone, ask)?;
    let host_rows = |(host, text): (&String, &String)| {
        text.lines().filter_map(|l| Row::parse(host, l)).collect::<Vec<_>>()
    };
    let mut rows: Vec<Row> = hosts.iter().zip(&answers).flat_map(host_rows).collect();
    rows.sort_by(|a, b| (&a.run, a.worker).cmp(&(&b.run, b.worker)));
    Ok(rows)
}

/// The workers of a run, or of the newest run.
fn run_rows(targets: &Targets, run: Option<&str>) -> Result<(Ssh, Vec<Row>)> {
    let (hosts, ssh) = targets.resolve()?;
    let mut rows = rows(&ssh, &hosts, run)?;
    let newest = rows.iter().max_by_key(|row| row.started).map(|row| row.run.clone());
    let Some(run) = newest else {
        let missing = run.map_or("no run".into(), |run| format!("no run {run}"));
        return Err(Error::new(format!("there is {missing} on {}", hosts.join(", "))));
    };
    rows.retain(|row| row.run == run);
    Ok((ssh, rows))
}

pub(crate) fn status(arguments: &Status, out: &mut dyn Write) -> Result<u8> {
    let (hosts, ssh) = arguments.targets.resolve()?;
    let rows = rows(&ssh, &hosts, arguments.run.as_deref())?;
    if arguments.json {
        let text = serde_json::to_string_pretty(&rows).map_err(|e| Error::new(e.to_string()))?;
        print_line(out, &text);
        return Ok(0);
    }
    for row in &rows {
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
    Ok(0)
}

pub(crate) fn logs(
    arguments: &Logs,
    out: &mut dyn Write,
    signals: impl FnOnce() -> Result<Receiver<Signal>>,
) -> Result<u8> {
    let (ssh, rows) = run_rows(&arguments.targets, arguments.run.as_deref())?;
    let run = rows[0].run.clone();
    let workers: Vec<Worker> =
        rows.iter().map(|row| Worker::existing(row.worker, &row.host)).collect();
    if arguments.follow {
        let never = Duration::from_secs(u32::MAX.into());
        let limits = Limits {
            lost_timeout: arguments.lost_timeout,
            stuck_timeout: never,
            start_timeout: never,
            grace: never,
        };
        return Ok(Monitor::new(ssh, run, limits, None, 0, out).run(vec![workers], &signals()?));
    }
    let lines = arguments.lines.map_or("+1".to_owned(), |lines| lines.to_string());
    let ask = |worker: &Worker| {
        ssh.ask(
            &worker.host,
            &LOGS.command(&[&run, &worker.index.to_string(), &lines]),
            Input::Text(""),
            SCRIPT_TIMEOUT,
        )
        .result()
    };
    let texts = parallel_map(&workers, Worker::to_string, ask)?;
    for (worker, text) in workers.iter().zip(&texts) {
        text.lines().for_each(|line| print_line(out, &format!("[worker {}] {line}", worker.index)));
    }
    Ok(0)
}

pub(crate) fn stop(arguments: &Stop, out: &mut dyn Write) -> Result<u8> {
    let (ssh, rows) = run_rows(&arguments.targets, arguments.run.as_deref())?;
    let run = rows[0].run.clone();
    let mut running: Vec<Row> = rows.into_iter().filter(Row::is_running).collect();
    let workers = |rows: &[Row]| {
        rows.iter().map(|row| Worker::existing(row.worker, &row.host)).collect::<Vec<_>>()
    };
    if arguments.dry_run {
        for worker in workers(&running) {
            let command = SIGNAL.command(&[&run, &worker.index.to_string(), "TERM"]);
            print_line(out, &ssh.shell_line(&worker.host, &command));
        }
        return Ok(0);
    }
    for (signal, timeout) in [("TERM", arguments.grace), ("KILL", Duration::from_secs(10))] {
        signal_all(&ssh, &run, &workers(&running), signal);
        let deadline = Instant::now() + timeout;
        while !running.is_empty() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(300));
            let hosts: Vec<String> = running.iter().map(|row| row.host.clone()).collect();
            running =
                self::rows(&ssh, &hosts, Some(&run))?.into_iter().filter(Row::is_running).collect();
        }
    }
    if let Some(row) = running.first() {
        return Err(Error::new(format!(
            "{run}: worker {} ({}) still runs after SIGKILL",
            row.worker, row.host
        )));
    }
    print_line(out, &format!("[pod] {run}: all workers have ended"));
    Ok(0)
}

/// An event of a command on a host.
enum OutputEvent {
    Line { worker: usize, text: String },
    Exit { worker: usize, code: u8 },
}

pub(crate) fn exec(arguments: &Exec, out: &mut dyn Write) -> Result<u8> {
    let (hosts, ssh) = arguments.targets.resolve()?;
    let words: Vec<String> = arguments.command.iter().map(|word| quote(word)).collect();
    let command = words.join(" ");
    if arguments.dry_run {
        hosts.iter().for_each(|host| print_line(out, &ssh.shell_line(host, &command)));
        return Ok(0);
    }
    let (send, events) = channel();
    for (index, host) in hosts.iter().enumerate() {
        let mut command = ssh.command(host, &command);
        let failed = |e| Error::new(format!("the program ssh: {e}"));
        let mut child = command.stdin(Stdio::null()).spawn().map_err(failed)?;
        let send: Sender<OutputEvent> = send.clone();
        thread::spawn(move || {
            let (out, err) = (child.stdout.take(), child.stderr.take());
            thread::scope(|scope| {
                scope.spawn(|| send_lines(out, index, &send));
                send_lines(err, index, &send);
            });
            let code = child
                .wait()
                .ok()
                .and_then(|status| status.code())
                .and_then(|code| u8::try_from(code).ok());
            let _ = send.send(OutputEvent::Exit { worker: index, code: code.unwrap_or(1) });
        });
    }
    drop(send);
    let mut codes = vec![0; hosts.len()];
    for event in events {
        match event {
            OutputEvent::Line { worker, text } => {
                print_line(out, &format!("[worker {worker}] {text}"));
            }
            OutputEvent::Exit { worker, code } => codes[worker] = code,
        }
    }
    for (worker, code) in codes.iter().enumerate().filter(|(_, code)| **code != 0) {
        print_line(
            out,
            &format!("[pod] {} exited with code {code}", Worker::existing(worker, &hosts[worker])),
        );
    }
    Ok(codes.into_iter().find(|code| *code != 0).unwrap_or(0))
}

fn send_lines(pipe: Option<impl Read>, worker: usize, send: &Sender<OutputEvent>) {
    let lines = pipe
        .into_iter()
        .flat_map(|pipe| BufReader::new(pipe).split(b'\n').map_while(std::io::Result::ok));
    for line in lines {
        let text = String::from_utf8_lossy(&line).into_owned();
        let _ = send.send(OutputEvent::Line { worker, text });
    }
}
