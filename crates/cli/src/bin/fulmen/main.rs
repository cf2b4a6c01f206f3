//! The `fulmen` program: prepares data before a training run, handles machines and hosts during it,
//! and reads checkpoints and reports after it.
//!
//! Out of scope: the subcommands, each in its own file, and their implementation in the libraries.

/// Prints a line for the user. If the output is closed (`| head`), the work continues.
macro_rules! outln {
    ($($arguments:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stdout(), format_args!("{}\n", format_args!($($arguments)*)));
    }};
}

mod build;
mod cache;
mod checkpoint;
mod compile_cache;
mod data;
mod devices;
mod doctor;
mod env;
mod kill;
mod limits;
mod new;
mod plugin;
mod pod;
mod presize;
mod profile;
mod progress;
mod ps;
mod report;
mod runs;
mod selftest;
mod size;
mod top;
mod tpu;
mod underscores;

use std::borrow::Cow;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgMatches, Command as Clap, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use fulmen_data::{Error, shorten};

/// Prepares data for training, creates TPUs, runs a program on many hosts, reads checkpoints, and
/// manages devices.
#[derive(Debug, Parser)]
#[command(name = "fulmen", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Build(build::Arguments),
    #[command(subcommand)]
    Cache(cache::Command),
    #[command(subcommand)]
    Checkpoint(checkpoint::Command),
    /// Prints the shell completions of this command
    Completions {
        /// The shell
        shell: Shell,
    },
    #[command(subcommand)]
    Data(data::Command),
    Devices(devices::Arguments),
    Doctor(doctor::Arguments),
    Env(env::Arguments),
    Kill(kill::Arguments),
    /// Writes a manual page for each subcommand
    Man {
        /// The folder of the pages
        #[arg(long, value_name = "FOLDER")]
        output: PathBuf,
    },
    New(new::Arguments),
    #[command(subcommand)]
    Plugin(plugin::Command),
    Pod(fulmen_pods::Arguments),
    Profile(profile::Arguments),
    Ps(ps::Arguments),
    Report(report::Arguments),
    Runs(runs::Arguments),
    Selftest(selftest::Arguments),
    /// Runs one part of `selftest`
    #[command(hide = true)]
    SelftestPart {
        /// What `selftest` wants
        job: String,
    },
    Top(top::Arguments),
    #[command(subcommand)]
    Tpu(tpu::Command),
}

fn main() -> ExitCode {
    let command = match arguments() {
        Ok(arguments) => arguments.command,
        Err(error) => return refuse(&error),
    };
    let result = match command {
        Command::Build(arguments) => build::run(&arguments),
        Command::Cache(command) => cache::run(command),
        Command::Checkpoint(command) => checkpoint::run(command),
        Command::Completions { shell } => {
            clap_complete::generate(
                shell,
                &mut Arguments::command(),
                "fulmen",
                &mut std::io::stdout(),
            );
            Ok(())
        }
        Command::Data(command) => data::run(command),
        Command::Devices(arguments) => devices::run(&arguments),
        Command::Doctor(arguments) => doctor::run(arguments),
        Command::Env(arguments) => env::run(&arguments),
        Command::Kill(arguments) => kill::run(&arguments),
        Command::Man { output } => manual(&output),
        Command::New(arguments) => new::run(&arguments),
        Command::Plugin(command) => plugin::run(&command),
        Command::Report(arguments) => report::run(&arguments),
        Command::Runs(arguments) => runs::run(arguments),
        Command::Selftest(arguments) => match selftest::run(&arguments) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::SelftestPart { job } => fulmen_selftest::run_part(&job),
        Command::Pod(arguments) => {
            let mut out = std::io::stdout();
            match fulmen_pods::run(arguments, pod::PROVIDERS, &mut out, fulmen_pods::signals) {
                Ok(code) => return ExitCode::from(code),
                Err(error) if error.is_usage() => Err(Error::usage(error.to_string())),
                Err(error) => Err(Error::new(error)),
            }
        }
        Command::Profile(arguments) => profile::run(&arguments),
        Command::Ps(arguments) => ps::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Tpu(command) => match tpu::run(command) {
            Ok(code) => return ExitCode::from(code),
            Err(error) => Err(error),
        },
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is closed, only the exit status reports the failure.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            failure(&error)
        }
    }
}

fn manual(folder: &Path) -> fulmen_data::Result<()> {
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Arguments::command(), folder));
    written.map_err(|e| {
        Error::new(format!("cannot write manual pages into {}: {e}", folder.display()))
    })
}

fn arguments() -> Result<Arguments, clap::Error> {
    let command = with_common_rules(Arguments::command());
    let args = underscores::accept(std::env::args_os().collect(), &command);
    let matches: ArgMatches = command.try_get_matches_from(args)?;
    Arguments::from_arg_matches(&matches)
}

/// Accepts `-1` as the value of an option, so that the error about the value names the option. If an
/// option is given twice, the last one counts.
fn with_common_rules(command: Clap) -> Clap {
    let command = command.args_override_self(true).mut_args(|arg| {
        if arg.get_long().is_some() && arg.get_action().takes_values() {
            arg.allow_negative_numbers(true)
        } else {
            arg
        }
    });
    command.mut_subcommands(with_common_rules)
}

/// Reports invalid arguments, or prints the help.
fn refuse(error: &clap::Error) -> ExitCode {
    match shorten(&error.render().to_string()) {
        Cow::Owned(text) if error.use_stderr() => {
            drop(writeln!(std::io::stderr(), "{}", text.trim_end()))
        }
        // clap prints it in color.
        _ => drop(error.print()),
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// The exit status of an error: 2 for invalid combinations of options, as for other invalid
/// arguments, otherwise 1.
fn failure(error: &Error) -> ExitCode {
    ExitCode::from(if error.is_usage() { 2 } else { 1 })
}
