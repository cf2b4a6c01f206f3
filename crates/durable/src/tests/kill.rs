//! Writers that are killed by SIGKILL at any moment: the target stays intact, and the next process
//! removes the leftovers.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::{NewFolder, write};

const FOLDER: &str = "DURABLE_TEST_FOLDER";
const ONCE: &str = "DURABLE_TEST_ONCE";
/// Large enough that most of the time is spent on the write.
const BYTES: usize = 1 << 20;

/// Writes a file and a folder filled with the same number, over and over.
#[test]
#[ignore = "run by a_killed_writer_leaves_a_whole_file_and_the_next_one_nothing_else"]
fn writes_until_it_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    for number in 1u8.. {
        write(&folder.join("file"), Some(BYTES as u64), |file| {
            (0..16).try_for_each(|_| file.write_all(&[number; BYTES / 16]))
        })
        .unwrap();
        let shards = folder.join("shards");
        let _ = std::fs::remove_dir_all(&shards);
        let new = NewFolder::create(&shards).unwrap();
        for name in ["a", "b"] {
            write(&new.path().join(name), None, |file| file.write_all(&[number; BYTES / 4]))
                .unwrap();
        }
        new.keep().unwrap();
        println!("wrote {number}");
        if std::env::var_os(ONCE).is_some() || number == u8::MAX {
            break;
        }
    }
}

fn writer(folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "tests::kill::writes_until_it_is_killed", "--ignored", "--nocapture"])
        .env(FOLDER, folder);
    command
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn is_whole(file: &Path, bytes: usize) -> bool {
    let content = std::fs::read(file).unwrap();
    content.len() == bytes && content.iter().all(|byte| *byte == content[0])
}

#[test]
fn a_killed_writer_leaves_a_whole_file_and_the_next_one_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let mut leftovers = 0;
    for kill in 0..30u64 {
        let mut child = writer(folder.path()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("wrote")), "the writer began");
        std::thread::sleep(Duration::from_micros(kill * 1117 % 20_000));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_whole(&folder.path().join("file"), BYTES), "kill {kill}");
        for shard in ["a", "b"].map(|name| folder.path().join("shards").join(name)) {
            // The folder is removed before it is written again.
            assert!(!shard.exists() || is_whole(&shard, BYTES / 4), "kill {kill}");
        }
        leftovers += names(folder.path()).iter().filter(|name| name.starts_with('.')).count();
        let next = writer(folder.path()).env(ONCE, "1").output().unwrap();
        assert!(next.status.success(), "{}", String::from_utf8_lossy(&next.stderr));
        assert_eq!(names(folder.path()), ["file", "shards"], "kill {kill}");
        assert_eq!(names(&folder.path().join("shards")), ["a", "b"], "kill {kill}");
    }
    assert!(leftovers > 0, "no kill hit a write");
}
