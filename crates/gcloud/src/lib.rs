//! Manages TPU VMs on Google Cloud through the program `gcloud`: creates them with a limit on hours
//! or cost, lists them with prices, and deletes them reliably. Implements the command `fulmen tpu`.
//!
//! Every gcloud command is printed before it runs. When a command ends, it names each machine that
//! is left over. It also names machines that may be left over because gcloud could not be queried.
//!
//! ```no_run
//! use clap::Parser;
//!
//! #[derive(Parser)]
//! enum Cli {
//!     #[command(flatten)]
//!     Tpu(fulmen_gcloud::Command),
//! }
//!
//! let Cli::Tpu(command) = Cli::parse_from(["tpu", "list", "--all-zones"]);
//! let (_send, signals) = std::sync::mpsc::channel();
//! let code = fulmen_gcloud::run(&command, &mut std::io::stdout(), &mut std::io::stderr(), &signals)?;
//! # Ok::<(), fulmen_gcloud::Error>(())
//! ```
//!
//! Out of scope: running programs on the machines (`fulmen-pods`).

mod arguments;
mod command_runner;
mod cost;
mod cpu_machine;
mod create;
mod disk;
mod gcloud_commands;
mod limit;
mod list;
mod manage;
mod resource;
mod target;
#[cfg(test)]
mod tests;

pub use arguments::{
    AttachDisk, Command, CpuMachineArgs, CpuMachineCommand, CpuMachineSsh, Create,
    CreateCpuMachine, CreateDisk, Delete, DiskArgs, DiskCommand, Extend, List, Machine, Output,
    Quota, RunOnCpuMachine, Ssh, TpuArgs, Wait, ZoneArgs,
};
pub use create::{Lease, commands, lease};
#[doc(inline)]
pub use fulmen_error::{Error, Result};

use std::io::Write;
use std::sync::mpsc::{Receiver, channel};

use chrono::Utc;
use fulmen_signals::Signal;

use command_runner::{Gcloud, PollPolicy, Tool, shell_line};

/// Runs the command and returns the exit code. Results go to `out`; commands and progress go to
/// `log`. A signal ends waits.
///
/// # Errors
/// The arguments are inconsistent, or gcloud fails. The message names leftovers.
pub fn run(
    command: &Command,
    out: &mut dyn Write,
    log: &mut dyn Write,
    signals: &Receiver<Signal>,
) -> Result<u8> {
    let gcloud = Gcloud::default();
    run_with(command, Tool::new(&gcloud, out, log, signals, PollPolicy::default()))
}

fn run_with(command: &Command, mut tool: Tool<'_>) -> Result<u8> {
    match command {
        Command::Create(arguments) if arguments.output.dry_run => {
            let lines = commands(&arguments.machine)?;
            if arguments.output.json {
                tool.print(&serde_json::json!({ "commands": lines }).to_string());
            } else {
                lines.iter().for_each(|line| tool.print(line));
            }
            Ok(0)
        }
        Command::Create(arguments) => create::create(arguments, tool),
        Command::List(arguments) => list::list(arguments, &mut tool, Utc::now()),
        Command::Describe(arguments) => list::describe(arguments, &mut tool, Utc::now()),
        Command::Ssh(arguments) => manage::ssh(arguments, &mut tool),
        Command::Wait(arguments) => manage::wait(arguments, &mut tool),
        Command::Extend(arguments) => manage::extend(arguments, &mut tool),
        Command::Delete(arguments) => manage::delete(arguments, &mut tool),
        Command::Quota(arguments) => list::quota(arguments, &mut tool),
        Command::Disk(command) => disk::run(command, &mut tool, Utc::now()),
        Command::CpuMachine(command) => cpu_machine::run(command, &mut tool),
    }
}

/// The hosts of a TPU VM in the order of its workers: their external addresses, or internal ones if
/// there are no others. Zone and project default to those of gcloud's configuration.
///
/// # Errors
/// The name could be mistaken for an option, gcloud fails, or the TPU is not ready.
pub fn hosts(name: &str, zone: Option<&str>, project: Option<&str>) -> Result<Vec<String>> {
    arguments::name(name).map_err(|reason| Error::usage(format!("--tpu: {reason}")))?;
    let (_send, signals) = channel();
    let gcloud = Gcloud::default();
    let mut out = std::io::sink();
    let mut log = std::io::sink();
    let mut tool = Tool::new(&gcloud, &mut out, &mut log, &signals, PollPolicy::default());
    let text = tool
        .ask(&gcloud_commands::describe(name, zone, project))
        .map_err(|error| Error::new(format!("gcloud cannot describe the TPU {name}: {error}")))?;
    let node: resource::Node = resource::parse(&text)?;
    node.hosts().map_err(|why| Error::new(format!("the TPU {name} {why}")))
}

/// The command that finds the hosts of a TPU VM.
///
/// ```
/// let command = fulmen_gcloud::hosts_command("train", Some("us-west4-a"), None);
/// assert_eq!(command, "gcloud compute tpus tpu-vm describe train --zone=us-west4-a --format=json");
/// ```
pub fn hosts_command(name: &str, zone: Option<&str>, project: Option<&str>) -> String {
    shell_line(&gcloud_commands::describe(name, zone, project))
}
