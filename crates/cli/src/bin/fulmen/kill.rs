//! `fulmen kill`: ends the processes that hold the TPU.

use std::io::{IsTerminal, Write, stdin, stdout};
use std::time::Duration;

use clap::Args;
use fulmen_data::{Error, Result};
use fulmen_machine::{Outcome, Plan, Report, Tpu};
use serde_json::{Value, json};

use super::ps::{footer, headline, held_files, lock_json, process_json, seconds};

/// Ends the processes that hold the TPU, and removes their lock file
#[derive(Debug, Args)]
#[command(
    long_about = "Ends the processes that hold the TPU: SIGTERM, and SIGKILL for those that do not end in time. Then \
                  it removes libtpu's lock file if no process uses it, and checks whether the TPU is free. It first \
                  shows what it will do, and asks for confirmation. Without --force it spares the processes of other \
                  users and the one that it runs in. The exit code is 1 if the TPU is not free, or if a process that \
                  was to end still runs"
)]
pub(crate) struct Arguments {
    /// The ids of the processes; by default all that hold the TPU
    pids: Vec<u32>,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    /// Also end the processes of other users, and the one that this command runs in
    #[arg(long)]
    force: bool,
    /// How long a process may take to save and end before it is killed
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    grace: Duration,
    /// Show what would be done, without doing it
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Arguments { pids, yes, force, grace, dry_run, json } = arguments;
    let tpu = Tpu::local();
    let holders = tpu.holders();
    let plan = Plan::new(holders.clone(), pids, *force);
    if let Some(pid) = plan.unknown_pids.first() {
        let note = "`fulmen ps` shows those that do; root sees the processes of all users";
        return Err(Error::usage(format!("process {pid} does not hold the TPU; {note}")));
    }
    if !json {
        show(&plan);
        if holders.processes.is_empty() && holders.lock.is_none() {
            footer(&holders);
            return Ok(());
        }
    }
    if *dry_run {
        if *json {
            outln!("{}", plan_json(&plan));
        }
        return Ok(());
    }
    if !plan.is_empty() && !yes && !confirm(*json)? {
        outln!("Nothing was done.");
        return Ok(());
    }
    let report = plan.execute(&tpu, *grace);
    if *json {
        outln!("{}", report_json(&plan, &report));
    } else {
        print_report(&report);
    }
    let has_ended =
        |outcome: &Outcome| matches!(outcome, Outcome::Ended | Outcome::Killed | Outcome::Gone);
    let all_ended =
        report.outcomes.iter().all(|(_, outcome)| has_ended(outcome)) && plan.spared.is_empty();
    if all_ended && (report.is_free() || !pids.is_empty()) {
        Ok(())
    } else {
        Err(Error::new("the TPU is not free"))
    }
}

fn show(plan: &Plan) {
    for process in &plan.processes {
        outln!("{}", headline(process));
        outln!("  holds {}; will be ended", held_files(process));
    }
    for (process, why) in &plan.spared {
        outln!("{}", headline(process));
        outln!("  holds {}; stays: {why}", held_files(process));
    }
    match &plan.lock {
        Some(Ok(lock)) => {
            outln!(
                "The lock file {} will be removed if no process uses it then.",
                lock.path.display()
            );
        }
        Some(Err(why)) => outln!("The lock file stays: {why}"),
        None => {}
    }
}

fn confirm(json: bool) -> Result<bool> {
    if json || !stdin().is_terminal() {
        return Err(Error::usage(
            "cannot ask for confirmation without a terminal; use --yes to skip it",
        ));
    }
    let mut out = stdout();
    let _ = write!(out, "Go on? [y/N] ").and_then(|()| out.flush());
    let mut answer = String::new();
    stdin()
        .read_line(&mut answer)
        .map_err(|error| Error::new(format!("cannot read the answer: {error}")))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn describe(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Ended => "ended".to_owned(),
        Outcome::Killed => "did not end in time, and was killed".to_owned(),
        Outcome::Gone => "does not hold the TPU any more; nothing was sent".to_owned(),
        Outcome::Stuck => {
            "was killed, but waits in the kernel; if it stays, restart the machine".to_owned()
        }
        Outcome::Refused(why) => format!("is still there: {why}"),
    }
}

fn print_report(report: &Report) {
    for (process, outcome) in &report.outcomes {
        outln!("process {} {}", process.pid, describe(outcome));
    }
    match &report.lock {
        Some((lock, Ok(()))) => outln!("{} was removed", lock.path.display()),
        Some((_, Err(why))) => outln!("{why}"),
        None => {}
    }
    if report.is_free() && report.holders.unseen == 0 {
        outln!("The TPU is free.");
    } else {
        footer(&report.holders);
    }
}

fn plan_json(plan: &Plan) -> Value {
    let spared = plan.spared.iter().map(|(process, why)| {
        let mut process = process_json(process);
        process["why"] = json!(why);
        process
    });
    json!({
        "ended": plan.processes.iter().map(process_json).collect::<Vec<_>>(),
        "spared": spared.collect::<Vec<_>>(),
        "lock": plan.removable().map(lock_json),
    })
}

fn report_json(plan: &Plan, report: &Report) -> Value {
    let ended = report.outcomes.iter().map(|(process, outcome)| {
        let mut process = process_json(process);
        process["outcome"] = json!(describe(outcome));
        process
    });
    let mut object = plan_json(plan);
    object["ended"] = ended.collect();
    object["lock"] = report
        .lock
        .as_ref()
        .map(|(lock, removed)| json!({ "path": lock.path, "removed": removed.is_ok() }))
        .into();
    object["free"] = report.is_free().into();
    object["unseen"] = report.holders.unseen.into();
    object
}
