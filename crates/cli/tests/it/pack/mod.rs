//! Archives, folders and texts, packed into shards by the library and by the program.

mod archives;
mod imagenet;
mod labels;
mod resume;
#[path = "../../../../files/tests/it/common/s3.rs"]
#[allow(dead_code, reason = "other tests ask for more")]
mod s3;
mod sources;
mod text;
mod upload;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use crate::pack::archives::contents;

pub(crate) fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_fulmen"))
}

/// Runs a command that writes into a folder, kills it once a file is there, and returns how many files
/// it has written. They are fewer than `all`. On a busy machine, the command may end before it is
/// killed. It is then tried again.
fn kill_in_the_middle(mut command: Command, folder: &Path, file: &str, all: usize) -> usize {
    for _ in 0..20 {
        let mut child = command.spawn().unwrap();
        while !folder.join(file).exists() && child.try_wait().unwrap().is_none() {
            sleep(Duration::from_millis(1));
        }
        // It may have ended.
        let _ = child.kill();
        let ended = child.wait().unwrap();
        let written = contents(folder).len();
        if !ended.success() && written < all {
            return written;
        }
        fs::remove_dir_all(folder).unwrap();
    }
    panic!("it always ends before it is killed");
}

#[test]
fn errors_name_the_option_of_a_negative_number_and_shorten_long_values() {
    let long = "x".repeat(100_000);
    for (arguments, expected) in [
        (["data", "pack", "x", "--seed", "-1"], "invalid value '-1' for '--seed <SEED>'"),
        (["data", "pack", "x", "--threads", "-2"], "invalid value '-2' for '--threads <NUMBER>'"),
        (["data", "pack", "x", "--seed", &long], "… (100000 bytes)' for '--seed <SEED>'"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_fulmen")).args(arguments).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(expected) && message.len() < 1000, "{message}");
    }
}
