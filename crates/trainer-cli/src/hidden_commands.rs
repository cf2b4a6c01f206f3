//! The hidden subcommands `completions` and `man`: shell completions and manual pages for a
//! program.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};
use clap_complete::Shell;

use crate::failure::Failure;
use crate::{CliApp, command};

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: HiddenCommand,
}

#[derive(Subcommand)]
enum HiddenCommand {
    /// Print a shell's completions of this program
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Write a manual page for the program and for each subcommand
    Man {
        /// The folder of the pages
        #[arg(long, value_name = "FOLDER")]
        output: PathBuf,
    },
}

/// Runs a hidden subcommand.
pub(crate) fn run_hidden_command<A: CliApp>(args: &[OsString]) -> Result<(), Failure> {
    let name = args
        .first()
        .map(Path::new)
        .and_then(Path::file_name)
        .and_then(|name| name.to_str())
        .unwrap_or("program");
    let mut command = command::command::<A>(name)?;
    match Arguments::try_parse_from(args).map_err(Failure::Usage)?.command {
        HiddenCommand::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut command, name, &mut text);
            crate::output::print_line(String::from_utf8_lossy(&text).trim_end())?;
        }
        HiddenCommand::Man { output } => {
            let written = std::fs::create_dir_all(&output)
                .and_then(|()| clap_mangen::generate_to(command, &output));
            written
                .map_err(|e| format!("cannot write manual pages into {}: {e}", output.display()))?;
        }
    }
    Ok(())
}
