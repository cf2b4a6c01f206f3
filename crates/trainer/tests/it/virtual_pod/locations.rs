//! Checkpoints that several hosts write to a folder that all see, and copy to another place: a folder,
//! or a bucket. Or they write to the bucket at once. After the loss of all hosts, others continue from
//! there.

use std::fs;
use std::path::Path;

use fulmen_tensor::Devices;
use fulmen_trainer::{Result, Resume, Strategy, TrainerBuilder};
use tempfile::TempDir;

#[cfg(feature = "cloud")]
use super::checkpoints;
use super::{count, start};
#[cfg(feature = "cloud")]
use crate::checkpoint_locations::run_with_bucket;
#[cfg(feature = "cloud")]
use crate::common::tensors;
use crate::common::{DROP_LAST, Net, Record, files, train_loader, trainer};
use crate::test_processes::say;

/// Where the hosts copy their checkpoints to.
const TO: &str = "FULMEN_TEST_TO";

/// Set if the hosts write there at once, not to a folder from which it is copied.
const DIRECTLY: &str = "FULMEN_TEST_DIRECTLY";

/// The folder of a process's disk.
const DISK: &str = "FULMEN_TEST_DISK";

/// The bits of the losses, with the steps.
fn fit(builder: TrainerBuilder, epochs: u64) -> Result<Vec<(u64, u64)>> {
    let record = Record::default();
    let builder = builder.strategy(Strategy::Fsdp).max_epochs(epochs).log_every_n_steps(1);
    let mut trainer = builder.callback(record.clone()).build()?;
    trainer.fit(&Net::new(), &train_loader(40, DROP_LAST), None)?;
    Ok(record.bits("train_loss"))
}

/// The process of a pod. `local` is the folder of its checkpoints below its current folder, which is
/// that of all processes, or of this one.
pub(super) fn member(folder: &Path, epochs: &str) -> Result<()> {
    let disk = std::env::var(DISK).unwrap();
    fs::create_dir_all(folder.join(&disk)).unwrap();
    std::env::set_current_dir(folder.join(&disk)).unwrap();
    let builder = trainer(&folder.join("runs")).resume(Resume::Auto);
    let mut builder = builder.checkpoint_dir(std::env::var(TO).unwrap());
    if std::env::var_os(DIRECTLY).is_none() {
        builder = builder.checkpoint_local("local");
    }
    let bits = fit(builder, epochs.parse().unwrap())?;
    say(format!("ended {bits:x?}"));
    Ok(())
}

/// Trains up to an epoch. Each process has a disk.
fn endings(
    folder: &Path,
    to: &str,
    shape: &str,
    epochs: u64,
    disk: fn(usize) -> String,
) -> Vec<String> {
    let mut processes = start(folder, shape, &format!("locations: {epochs}"), |process| {
        vec![(TO, to.to_owned()), (DISK, disk(process))]
    });
    processes.endings(0..count(shape))
}

/// Trains two epochs on two hosts, and a third one on four others. Returns the folder of the same run
/// in one process.
fn resumes_from(folder: &Path, to: &str) -> TempDir {
    let one = tempfile::tempdir().unwrap();
    let expected = fit(trainer(one.path()).devices(Devices::from(4)), 3).unwrap();
    assert_eq!(expected.len(), 15);
    for (shape, epochs, steps) in [("2x2", 2, 0..10), ("4x1", 3, 10..15)] {
        let bits = format!("{:x?}", &expected[steps]);
        let endings = endings(folder, to, shape, epochs, |_| "disk".to_owned());
        for (process, ending) in endings.iter().enumerate() {
            assert_eq!(ending, &bits, "{shape}, process {process}");
        }
        // The manifest, and a shard of each process.
        assert_eq!(files(&folder.join("disk/local/last")).len(), 1 + count(shape));
        fs::remove_dir_all(folder.join("disk")).unwrap();
        fs::remove_dir_all(folder.join("runs")).unwrap();
    }
    one
}

/// Like [`resumes_from`], without a folder between the hosts and the place.
#[cfg(feature = "cloud")]
fn resumes_directly_from(folder: &Path, to: &str) {
    let one = tempfile::tempdir().unwrap();
    let expected = fit(trainer(one.path()).devices(Devices::from(4)), 3).unwrap();
    for (shape, epochs, steps) in [("4x1", 1, 0..5), ("2x2", 2, 5..10), ("4x1", 3, 10..15)] {
        let bits = format!("{:x?}", &expected[steps]);
        let mut processes = start(folder, shape, &format!("locations: {epochs}"), |_| {
            vec![(TO, to.to_owned()), (DISK, "disk".to_owned()), (DIRECTLY, "1".to_owned())]
        });
        for (process, ending) in processes.endings(0..count(shape)).iter().enumerate() {
            assert_eq!(ending, &bits, "{shape}, process {process}");
        }
        assert_eq!(files(&folder.join("disk")), [""; 0], "{shape}");
        fs::remove_dir_all(folder.join("runs")).unwrap();
    }
    check_last(Path::new(to), &one);
}

/// Checks that the last checkpoint of a place is that of one process.
#[cfg(feature = "cloud")]
fn check_last(to: &Path, one: &TempDir) {
    let saved = tensors(to.join("last"));
    let expected = tensors(checkpoints(one.path()).pop().unwrap());
    assert_eq!(saved.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, value) in &expected {
        assert_eq!(saved[name].bytes(), value.bytes(), "{name}");
    }
}

#[cfg(feature = "cloud")]
#[test]
#[ignore = "run by hosts_continue_from_a_bucket_of_a_real_server, which sets the server's address in the environment"]
fn hosts_continue_from_a_bucket() {
    if std::env::var_os("AWS_ENDPOINT_URL").is_some() {
        let [copied, direct] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let one = resumes_from(copied.path(), "s3://models/copied");
        check_last(Path::new("s3://models/copied"), &one);
        resumes_directly_from(direct.path(), "s3://models/direct");
    }
}

#[cfg(feature = "cloud")]
#[test]
fn hosts_continue_from_a_bucket_of_a_real_server() {
    run_with_bucket("virtual_pod::locations::hosts_continue_from_a_bucket");
}

#[test]
fn hosts_continue_from_the_copies_of_what_lost_hosts_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("to");
    resumes_from(folder.path(), to.to_str().unwrap());
    // The manifest and four shards.
    assert_eq!(files(&to.join("last")).len(), 5);
}

#[test]
fn a_local_folder_that_each_host_has_for_itself_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("to");
    let disk = |process| format!("disk_{process}");
    for ending in endings(folder.path(), to.to_str().unwrap(), "2x1", 1, disk) {
        assert!(ending.contains("the shard shard_1.safetensors is missing"), "{ending}");
        assert!(ending.contains("the folder must be one that all processes see"), "{ending}");
        assert!(!ending.contains("damaged"), "{ending}");
    }
}
