//! The `fulmen` program: what is done with data before a training, with hosts during it, and with checkpoints after it,
//! without a device.
//!
//! Not here: what the subcommands do, each in its own file, and how; that is the library's.

/// A line for the user. Where nobody reads it any more (`| head`), the work still goes on.
macro_rules! say {
    ($($arguments:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stdout(), format_args!("{}\n", format_args!($($arguments)*)));
    }};
}

mod cache;
mod checkpoint;
mod compile_cache;
mod data;
mod limits;
mod presize;
mod progress;
mod size;

use std::borrow::Cow;
use std::io::Write;
use std::process::ExitCode;

use clap::{ArgMatches, Command as Clap, CommandFactory, FromArgMatches, Parser, Subcommand};
use fulmen_data::{Error, shorten};

/// Prepares data for training, runs a program on many hosts, and reads checkpoints.
#[derive(Debug, Parser)]
#[command(name = "fulmen", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Cache(cache::Arguments),
    Checkpoint(checkpoint::Arguments),
    Data(data::Arguments),
    Pod(fulmen_pods::Arguments),
}

fn main() -> ExitCode {
    let command = match arguments() {
        Ok(arguments) => arguments.command,
        Err(error) => return refuse(&error),
    };
    let done = match command {
        Command::Cache(arguments) => cache::run(arguments),
        Command::Checkpoint(arguments) => checkpoint::run(arguments),
        Command::Data(arguments) => data::run(arguments),
        Command::Pod(arguments) => match fulmen_pods::run(arguments, &mut std::io::stdout(), fulmen_pods::signals) {
            Ok(code) => return ExitCode::from(code),
            Err(error) if error.is_usage() => Err(Error::usage(error.to_string())),
            Err(error) => Err(Error::new(error)),
        },
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

fn arguments() -> Result<Arguments, clap::Error> {
    let matches: ArgMatches = with_negative_numbers(Arguments::command()).try_get_matches()?;
    Arguments::from_arg_matches(&matches)
}

/// Reads `-1` as a value, so that what is wrong with it is told, with the option's name.
fn with_negative_numbers(command: Clap) -> Clap {
    let command = command.mut_args(|arg| {
        if arg.get_long().is_some() && arg.get_action().takes_values() { arg.allow_negative_numbers(true) } else { arg }
    });
    command.mut_subcommands(with_negative_numbers)
}

/// Arguments that are not understood, or the help that was asked for.
fn refuse(error: &clap::Error) -> ExitCode {
    match shorten(&error.render().to_string()) {
        Cow::Owned(text) if error.use_stderr() => drop(writeln!(std::io::stderr(), "{}", text.trim_end())),
        // In colour.
        _ => drop(error.print()),
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// 2 for options that do not fit together, as for those that are not understood, and else 1.
fn failure(error: &Error) -> ExitCode {
    ExitCode::from(if error.is_usage() { 2 } else { 1 })
}
