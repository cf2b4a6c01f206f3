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
//! let cli = Cli::parse_from(["pod", "run", "--hosts", "a,b", "--", "./train", "fit"]);
//! let code = fulmen_pods::run(cli.pod, &mut std::io::stdout(), fulmen_pods::signals)?;
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
mod lines;
mod manage;
mod manifest;
mod monitor;
mod outcome;
mod output;
mod plan;
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
pub use run::signals;

use std::io::Write;
use std::sync::mpsc::Receiver;

use fulmen_signals::Signal;

/// Runs the command and returns the exit code of the first worker that failed, or 75 if a worker
/// was lost or stuck. The output of the workers goes to `out`. If `out` blocks, the run continues.
/// The first signal is forwarded to all workers; a second Ctrl-C ends them at once. Only commands
/// that must react to signals request them.
///
/// # Errors
/// The arguments are inconsistent, or the run cannot start. Messages name the host.
pub fn run(
    arguments: Arguments,
    out: &mut dyn Write,
    signals: impl FnOnce() -> Result<Receiver<Signal>>,
) -> Result<u8> {
    use arguments::Command;
    match arguments.command {
        Command::Run(arguments) => run::run(&arguments, out, signals()?),
        Command::Status(arguments) => manage::status(&arguments, out),
        Command::Logs(arguments) => manage::logs(&arguments, out, signals),
        Command::Stop(arguments) => manage::stop(&arguments, out),
        Command::Exec(arguments) => exec::exec(&arguments, out, signals),
        Command::Manifest(arguments) => manifest::print(&arguments, out),
    }
}
