//! Archives in the official layout, made into shards by the library and by the program.

mod archives;
mod coco;
mod coco_archives;
mod imagenet;
mod resume;
#[cfg(all(feature = "parquet", feature = "text"))]
mod text;

use std::path::Path;
use std::process::Command;

use fulmen_data::prepare::PrepareOptions;

fn options(output: &Path) -> PrepareOptions {
    PrepareOptions::new(output).max_samples(7).threads(2)
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_fulmen"))
}
