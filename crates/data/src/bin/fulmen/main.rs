//! The `fulmen` program: what is done with data before a training, without a device.
//!
//! Not here: what the subcommands do, each in its own file, and how; that is the library's.

/// A line for the user. Where nobody reads it any more (`| head`), the work still goes on.
macro_rules! say {
    ($($arguments:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stdout(), format_args!("{}\n", format_args!($($arguments)*)));
    }};
}

mod cache;
mod data;
#[cfg(feature = "images")]
mod limits;
#[cfg(feature = "images")]
mod presize;
mod progress;
mod size;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use fulmen_data::Error;

/// Prepares data for training.
#[derive(Debug, Parser)]
#[command(name = "fulmen", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Cache(cache::Arguments),
    Data(data::Arguments),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Cache(arguments) => cache::run(arguments),
        Command::Data(arguments) => data::run(arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Where nobody reads it any more there is still the status.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            failure(&error)
        }
    }
}

/// 2 for options that do not fit together, as for those that are not understood, and else 1.
fn failure(error: &Error) -> ExitCode {
    ExitCode::from(if error.is_usage() { 2 } else { 1 })
}
