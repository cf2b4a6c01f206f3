//! `fulmen tpu`: manages TPU VMs, which may exist only for the duration of one run.
//!
//! Out of scope: machines (`fulmen-gcloud`) and programs on them (`fulmen-pods`), which this file
//! combines.

use std::io::{stderr, stdout};
use std::path::Path;

use clap::{Args, Subcommand};
use fulmen_data::{Error, Result};
use fulmen_durable::messages::quote;
use fulmen_gcloud::{Lease, Machine, Output};
use fulmen_pods::RunOptions;

use super::pod::PROVIDERS;

/// Creates, lists, uses and deletes TPU VMs through gcloud
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Machine(fulmen_gcloud::Command),
    /// Creates a TPU VM, runs a program on all its hosts, and deletes it
    Run(Box<Run>),
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    machine: Machine,
    #[command(flatten)]
    options: RunOptions,
    /// Delete the TPU VM at the end in any case: success, failure, Ctrl-C, a lost connection
    #[arg(long, conflicts_with = "detach")]
    delete_after: bool,
    #[command(flatten)]
    output: Output,
}

fn failed(error: &fulmen_gcloud::Error) -> Error {
    if error.is_usage() { Error::usage(error.to_string()) } else { Error::new(error.to_string()) }
}

pub(crate) fn run(command: Command) -> Result<u8> {
    let signals = || fulmen_pods::signals().map_err(Error::new);
    match command {
        Command::Machine(command) => {
            fulmen_gcloud::run(&command, &mut stdout(), &mut stderr(), &signals()?)
                .map_err(|error| failed(&error))
        }
        Command::Run(run) if run.output.dry_run => dry_run(&run),
        Command::Run(run) => {
            if let Some(program) =
                run.options.program().first().filter(|program| !Path::new(program).is_file())
            {
                return Err(Error::usage(format!(
                    "{program}: not a file of this machine; nothing was created"
                )));
            }
            let Run { machine, options, delete_after, output } = *run;
            let hosts_file = known_hosts()?;
            // The machine is new and has new keys, but its addresses may have belonged to other
            // machines.
            let ssh = [
                "StrictHostKeyChecking=accept-new".into(),
                format!("UserKnownHostsFile={}", hosts_file.path().display()),
            ];
            let mut pod = Some(options);
            let mut work = |out: &mut dyn std::io::Write| {
                let options = pod.take().ok_or("the machine was created twice")?;
                let zone = &machine.zone_args.zone;
                let project = machine.zone_args.project.as_deref();
                let pod = fulmen_pods::Arguments::run_on_tpu(
                    &machine.name,
                    zone,
                    project,
                    ssh.to_vec(),
                    options,
                );
                fulmen_pods::run(pod, PROVIDERS, out, fulmen_pods::signals)
                    .map_err(|error| error.to_string())
            };
            let lease = Lease { machine: &machine, delete_after, json: output.json };
            let result =
                fulmen_gcloud::lease(lease, &mut stdout(), &mut stderr(), &signals()?, &mut work);
            result.map_err(|error| failed(&error))
        }
    }
}

fn known_hosts() -> Result<tempfile::NamedTempFile> {
    tempfile::NamedTempFile::new()
        .map_err(|e| Error::new(format!("a temporary file for the keys of hosts: {e}")))
}

fn dry_run(run: &Run) -> Result<u8> {
    let mut lines = fulmen_gcloud::commands(&run.machine).map_err(|error| failed(&error))?;
    let name = &run.machine.name;
    let zone_args = &run.machine.zone_args;
    lines.push(fulmen_gcloud::hosts_command(
        name,
        Some(&zone_args.zone),
        zone_args.project.as_deref(),
    ));
    let program: Vec<String> = run.options.program().iter().map(|word| quote(word)).collect();
    lines.push(format!(
        "fulmen pod run --tpu {name} --zone {} --libtpu {} -- {}",
        zone_args.zone,
        quote(&run.options.libtpu_on_tpu()),
        program.join(" ")
    ));
    if run.delete_after {
        lines.push(format!("fulmen tpu delete {name} --zone {}", zone_args.zone));
    }
    if run.output.json {
        outln!("{}", serde_json::json!({ "commands": lines }));
    } else {
        lines.iter().for_each(|line| outln!("{line}"));
    }
    Ok(0)
}
