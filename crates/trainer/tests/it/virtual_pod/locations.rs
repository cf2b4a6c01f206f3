//! Checkpoints that several hosts write to a folder that all see, and copy to another place: a folder,
//! or a bucket. Or they write to the bucket at once. After the loss of all hosts, others continue from
//! there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fulmen_checkpoint::Checkpoint;
use fulmen_tensor::Devices;
use fulmen_trainer::{Result, Resume, Strategy, TrainerBuilder};
use tempfile::TempDir;

use super::{checkpoints, count, start};
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

/// How many seconds a process waits for the file of another one.
const FILE_TIMEOUT: &str = "FULMEN_FILE_TIMEOUT";

/// Long enough for folders that are shared, since no file appears late there.
const SHORT: &str = "0.5";

/// Long enough for files that appear late.
const LONG: &str = "200";

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
        vec![(TO, to.to_owned()), (DISK, disk(process)), (FILE_TIMEOUT, SHORT.to_owned())]
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
#[ignore = "slow: ci/slow"]
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
    for ending in endings(folder.path(), to.to_str().unwrap(), "2x1", 1, own_disk) {
        assert!(
            ending.contains("does not see the file that was written by process 1 (")
                && ending.contains("local/last: process 0 ("),
            "{ending}"
        );
        assert!(!ending.contains("damaged"), "{ending}");
    }
}

/// The process of a pod without `checkpoint_dir`. Its root folder is below its disk.
pub(super) fn root_member(folder: &Path, strategy: &str) -> Result<()> {
    let disk = folder.join(std::env::var(DISK).unwrap());
    fs::create_dir_all(&disk).unwrap();
    std::env::set_current_dir(&disk).unwrap();
    let strategy = if strategy == "fsdp" { Strategy::Fsdp } else { Strategy::Ddp };
    let record = Record::default();
    let builder = trainer(Path::new("runs")).resume(Resume::Auto).max_epochs(2);
    let builder = builder.strategy(strategy).log_every_n_steps(1).callback(record.clone());
    builder.build()?.fit(&Net::new(), &train_loader(40, DROP_LAST), None)?;
    say(format!("ended after {} steps", record.bits("train_loss").len()));
    Ok(())
}

/// Trains with a root folder on each process's disk, and returns how the processes end.
fn root_endings(folder: &Path, strategy: &str, file_timeout: &str) -> Vec<String> {
    let mut processes = start(folder, "2x1", &format!("root: {strategy}"), |process| {
        vec![(DISK, own_disk(process)), (FILE_TIMEOUT, file_timeout.to_owned())]
    });
    processes.endings(0..2)
}

/// A folder of each process.
fn own_disk(process: usize) -> String {
    format!("disk_{process}")
}

#[test]
fn a_root_folder_that_each_host_has_for_itself_is_an_error_at_the_first_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    for ending in root_endings(folder.path(), "fsdp", SHORT) {
        assert!(ending.contains("runs/version_0/checkpoints/last: process 0 ("), "{ending}");
        assert!(
            ending.contains("does not see the file that was written by process 1 (")
                && ending.contains("this folder is not shared by their hosts")
                && ending.contains("(default_root_dir, checkpoint_dir or checkpoint_local)"),
            "{ending}"
        );
    }
    let log = fs::read_to_string(folder.path().join("disk_0/runs/version_0/run.log")).unwrap();
    assert!(log.contains(") does not see yet what another process has written to "), "{log}");
    for disk in ["disk_0", "disk_1"] {
        let last = folder.path().join(disk).join("runs/version_0/checkpoints/last");
        assert!(!files(&last).iter().any(|file| file == "manifest.json"), "{last:?}");
    }
}

/// Writes a whole checkpoint to the disk of this process.
fn save_on(folder: &Path, process: usize) {
    let root = folder.join(own_disk(process)).join("runs");
    fit(trainer(&root).devices(Devices::from(2)), 1).unwrap();
}

#[test]
fn a_checkpoint_that_only_some_hosts_see_is_an_error_at_a_resume() {
    for process in [0, 1] {
        let folder = tempfile::tempdir().unwrap();
        save_on(folder.path(), process);
        let other = 1 - process;
        for ending in root_endings(folder.path(), "fsdp", SHORT) {
            let start = "checkpoint runs/version_0/checkpoints/last: process";
            // A process may learn of it from the other one, which has already ended.
            assert!(ending.contains(&format!("{start} {other} (")), "{ending}");
            let seen = format!("this checkpoint, which is seen by process {process} (");
            assert!(ending.contains(&seen), "{ending}");
            assert!(ending.contains("this folder is not shared by their hosts"), "{ending}");
        }
    }
}

/// Copies the files of a folder that another one lacks to that one, each a while after it appeared, until
/// this is dropped. So does a network file system, as another host sees it.
struct LateCopies {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LateCopies {
    fn start(from: PathBuf, to: PathBuf, late: Duration) -> LateCopies {
        let stopped = Arc::new(AtomicBool::new(false));
        let is_stopped = stopped.clone();
        let copy = move || {
            let mut copied = BTreeSet::new();
            while !is_stopped.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(20));
                let new = tree(&from).into_iter().filter(|file| copied.insert(file.clone()));
                let new: Vec<PathBuf> = new.collect();
                if !new.is_empty() {
                    thread::sleep(late);
                }
                for file in new {
                    let target = to.join(&file);
                    if target.exists() {
                        continue;
                    }
                    fs::create_dir_all(target.parent().unwrap()).unwrap();
                    let part = target.with_extension("part");
                    // The program may have removed it.
                    if fs::copy(from.join(&file), &part).is_ok() {
                        fs::rename(part, target).unwrap();
                    }
                }
            }
        };
        LateCopies { stopped, thread: Some(thread::spawn(copy)) }
    }
}

impl Drop for LateCopies {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking());
    }
}

/// The shards and manifests below a folder.
fn tree(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(name) = folders.pop() {
        let Ok(entries) = fs::read_dir(folder.join(&name)) else { continue };
        for entry in entries.flatten() {
            let path = name.join(entry.file_name());
            if folder.join(&path).is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "safetensors" || e == "json") {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn a_shard_that_process_0_sees_late_is_part_of_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let [to, from] = [0, 1].map(|process| folder.path().join(own_disk(process)).join("runs"));
    let copies = LateCopies::start(from, to.clone(), Duration::from_millis(500));
    assert_eq!(root_endings(folder.path(), "fsdp", LONG), ["after 10 steps"; 2]);
    drop(copies);
    let last = checkpoints(&to).into_iter().find(|path| path.ends_with("last")).unwrap();
    assert!(Checkpoint::open_folder(&last).is_ok());
}

#[test]
#[ignore = "slow: ci/slow"]
fn a_checkpoint_that_another_process_sees_late_is_resumed_from() {
    for process in [0, 1] {
        let folder = tempfile::tempdir().unwrap();
        save_on(folder.path(), process);
        let disks = [0, 1].map(|process| folder.path().join(own_disk(process)).join("runs"));
        let [seen, unseen] = [process, 1 - process].map(|process| disks[process].clone());
        // The processes look for it before this time, unless they start very slowly.
        let copies = LateCopies::start(seen.clone(), unseen.clone(), Duration::from_secs(3));
        let others = LateCopies::start(unseen, seen, Duration::ZERO);
        let endings = root_endings(folder.path(), "ddp", LONG);
        drop([copies, others]);
        assert_eq!(endings, ["after 5 steps"; 2]);
    }
}
