//! `fulmen ps`: shows which processes hold the TPU.

use std::thread::sleep;
use std::time::Duration;

use clap::Args;
use fulmen_data::Result;
use fulmen_machine::{Holders, LockFile, Process, ProcessActivity, Tpu};
use indicatif::HumanDuration;
use serde_json::{Value, json};

/// Shows which processes hold the TPU, who owns them, and whether they make progress
#[derive(Debug, Args)]
#[command(
    long_about = "Shows which processes have the TPU's device files open or a libtpu.so mapped, who owns them, since \
                  when, and whether they make progress: their processor use, and the steps of a Fulmen training that \
                  writes FULMEN_PROGRESS_FILE. Only root can see the processes of all users"
)]
pub(crate) struct Arguments {
    /// How long to observe the processes
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    watch: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut watch = Tpu::local().watch();
    let (mut watched, mut holders) = watch.refresh();
    if !watched.is_empty() {
        sleep(arguments.watch);
        (watched, holders) = watch.refresh();
    }
    if arguments.json {
        let processes: Vec<Value> = watched.iter().map(watched_json).collect();
        let lock = holders.lock.as_ref().map(lock_json);
        outln!("{}", json!({ "processes": processes, "unseen": holders.unseen, "lock": lock }));
        return Ok(());
    }
    for it in &watched {
        outln!("{}", headline(&it.process));
        outln!("  holds {}", held_files(&it.process));
        outln!("  {}", it.progress());
    }
    footer(&holders);
    Ok(())
}

/// Prints remarks that concern all processes.
pub(crate) fn footer(holders: &Holders) {
    if holders.processes.is_empty() {
        outln!("No visible process holds the TPU.");
    }
    if holders.unseen > 0 {
        outln!(
            "Processes that could not be inspected: {}. Root can see those of other users.",
            holders.unseen
        );
    }
    if let Some(lock) = &holders.lock {
        let path = lock.path.display();
        let owner = lock.owner_name.clone().unwrap_or_else(|| lock.owner.to_string());
        match &lock.locked_by[..] {
            [] => outln!("The lock file {path} of {owner} is left over: no process has locked it."),
            pids => {
                let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
                outln!("The lock file {path} of {owner} is locked by process {}.", pids.join(", "));
            }
        }
    }
}

/// A line that identifies the process.
pub(crate) fn headline(process: &Process) -> String {
    let Process { pid, user, age, command, .. } = process;
    format!("process {pid} of {user}, for {}: {command}", HumanDuration(*age))
}

/// A description of the files that the process holds.
pub(crate) fn held_files(process: &Process) -> String {
    let files =
        process.devices.iter().chain(&process.libraries).map(|path| path.display().to_string());
    files.collect::<Vec<_>>().join(", ")
}

pub(crate) fn watched_json(watched: &ProcessActivity) -> Value {
    let mut process = process_json(&watched.process);
    process["load"] = json!(watched.load);
    process["steps_finished"] = json!(watched.steps);
    process["step_seconds"] = json!(watched.step_time.map(|time| time.as_secs_f64()));
    process["progress"] = json!(watched.progress());
    process
}

pub(crate) fn process_json(process: &Process) -> Value {
    json!({
        "pid": process.pid,
        "parent": process.parent,
        "user": process.user,
        "uid": process.uid,
        "command": process.command,
        "age_seconds": process.age.as_secs_f64(),
        "state": process.state,
        "devices": process.devices,
        "libraries": process.libraries,
        "step": process.step.map(|step| step.count),
    })
}

pub(crate) fn lock_json(lock: &LockFile) -> Value {
    json!({ "path": lock.path, "owner": lock.owner, "owner_name": lock.owner_name, "locked_by": lock.locked_by })
}

/// Parses a number of seconds, such as `0.5`.
pub(crate) fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let time = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    // The limit excludes infinity, which `sleep` does not accept.
    time.filter(|time| *time > Duration::ZERO && *time < Duration::from_secs(1 << 32))
        .ok_or_else(|| "expected a number of seconds above 0".into())
}
