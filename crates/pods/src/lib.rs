//! One program on many hosts: copied over ssh, started, watched, restarted and ended together. The command `fulmen pod`.
//!
//! All connections are the user's own `ssh`. What runs on a host are the bash scripts in `src/scripts`: a supervisor
//! starts the program and keeps its output and exit code in `~/.fulmen/pods/runs/RUN/WORKER`, so that both outlive a
//! connection. A connection follows them from any byte on.
//!
//! ```no_run
//! use clap::Parser;
//!
//! #[derive(Parser)]
//! struct Program {
//!     #[command(flatten)]
//!     pod: fulmen_pods::Arguments,
//! }
//!
//! let program = Program::parse_from(["pod", "run", "--hosts", "a,b", "--", "./train", "fit"]);
//! let code = fulmen_pods::run(program.pod, &mut std::io::stdout(), fulmen_pods::signals)?;
//! # Ok::<(), fulmen_pods::Error>(())
//! ```
//!
//! For clusters that start programs themselves, `pod manifest` prints what they take (`src/manifests`).
//!
//! Not here: creating machines, and what the processes of a run tell each other.

mod arguments;
mod error;
mod manage;
mod manifest;
mod outcome;
mod plan;
mod program;
mod run;
mod session;
mod ssh;
mod targets;
#[cfg(test)]
mod tests;

pub use arguments::{Arguments, RunOptions};
pub use error::{Error, Result};
pub use program::{Glibc, glibc_of};
pub use run::signals;

use std::io::Write;
use std::sync::mpsc::Receiver;

use fulmen_signals::Signal;

/// Does what the arguments say, and returns the exit code: that of the worker that failed first, or 75 if a worker was
/// lost or stuck. What the workers print goes to `out`. A first signal is forwarded to all workers, a second Ctrl-C ends
/// them at once. Only what has to react to signals asks for them.
///
/// # Errors
/// Arguments that do not fit together, and whatever keeps a run from starting. Hosts are named.
pub fn run(
    arguments: Arguments,
    out: &mut dyn Write,
    signals: impl FnOnce() -> Result<Receiver<Signal>>,
) -> Result<u8> {
    use arguments::Command;
    match arguments.command {
        Command::Run(arguments) => run::run(&arguments, out, &signals()?),
        Command::Status(arguments) => manage::status(&arguments, out),
        Command::Logs(arguments) => manage::logs(&arguments, out, signals),
        Command::Stop(arguments) => manage::stop(&arguments, out),
        Command::Exec(arguments) => manage::exec(&arguments, out),
        Command::Manifest(arguments) => manifest::print(&arguments, out),
    }
}
