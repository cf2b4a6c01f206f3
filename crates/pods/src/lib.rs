//! Runs one program on many hosts: copies it over ssh, starts, watches, restarts and ends it.
//! Implements the command `fulmen pod`.
//!
//! All connections use the user's own `ssh`. The bash scripts in `src/scripts` run on a host: a
//! supervisor starts the program and keeps its output and exit code in
//! `~/.fulmen/pods/runs/RUN/WORKER`, so that both outlive a connection. A connection can follow the
//! output from any byte.
//!
//! ```no_run
//! use clap::Parser;
//!
//! #[derive(Parser)]
//! struct Cli {
//!     #[command(flatten)]
//!     pod: fulmen_pods::Arguments,
//! }
//!
//! // Only ssh is needed for these hosts.
//! let providers = fulmen_pods::Providers {
//!     tpu_hosts: |tpu| Err(fulmen_pods::Error::new(format!("{}: unknown", tpu.name))),
//!     tpu_hosts_command: |_| String::new(),
//!     libtpu: || Err(fulmen_pods::Error::new("not found")),
//!     virtual_pod: |_| Err(fulmen_pods::Error::new("not found")),
//! };
//! let cli = Cli::parse_from(["pod", "run", "--hosts", "a,b", "--", "./train", "fit"]);
//! let code = fulmen_pods::run(cli.pod, providers, &mut std::io::stdout(), fulmen_pods::signals)?;
//! # Ok::<(), fulmen_pods::Error>(())
//! ```
//!
//! Some clusters start programs themselves. For these, `pod manifest` prints a manifest
//! (`src/manifests`).
//!
//! Out of scope: creating machines, and communication between the processes of a run.

mod arguments;
mod binary;
mod exec;
mod group;
mod libtpu;
mod libtpu_wheel;
mod lines;
mod manage;
mod manifest;
mod monitor;
mod outcome;
mod output;
mod parallel;
mod plan;
mod providers;
mod run;
mod session;
mod ssh;
mod targets;
#[cfg(test)]
mod tests;
mod virtual_pod;

pub use arguments::{Arguments, RunOptions};
pub use binary::{Glibc, required_glibc};
#[doc(inline)]
pub use fulmen_error::{Error, Result};
pub use providers::{Providers, TpuVm, VirtualPodPlugins};
pub use run::signals;

use std::io::Write;
use std::sync::mpsc::Receiver;

use fulmen_signals::Signal;

/// Runs the command, with what the caller provides, and returns the exit code of the first worker
/// that failed, or 75 if a worker was lost or stuck. The output of the workers goes to `out`. If
/// `out` blocks, the run continues. The first signal is forwarded to all workers; a second Ctrl-C
/// ends them at once. Only commands that must react to signals request them.
///
/// # Errors
/// The arguments are inconsistent, or the run cannot start. Messages name the host.
pub fn run(
    arguments: Arguments,
    providers: Providers,
    out: &mut dyn Write,
    signals: impl FnOnce() -> Result<Receiver<Signal>>,
) -> Result<u8> {
    use arguments::Command;
    match arguments.command {
        Command::Run(arguments) => run::run(&arguments, providers, out, signals()?),
        Command::Status(arguments) => manage::status(&arguments, &providers, out),
        Command::Logs(arguments) => manage::logs(&arguments, &providers, out, signals),
        Command::Stop(arguments) => manage::stop(&arguments, &providers, out),
        Command::Exec(arguments) => exec::exec(&arguments, &providers, out, signals),
        Command::Manifest(arguments) => manifest::print(&arguments, out),
    }
}
