//! Writers killed by SIGKILL at any moment: valid checkpoints are complete, and the next process
//! resumes from them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use super::common::{DividedTensor, local, read_all, write_process};
use crate::{
    Checkpoint, CheckpointWriter, Dtype, RetentionPolicy, Run, Store, list, newest, prune,
    remove_unfinished, verify,
};

const FOLDER: &str = "FULMEN_TEST_KILLED_WRITER";

/// Large enough that most of the time goes into writing: 400 kB per checkpoint.
const TENSORS: [DividedTensor<'static>; 2] =
    [("fc.weight", Dtype::F32, &[100, 1000], &[4, 1]), ("trainer/step", Dtype::I32, &[], &[])];

fn step_of(store: &Arc<dyn Store>) -> u64 {
    let load = |checkpoint: &Checkpoint| {
        read_all(checkpoint, &TENSORS).map(|()| checkpoint.manifest().run.step)
    };
    newest(store, load).unwrap().0.unwrap_or_default()
}

/// Saves like a training: each step under its own name and as `last`. Two named checkpoints are
/// kept.
#[test]
#[ignore = "run by a_writer_killed_at_any_moment_leaves_whole_checkpoints_and_the_next_continues"]
fn writes_until_it_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let store = local(&folder);
    for name in std::fs::read_dir(&folder).unwrap() {
        fulmen_durable::remove_leftovers(&name.unwrap().path()).unwrap();
    }
    remove_unfinished(&store).unwrap();
    let first = step_of(&store) + 1;
    for step in first.. {
        for name in [format!("step_{step}"), "last".to_owned()] {
            let writer = CheckpointWriter::new(store.clone(), &name).unwrap();
            let shards = (0..2).map(|process| write_process(&writer, &TENSORS, process, 2));
            let shards = shards.collect::<crate::Result<_>>().unwrap();
            writer.commit(Run { step, ..Run::default() }, shards).unwrap();
        }
        prune(&store, &RetentionPolicy { last: 3, ..RetentionPolicy::default() }).unwrap();
        println!("wrote {step}");
    }
}

fn writer(folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "tests::kills::writes_until_it_is_killed",
        "--ignored",
        "--nocapture",
    ]);
    command.env(FOLDER, folder);
    command
}

#[test]
fn a_writer_killed_at_any_moment_leaves_whole_checkpoints_and_the_next_continues() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    let mut reached = 0;
    let mut unfinished = 0;
    for kill in 0..20u64 {
        let mut child = writer(folder.path()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut steps =
            lines.filter_map(|line| line.split_once("wrote ")?.1.trim().parse::<u64>().ok());
        let first = steps.next().unwrap();
        // A checkpoint that was written but not reported is a valid start too.
        assert!(
            (reached + 1..=reached + 2).contains(&first),
            "kill {kill}: {first} after {reached}"
        );
        std::thread::sleep(Duration::from_micros(kill * 7919 % 40_000));
        child.kill().unwrap();
        // The last step that the writer reported before it died.
        reached = steps.last().unwrap_or(first);
        child.wait().unwrap();

        for listed in list(&store).unwrap() {
            let files = std::fs::read_dir(folder.path().join(&listed.name)).unwrap().count();
            let expected = match listed.checkpoint {
                Ok(whole) => {
                    assert!(verify(&whole).is_empty(), "kill {kill}: {}", listed.name);
                    whole.manifest().shards.len() + 1
                }
                Err(error) => {
                    assert!(error.is_not_found(), "kill {kill}: {error}");
                    0
                }
            };
            unfinished += files - expected;
        }
        assert!((reached..=reached + 1).contains(&step_of(&store)), "kill {kill}");
    }
    assert!(
        unfinished > 0,
        "no kill left a file of a save, and nearly all of the time goes into saves"
    );
}
