//! Archives in the official layout, made into shards by the library and by the program.

mod archives;
mod coco;
mod coco_archives;
mod imagenet;
mod resume;
#[cfg(feature = "cloud")]
#[path = "../common/s3.rs"]
#[allow(dead_code, reason = "other tests ask for more")]
mod s3;
#[cfg(all(feature = "parquet", feature = "text"))]
mod text;
#[cfg(feature = "cloud")]
mod upload;

use std::path::Path;
use std::process::Command;

use fulmen_data::prepare::PrepareOptions;

fn options(output: &Path) -> PrepareOptions {
    PrepareOptions::new(output).max_samples(7).threads(2)
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_fulmen"))
}
