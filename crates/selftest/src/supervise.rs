//! Runs a part in a process of its own, and reports how the process ended.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_error::{Error, Result};

use crate::event::{Events, Job};
use crate::report::{Ending, PartReport};
use crate::{Options, parts};

/// How often the end of a process is looked for.
const INTERVAL: Duration = Duration::from_millis(20);

/// How many of the last lines of a process that died are kept.
const LAST_LINES: usize = 30;

/// The beginnings of variables that say where plugins are, and what a virtual pod does. All other
/// variables of Fulmen, which change how a model trains, are not for the parts.
const KEPT_VARIABLES: [&str; 3] = ["FULMEN_PJRT_PLUGIN", "FULMEN_VIRTUAL_POD", "FULMEN_TEST_"];

fn is_removed(variable: &str) -> bool {
    let kept = KEPT_VARIABLES.iter().any(|start| variable.starts_with(start));
    variable.starts_with("FULMEN_") && !kept
}

/// Runs a part with the program `program ARGUMENTS… JOB`.
pub(crate) fn run(
    part: &parts::Part,
    options: &Options,
    program: &[std::ffi::OsString],
    folder: &Path,
) -> Result<PartReport> {
    let own = folder.join(part.name);
    let failed = |e: std::io::Error| Error::runtime(format!("starting the part {}", part.name), e);
    fs::create_dir_all(&own).map_err(failed)?;
    let events = folder.join(format!("{}.events", part.name));
    let output = folder.join(format!("{}.output", part.name));
    let job = Job {
        part: part.name.to_owned(),
        options: options.clone(),
        events: events.clone(),
        folder: own,
    };
    let job = serde_json::to_string(&job).map_err(|e| Error::runtime("writing a job", e))?;
    let file = File::create(&output).map_err(failed)?;
    let (first, rest) =
        program.split_first().ok_or_else(|| Error::usage("the program has no name"))?;
    let start = Instant::now();
    let mut command = Command::new(first);
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_removed(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    let mut child = command
        .args(rest)
        .arg(job)
        .stdin(Stdio::null())
        .stdout(file.try_clone().map_err(failed)?)
        .stderr(file)
        .spawn()
        .map_err(failed)?;
    let status = wait(&mut child, part.limit(options)).map_err(failed)?;
    let seconds = start.elapsed().as_secs_f64();
    let text = fs::read(&events).unwrap_or_default();
    let printed = fs::read(&output).unwrap_or_default();
    let events = Events::read(&String::from_utf8_lossy(&text));
    let ending = ending(status, &events, part.limit(options));
    Ok(PartReport::new(part.name, seconds, events, ending, &String::from_utf8_lossy(&printed)))
}

/// Waits for the process. `None` if it was still running at the limit, and was killed.
fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() >= limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(INTERVAL);
    }
}

fn ending(status: Option<ExitStatus>, events: &Events, limit: Duration) -> Ending {
    match status {
        None => Ending::TimedOut { limit_seconds: limit.as_secs() },
        Some(status) => match (status.signal(), status.code()) {
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
pub(crate) fn last_lines(printed: &str) -> Vec<String> {
    let lines: Vec<&str> = printed.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].iter().map(|line| (*line).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a shell script as a part. Its argument is the job.
    fn part(script: &str, limit: u64) -> PartReport {
        let folder = tempfile::tempdir().unwrap();
        let part = parts::Part::for_test(limit);
        let script = ["sh", "-c", script, "sh"].map(Into::into);
        run(&part, &Options::default(), &script, folder.path()).unwrap()
    }

    #[test]
    fn a_part_that_crashes_is_reported_with_its_signal_and_last_lines() {
        let crashed = part("echo the plugin said this >&2; kill -SEGV $$", 100);
        assert!(!crashed.passed && crashed.last_output == ["the plugin said this"], "{crashed:?}");
        let end = crashed.end().unwrap();
        assert!(end.contains("crashed with signal 11 (SIGSEGV)"), "{end}");
        let ended = part("exit 0", 100).end().unwrap();
        assert!(ended.contains("exit code 0") && ended.contains("starting"), "{ended}");
    }

    #[test]
    fn a_part_that_hangs_is_ended_at_its_limit() {
        let end = part("exec sleep 1000", 0).end().unwrap();
        assert!(end.contains("still working after 0 seconds"), "{end}");
    }

    #[test]
    fn variables_that_change_a_training_do_not_reach_a_part() {
        assert!(is_removed("FULMEN_STRATEGY") && is_removed("FULMEN_COORDINATOR"));
        assert!(!is_removed("FULMEN_PJRT_PLUGIN") && !is_removed("TPU_LIBRARY_PATH"));
    }
}
