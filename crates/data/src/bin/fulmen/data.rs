//! `fulmen data`: preparing datasets, and looking into shards.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use fulmen_data::Result;
use fulmen_data::prepare::shards_info;

/// Looks into shards.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Says what is in tar shards: samples, files by extension, classes.
    Info {
        /// Tar files, or folders of them.
        #[arg(required = true)]
        shards: Vec<PathBuf>,
    },
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    match arguments.command {
        Command::Info { shards } => info(&shards),
    }
}

fn info(paths: &[PathBuf]) -> Result<()> {
    let info = shards_info(paths)?;
    for shard in &info.shards {
        println!("{}: {} samples, {} bytes", shard.path.display(), shard.samples, shard.bytes);
    }
    println!("{} samples in {} shards, {} bytes", info.samples(), info.shards.len(), info.bytes());
    for (extension, (files, bytes)) in &info.extensions {
        println!("  .{extension}: {files} files, {bytes} bytes");
    }
    if let (Some(fewest), Some(most)) = (info.classes.values().min(), info.classes.values().max()) {
        println!("{} classes, with {fewest} to {most} samples each", info.classes.len());
    }
    Ok(())
}
