//! `fulmen checkpoint`: shows, verifies, merges and compares checkpoints.
//!
//! Out of scope: reading checkpoints (`fulmen_checkpoint`).

use std::path::{Path, PathBuf};

use clap::Subcommand;
use fulmen_checkpoint::{
    Checkpoint, ListedCheckpoint, MANIFEST, MergeOptions, diff, list, merge, open_store, verify,
};
use fulmen_data::{Error, Result};
use fulmen_durable::messages::{quantity, size};

use crate::size::parse_size;

/// Shows, verifies, merges and compares checkpoints
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows the run and the tensors of a checkpoint, or the checkpoints of a folder. Folders may
    /// be gs:// and s3:// addresses
    Show {
        /// The folder of a checkpoint, or a folder of checkpoints
        path: PathBuf,
    },
    /// Verifies the checksums of every byte of a checkpoint
    Verify {
        /// The folder of the checkpoint
        path: PathBuf,
    },
    /// Writes the tensors of a checkpoint as safetensors files
    Merge {
        /// The folder of the checkpoint
        path: PathBuf,
        /// The new folder for model.safetensors
        output: PathBuf,
        /// Leave out the state of optimizers and of the Trainer
        #[arg(long)]
        weights_only: bool,
        /// Write several files of at most this size, such as 5GB, and their index
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        max_shard_size: Option<u64>,
    },
    /// Lists the differences between two checkpoints, and fails if there are any
    Diff {
        /// The folder of the first checkpoint
        first: PathBuf,
        /// The folder of the second checkpoint
        second: PathBuf,
    },
}

pub(crate) fn run(command: Command) -> Result<()> {
    match command {
        Command::Show { path } => show(&path),
        Command::Verify { path } => {
            let damaged = verify(&open(&path)?);
            damaged.iter().for_each(|error| outln!("{error}"));
            if !damaged.is_empty() {
                return Err(Error::file(
                    &path,
                    format!("{}; use another checkpoint", quantity(damaged.len(), "damaged part")),
                ));
            }
            outln!("{}: every byte is intact", path.display());
            Ok(())
        }
        Command::Merge { path, output, weights_only, max_shard_size } => {
            let options = MergeOptions { weights_only, max_shard_bytes: max_shard_size };
            let files = merge(&open(&path)?, &*open_store(&output).map_err(failed)?, "", &options)
                .map_err(failed)?;
            files.iter().for_each(|file| outln!("{}", output.join(file).display()));
            Ok(())
        }
        Command::Diff { first, second } => {
            let differences = diff(&open(&first)?, &open(&second)?).map_err(failed)?;
            differences.iter().for_each(|difference| outln!("{difference}"));
            match differences.len() {
                0 => {
                    outln!("no differences");
                    Ok(())
                }
                count => Err(Error::new(format!(
                    "the checkpoints have {}",
                    quantity(count, "difference")
                ))),
            }
        }
    }
}

fn failed(error: fulmen_checkpoint::Error) -> Error {
    if error.is_usage() { Error::usage(error.to_string()) } else { Error::new(error) }
}

/// The checkpoint in a folder.
fn open(path: &Path) -> Result<Checkpoint> {
    Checkpoint::open_folder(path).map_err(failed)
}

fn show(path: &Path) -> Result<()> {
    let store = open_store(path).map_err(failed)?;
    let is_one =
        store.list("").is_ok_and(|entries| entries.iter().any(|entry| entry.name == MANIFEST));
    let listed = if is_one { Vec::new() } else { list(&store).map_err(failed)? };
    for ListedCheckpoint { name, checkpoint } in &listed {
        match checkpoint {
            Ok(checkpoint) => outln!("{name}: {}", summary(checkpoint)),
            Err(error) => outln!("{name}: does not count: {error}"),
        }
    }
    if !listed.is_empty() {
        return Ok(());
    }
    let checkpoint = open(path)?;
    let run = &checkpoint.manifest().run;
    outln!("{}", summary(&checkpoint));
    let mesh: Vec<String> =
        run.mesh.iter().map(|(axis, devices)| format!("{axis}={devices}")).collect();
    let versions: Vec<String> =
        run.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    for (what, text) in [("mesh", mesh.join(", ")), ("versions", versions.join(", "))] {
        if !text.is_empty() {
            outln!("{what}: {text}");
        }
    }
    for (what, values) in [("options", &run.options), ("hyperparameters", &run.hyperparameters)] {
        values.iter().for_each(|(name, value)| outln!("{what}.{name}: {value}"));
    }
    for (name, tensor) in &checkpoint.manifest().tensors {
        let parts = if tensor.parts.len() == 1 {
            String::new()
        } else {
            format!(", {} parts", tensor.parts.len())
        };
        outln!("{name}: {} {:?}{parts}", tensor.dtype, tensor.shape);
    }
    Ok(())
}

fn summary(checkpoint: &Checkpoint) -> String {
    let manifest = checkpoint.manifest();
    let score = manifest.run.score.map(|score| format!(", score {score}")).unwrap_or_default();
    format!(
        "step {}, epoch {}{score}, {}, {}, {}",
        manifest.run.step,
        manifest.run.epoch,
        quantity(manifest.tensors.len(), "tensor"),
        size(manifest.bytes()),
        quantity(manifest.shards.len(), "shard")
    )
}
