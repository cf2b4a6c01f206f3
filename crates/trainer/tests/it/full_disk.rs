//! A full disk while a checkpoint is saved: an error, and the earlier checkpoint survives.
//!
//! The test runs itself again with a full disk: on a small tmpfs in its own mount namespace if the
//! system allows it, otherwise under a limit on file sizes.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{DROP_LAST, Net, train_loader, trainer};
use fulmen_trainer::{Actions, Callback, CheckpointRole, LogPoint};

const TARGET: &str = "FULMEN_TEST_FULL_DISK";

/// Saves to one file after each epoch.
struct SaveTo(PathBuf);

impl Callback for SaveTo {
    fn name(&self) -> &'static str {
        "SaveTo"
    }
    fn on_train_epoch_end(&mut self, _: &LogPoint, actions: &mut Actions) {
        actions.save_checkpoint(&self.0, CheckpointRole::Extra);
    }
}

fn fit(folder: &Path, save_to: &[&Path]) -> fulmen_trainer::Result<fulmen_trainer::FitSummary> {
    let mut builder = trainer(folder).max_epochs(1).enable_checkpointing(false);
    for path in save_to {
        builder = builder.callback(SaveTo(path.to_path_buf()));
    }
    builder.build()?.fit(&Net::new(), &train_loader(20, DROP_LAST), None)
}

#[test]
fn the_old_checkpoint_survives_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let small = folder.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let checkpoint = folder.path().join("good");
    fit(folder.path(), &[&checkpoint]).unwrap();
    let shard = std::fs::metadata(crate::common::shard(&checkpoint)).unwrap().len();
    let manifest = std::fs::metadata(checkpoint.join("manifest.json")).unwrap().len();
    let bytes = shard.next_multiple_of(4096) + manifest;

    let this = std::env::current_exe().unwrap();
    let run = |script: String| {
        Command::new("sh")
            .args(["-c", &script, "sh"])
            .arg(&this)
            .args(["--exact", "full_disk::on_a_full_disk", "--ignored", "--nocapture"])
            .env(TARGET, &small)
            .output()
            .unwrap()
    };
    let dir = small.display();
    let from = checkpoint.display();
    // The disk has room for the old checkpoint and one page. A second checkpoint does not fit.
    let namespaced =
        Command::new("unshare").args(["-rm", "true"]).status().is_ok_and(|s| s.success());
    let output = if namespaced {
        let room = bytes.next_multiple_of(4096) + 4096;
        assert!(bytes > 4096, "the checkpoint is too small for this test");
        run(format!(
            "exec unshare -rm sh -c 'mount -t tmpfs -o size={room} tmpfs \"{dir}\" && cp -r \"{from}\" \"{dir}/last\" \
             && exec \"$@\"' sh \"$@\""
        ))
    } else {
        let blocks = shard / 512 / 2;
        run(format!(
            "cp -r \"{from}\" \"{dir}/last\" && trap '' XFSZ && ulimit -f {blocks} && exec \"$@\""
        ))
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "run by the_old_checkpoint_survives_a_full_disk, which fills the disk first"]
fn on_a_full_disk() {
    let Some(small) = std::env::var_os(TARGET).map(PathBuf::from) else { return };
    let checkpoint = small.join("last");
    let before = std::fs::read(crate::common::shard(&checkpoint)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = folder.path().join("elsewhere");
    let error = fit(folder.path(), &[&elsewhere, &checkpoint]).unwrap_err();
    let message = error.to_string();
    assert!(error.is_checkpoint(), "{message}");
    assert!(message.contains("small/last"), "{message}");
    assert!(message.contains("No space left") || message.contains("too large"), "{message}");
    let needs = format!("needs {:.1} kB", before.len() as f64 / 1e3);
    assert!(message.contains(&needs), "{message}");
    assert!(
        message.contains("too large")
            || message.contains("4.1 kB free") && message.contains("missing"),
        "{message}"
    );
    let whole = format!("last whole checkpoint is {}", elsewhere.display());
    assert!(message.contains(&whole) && message.contains("ckpt_path"), "{message}");
    assert!(!message.contains(".part"), "a temporary name: {message}");
    assert_eq!(
        std::fs::read(crate::common::shard(&checkpoint)).unwrap(),
        before,
        "the old checkpoint is whole"
    );
    crate::common::tensors(&checkpoint);
    assert_eq!(std::fs::read_dir(&checkpoint).unwrap().count(), 2, "no temporary file is left");
}
