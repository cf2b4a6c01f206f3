//! `fulmen cache`: making caches of pictures ahead of a training, and taking care of caches of anything.
//!
//! Not here: what a cache is; that is the library's.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use fulmen_data::prepare::Progress;
use fulmen_data::{CacheInfo, Result, cache_info, clear_cache, repair_cache, verify_cache};

use crate::progress::Reporter;

/// Makes, shows, verifies and clears cached datasets
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Says what the caches at a path are of, how large they are, and what is missing
    Info(Place),
    /// Compares the files of the caches at a path with the checksums that were kept when they were written
    Verify {
        #[command(flatten)]
        place: Place,
        /// Remove what is damaged or missing from the caches, so that making them again writes just that
        #[arg(long)]
        repair: bool,
    },
    /// Removes the caches at a path, and nothing else that lies there
    Clear(Place),
}

#[derive(Debug, Args)]
struct Place {
    /// The folder that a cache was made with, or that of one cache in it
    path: PathBuf,
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    match arguments.command {
        Command::Info(Place { path }) => {
            cache_info(path)?.iter().for_each(show);
            Ok(())
        }
        Command::Verify { place: Place { path }, repair: true } => {
            let removed = repair_cache(path)?;
            removed.iter().for_each(|file| println!("removed {}", file.display()));
            match removed.len() {
                0 => println!("all is as it was written"),
                count => println!("{count} parts removed; make the cache again, and it writes just those"),
            }
            Ok(())
        }
        Command::Verify { place: Place { path }, repair: false } => verify(path),
        Command::Clear(Place { path }) => {
            println!("{} bytes are free again", clear_cache(path)?);
            Ok(())
        }
    }
}

fn verify(path: PathBuf) -> Result<()> {
    let reporter = Reporter::new();
    let mut before = None;
    let bytes = verify_cache(path, |read, total| {
        if before.is_none() {
            reporter.begin("verifying", total);
        }
        reporter.advance(read - before.replace(read).unwrap_or(0));
    })?;
    drop(reporter);
    println!("{bytes} bytes are as they were written");
    Ok(())
}

fn show(info: &CacheInfo) {
    println!("{}", info.path.display());
    println!("  {}", info.estimate);
    for field in &info.fields {
        println!("  field {field}");
    }
    println!("  key {}", info.key);
    for line in &info.depends_on {
        println!("    {line}");
    }
    if info.bad_samples > 0 {
        println!("  {} samples could not be read", info.bad_samples);
    }
    match (&info.writer, info.is_complete()) {
        (Some(writer), _) => println!("  being written by {writer}"),
        (None, false) => println!("  not finished; make it again, and it goes on from there"),
        (None, true) => {}
    }
}
