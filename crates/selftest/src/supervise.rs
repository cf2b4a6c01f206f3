//! Runs a part in a process of its own, and reports how the process ended.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_error::{Error, Result};
use rustix::process::{Signal, getpid, kill_process};

use crate::event::{Event, Events, Job, OPENING, Past};
use crate::pod::{Beginning, Pod};
use crate::report::{Ending, PartReport};
use crate::{Options, parts};

/// How often the end of a process is looked for.
const INTERVAL: Duration = Duration::from_millis(20);

/// How often a process asks whether that of another process of the pod has ended.
const STOP_INTERVAL: Duration = Duration::from_millis(500);

/// How many times another process does the rest of a part.
const RESTARTS: usize = 20;

/// How many of the last lines of a process that died are kept.
const LAST_LINES: usize = 30;

/// The beginnings of variables that say where plugins are, and what a virtual pod does. All other
/// variables of Fulmen, which change how a model trains, are not for the parts.
const KEPT_VARIABLES: [&str; 3] = ["FULMEN_PJRT_PLUGIN", "FULMEN_VIRTUAL_POD", "FULMEN_TEST_"];

fn is_removed(variable: &str) -> bool {
    let kept = KEPT_VARIABLES.iter().any(|start| variable.starts_with(start));
    variable.starts_with("FULMEN_") && !kept
}

/// Runs a part with the program `program ARGUMENTS… JOB`. If the process ends too early, another
/// does the rest, except in a pod, whose processes must do the same. Work that reports nothing for
/// `timeout` is ended.
pub(crate) fn run(
    part: &parts::Part,
    options: &Options,
    timeout: Duration,
    program: &[OsString],
    folder: &Path,
    pod: Option<&Pod>,
) -> Result<PartReport> {
    let beginning =
        pod.map_or_else(|| Ok(Beginning::alone()), |pod| pod.begin(part.name, options))?;
    let failed = |e: io::Error| Error::runtime(format!("running the part {}", part.name), e);
    let path = folder.join(format!("{}.events", part.name));
    let start = Instant::now();
    let mut past = Past::default();
    let mut last_output = Vec::new();
    let mut attempt = 0;
    loop {
        let name = format!("{}-{attempt}", part.name);
        let output = folder.join(&name).with_extension("output");
        let own = beginning.folder.as_deref().unwrap_or(folder).join(name);
        fs::create_dir_all(&own).map_err(failed)?;
        let job = Job {
            part: part.name.to_owned(),
            options: options.clone(),
            events: path.clone(),
            folder: own,
            past,
            place: beginning.place,
        };
        let left = part.limit(options).saturating_sub(start.elapsed());
        let mut child = spawn(program, &job, &output, &beginning.variables).map_err(failed)?;
        let is_stopped = || pod.map_or(Ok(false), |pod| pod.is_stopped(part.name));
        let limits = Limits { whole: left, of_work: timeout };
        let end = match wait(&mut child, &limits, &path, is_stopped) {
            Ok(end) => end,
            Err(error) => {
                // It waits for the others.
                let _ = child.kill().and_then(|()| child.wait());
                return Err(error.context(format_args!("running the part {}", part.name)));
            }
        };
        let events = fs::read(&path).unwrap_or_default();
        let events = Events::read(&String::from_utf8_lossy(&events));
        let ending = ending(end, &events);
        if ending != Ending::Finished {
            last_output =
                last_lines(&String::from_utf8_lossy(&fs::read(&output).unwrap_or_default()));
            if let Some(pod) = pod {
                pod.stop(part.name)?;
            }
        }
        let next = job.past.after(&events, &ending);
        let has_time = attempt < RESTARTS && start.elapsed() < part.limit(options);
        let may_continue = pod.is_none() && has_time;
        match next.filter(|_| may_continue) {
            Some(next) => past = next,
            None => {
                let seconds = start.elapsed().as_secs_f64();
                return Ok(PartReport::new(part.name, seconds, events, ending, last_output));
            }
        }
        append(&path, &Event::Restart).map_err(failed)?;
        attempt += 1;
    }
}

impl Past {
    /// What the process is told that does the rest, after one that knew this has ended. `None` if
    /// it did everything, or did not get to its work.
    fn after(&self, events: &Events, ending: &Ending) -> Option<Past> {
        let doing = &events.doing;
        if *ending == Ending::Finished || doing.is_empty() || doing.iter().any(|it| it == OPENING) {
            return None;
        }
        let mut next = self.clone();
        match &doing[..] {
            [one] => {
                next.fatal.insert(one.clone(), ending.describe());
            }
            several => next.suspects.extend(several.iter().cloned()),
        }
        Some(next)
    }
}

/// Starts the process, which writes to the file `output`.
fn spawn(
    program: &[OsString],
    job: &Job,
    output: &Path,
    variables: &[(&str, String)],
) -> io::Result<Child> {
    let Some((first, rest)) = program.split_first() else {
        return Err(io::Error::other("the program has no name"));
    };
    let file = File::create(output)?;
    let mut command = Command::new(first);
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_removed(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    let job = serde_json::to_string(job)?;
    // Nothing is written to it: its end tells the process that this one has ended.
    command.stdin(Stdio::piped());
    command.args(rest).arg(job).stdout(file.try_clone()?).stderr(file).spawn()
}

/// Ends this process, which [`spawn`] started, when the one that started it has ended. Nobody else
/// would end a part that hangs.
pub(crate) fn end_with_the_test() -> Result<()> {
    let end = || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        let _ = kill_process(getpid(), Signal::KILL);
    };
    thread::Builder::new()
        .name("fulmen-selftest-end".into())
        .spawn(end)
        .map(drop)
        .map_err(|e| Error::runtime("starting a thread", e))
}

fn append(path: &Path, event: &Event) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).open(path)?;
    // The line of a process that died may be cut.
    writeln!(file, "\n{}", serde_json::to_string(event)?)
}

/// How a process ended.
enum End {
    Itself(ExitStatus),
    /// It was still running at this limit, and was killed.
    Killed(Duration),
    /// That of another process of the pod ended, and it was killed.
    Stopped,
}

/// How long a process may run.
struct Limits {
    whole: Duration,
    /// After an event.
    of_work: Duration,
}

/// Waits for the process, as long as the limits allow, and until `is_stopped`.
fn wait(
    child: &mut Child,
    limits: &Limits,
    events: &Path,
    is_stopped: impl Fn() -> Result<bool>,
) -> Result<End> {
    let failed = |e: io::Error| Error::runtime("waiting for a process", e);
    let start = Instant::now();
    let mut last_event = start;
    let mut last_question = start;
    let mut size = 0;
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(End::Itself(status));
        }
        let now = fs::metadata(events).map_or(0, |events| events.len());
        if now != size {
            size = now;
            last_event = Instant::now();
        }
        let over = [(start, limits.whole), (last_event, limits.of_work)];
        let over = over.into_iter().find(|(since, limit)| since.elapsed() >= *limit);
        let mut end = over.map(|(_, limit)| End::Killed(limit));
        if end.is_none() && last_question.elapsed() >= STOP_INTERVAL {
            last_question = Instant::now();
            end = is_stopped()?.then_some(End::Stopped);
        }
        if let Some(end) = end {
            child.kill().and_then(|()| child.wait()).map_err(failed)?;
            return Ok(end);
        }
        thread::sleep(INTERVAL);
    }
}

fn ending(end: End, events: &Events) -> Ending {
    match end {
        End::Killed(limit) => Ending::TimedOut { limit_seconds: limit.as_secs() },
        End::Stopped => Ending::Stopped,
        End::Itself(status) => match (status.signal(), status.code()) {
            (Some(signal), _) => Ending::Signal { signal, name: signal_name(signal).to_owned() },
            (None, Some(0)) if events.finished => Ending::Finished,
            (None, code) => Ending::Exit { code: code.unwrap_or(-1) },
        },
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL, which the kernel sends if the memory of the machine is full",
        11 => "SIGSEGV",
        15 => "SIGTERM",
        _ => "another signal",
    }
}

/// The last lines that a process printed.
fn last_lines(printed: &str) -> Vec<String> {
    let lines: Vec<&str> = printed.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].iter().map(|line| (*line).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a shell script as a part. Its argument is the job.
    fn part(script: &str, limit: u64, timeout: u64) -> PartReport {
        let folder = tempfile::tempdir().unwrap();
        let part = parts::Part::for_test(limit);
        let script = ["sh", "-c", script, "sh"].map(Into::into);
        let timeout = Duration::from_secs(timeout);
        run(&part, &Options::default(), timeout, &script, folder.path(), None).unwrap()
    }

    #[test]
    fn a_part_that_crashes_is_reported_with_its_signal_and_last_lines() {
        let crashed = part("echo the plugin said this >&2; kill -SEGV $$", 100, 100);
        assert!(!crashed.passed && crashed.last_output == ["the plugin said this"], "{crashed:?}");
        let end = crashed.end().unwrap();
        assert!(end.contains("crashed with signal 11 (SIGSEGV)"), "{end}");
        let ended = part("exit 0", 100, 100).end().unwrap();
        assert!(ended.contains("exit code 0") && ended.contains("starting"), "{ended}");
    }

    #[test]
    fn a_part_that_hangs_is_ended_at_its_limit() {
        for (limit, timeout) in [(0, 100), (100, 0)] {
            let end = part("exec sleep 1000", limit, timeout).end().unwrap();
            assert!(end.contains("still working after 0 seconds"), "{end}");
        }
    }

    /// The beginning of a script that writes events.
    const SAY: &str =
        r#"events=${1#*\"events\":\"}; events=${events%%\"*}; say() { echo "$1" >> "$events"; }; "#;

    #[test]
    fn another_process_does_the_rest_of_a_part_that_crashed() {
        let script = r#"case $1 in
            *'"fatal":{}'*) say '{"begin":"a"}'; say '{"end":"a"}'; say '{"begin":"b"}'; echo lost; kill -SEGV $$;;
            *'"fatal":{"b":"crashed with signal 11'*) say '{"end":"b"}'; say '"finished"';;
        esac"#;
        let report = part(&format!("{SAY}{script}"), 100, 100);
        assert!(report.ending == Ending::Finished && report.doing.is_empty(), "{report:?}");
        assert_eq!(report.last_output, ["lost"]);
    }

    #[test]
    fn work_that_ended_a_process_with_other_work_is_done_alone() {
        let mut events = Events { doing: vec!["a".into(), "b".into()], ..Events::default() };
        let crashed = Ending::Exit { code: 3 };
        let second = Past::default().after(&events, &crashed).unwrap();
        assert!(second.fatal.is_empty(), "{second:?}");
        assert!(second.suspects.contains("a") && second.suspects.contains("b"), "{second:?}");
        events.doing.pop();
        let third = second.after(&events, &crashed).unwrap();
        assert_eq!(third.fatal["a"], "ended with exit code 3");
        // Opening the devices is not tried again, and a part that did everything has no rest.
        events.doing = vec![OPENING.into()];
        assert_eq!(third.after(&events, &crashed), None);
        assert_eq!(third.after(&events, &Ending::Finished), None);
    }

    #[test]
    fn variables_that_change_a_training_do_not_reach_a_part() {
        assert!(is_removed("FULMEN_STRATEGY") && is_removed("FULMEN_COORDINATOR"));
        assert!(!is_removed("FULMEN_PJRT_PLUGIN") && !is_removed("TPU_LIBRARY_PATH"));
    }
}
