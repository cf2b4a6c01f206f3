//! `fulmen cache compile`: the compiled programs of this machine.

use std::path::PathBuf;
use std::time::SystemTime;

use clap::{Args, Subcommand};
use fulmen_data::{Error, Result};
use fulmen_durable::messages::{duration, quantity, size};
use fulmen_pjrt::compile_cache::{CacheEntry, CompileCache};

/// Shows, verifies and clears the compiled programs on disk
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// The folder of the programs [default: that of FULMEN_COMPILE_CACHE, or fulmen/compile in the
    /// user's cache folder]
    #[arg(long, value_name = "FOLDER", global = true)]
    folder: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists the programs, the most recently used first
    List,
    /// Removes all programs; each is compiled again when it is needed
    Clear,
    /// Verifies the checksums of the programs
    Verify,
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let failed = |error: fulmen_pjrt::Error| {
        if error.is_usage() {
            Error::usage(error.to_string())
        } else {
            Error::new(error.to_string())
        }
    };
    let cache = match arguments.folder {
        Some(folder) => CompileCache::new(folder, u64::MAX),
        None => CompileCache::from_env().map_err(failed)?.ok_or_else(|| {
            Error::usage("FULMEN_COMPILE_CACHE is `off`; --folder names a folder of programs")
        })?,
    };
    let folder = cache.folder().display();
    match arguments.command {
        Command::List => {
            let entries = cache.entries().map_err(failed)?;
            entries.iter().for_each(show);
            let bytes: u64 = entries.iter().map(|entry| entry.bytes).sum();
            let programs = quantity(entries.len(), "program");
            outln!("{programs}, {}, in {folder}", size(bytes));
        }
        Command::Clear => {
            outln!("freed {}", size(cache.clear().map_err(failed)?));
        }
        Command::Verify => {
            let damaged = cache.verify().map_err(failed)?;
            damaged.iter().for_each(|error| outln!("{error}"));
            if !damaged.is_empty() {
                return Err(Error::new(format!(
                    "{} in {folder}: each is compiled again when it is needed",
                    quantity(damaged.len(), "damaged program")
                )));
            }
            outln!("all programs in {folder} are intact");
        }
    }
    Ok(())
}

fn show(entry: &CacheEntry) {
    let used = SystemTime::now().duration_since(entry.used).unwrap_or_default();
    outln!(
        "{}  {}, compiled in {}, used {} ago",
        entry.program.as_deref().unwrap_or("(damaged)"),
        size(entry.bytes),
        duration(entry.compile_time.as_secs_f64()),
        duration(used.as_secs_f64())
    );
}
