//! The compile cache of processes that run programs together: all run the code of process 0.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use fulmen_trainer::{Callback, Result};
use sha2::{Digest, Sha256};

use super::start;
use crate::common::{DROP_LAST, LONG, Net, Record, train_loader, trainer, val_loader};
use crate::test_processes::say;

const PROCESSES: usize = 2;

/// A process with this variable has its own file of programs.
const OTHER_FILE: &str = "FULMEN_TEST_OTHER_FILE";

/// A process with this variable is killed when it begins to compile.
const KILLED: &str = "FULMEN_TEST_KILLED";

/// Trains twice, and says the counts of compilations and the losses.
pub(super) fn member(folder: &Path) -> Result<()> {
    let record = Record::default();
    let mut trainer = trainer(folder)
        .max_epochs(1)
        .log_every_n_steps(1)
        .enable_checkpointing(false)
        .callback(record.clone())
        .build()?;
    let metrics = trainer.runtime().metrics().clone();
    let mut counts = Vec::new();
    for _ in 0..2 {
        let before = counts_of(&metrics);
        let summary =
            trainer.fit(&Net::new(), &train_loader(16, DROP_LAST), Some(&val_loader(8)))?;
        let after = counts_of(&metrics);
        let new: Vec<u64> =
            after.iter().zip(before).map(|(after, before)| after - before).collect();
        counts.push((new, summary.train_compilations));
    }
    say(format!("ended {counts:?} {:?}", record.bits("train_loss")));
    Ok(())
}

/// Trains with a file of programs that process 0 has compiled, or with one of its own, for another
/// learning rate. Says the counts of compilations.
pub(super) fn with_file(folder: &Path) -> Result<()> {
    // Holds the group, and opens the devices of all processes.
    let group = trainer(folder).build()?;
    let options = || trainer(folder).max_epochs(1).enable_checkpointing(false);
    let train = train_loader(16, DROP_LAST);
    let val = val_loader(8);
    let is_other = std::env::var_os(OTHER_FILE).is_some();
    let file = folder.join(if is_other { "other.fulmen" } else { "step.fulmen" });
    if is_other || std::env::var("FULMEN_PROCESS_ID").unwrap() == "0" {
        let mut net = Net::new();
        net.learning_rate *= if is_other { 2.0 } else { 1.0 };
        options().save_programs(&net, &train, Some(&val), None, &file)?;
    }
    while !file.exists() {
        sleep(Duration::from_millis(20));
    }
    let mut trainer = options().aot(&*file).build()?;
    let metrics = trainer.runtime().metrics().clone();
    let before = counts_of(&metrics);
    let summary = trainer.fit(&Net::new(), &train, Some(&val))?;
    let after = counts_of(&metrics);
    let new: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    say(format!("ended {new:?} {}", summary.train_compilations));
    drop(group);
    Ok(())
}

/// Trains, until a process is lost.
pub(super) fn killed(folder: &Path) -> Result<()> {
    let mut trainer = trainer(folder).max_epochs(1).callback(Killed).build()?;
    let error = trainer.fit(&Net::new(), &train_loader(16, DROP_LAST), None).unwrap_err();
    say(format!("ended {} {:?} {error}", error.is_coordination(), error.processes()));
    Ok(())
}

struct Killed;

impl Callback for Killed {
    fn name(&self) -> &'static str {
        "Killed"
    }
    fn on_compile_start(&mut self, _: &str) {
        if std::env::var_os(KILLED).is_some() {
            let pid = std::process::id().to_string();
            Command::new("kill").args(["-KILL", &pid]).status().unwrap();
            sleep(LONG);
        }
    }
}

/// The programs that were compiled, loaded from the disk or from process 0, and kept in memory.
fn counts_of(metrics: &fulmen_tensor::Metrics) -> [u64; 3] {
    ["UncachedCompile", "PersistentCacheHit", "CachedCompile"].map(|name| metrics.value(name))
}

/// The compile cache of a process.
fn cache(folder: &Path, process: usize) -> PathBuf {
    folder.join(format!("cache_{process}"))
}

/// Starts the processes. Returns the counts of both fits and the losses, which are the same in all.
fn fit(folder: &Path) -> (String, String) {
    let mut processes = start(folder, "2x2", "compile cache", |process| {
        let cache = cache(folder, process).to_str().unwrap().to_owned();
        vec![("FULMEN_COMPILE_CACHE", cache)]
    });
    let endings = processes.endings(0..PROCESSES);
    assert_eq!(endings[0], endings[1]);
    let (counts, losses) = endings[0].split_once("] [").unwrap();
    (format!("{counts}]"), losses.to_owned())
}

/// The entries of a cache, by name.
fn entries(cache: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().path());
    let mut entries: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|ending| ending == "xla")).collect();
    entries.sort();
    entries
}

/// The entry of a program.
fn entry(cache: &Path, program: &str) -> PathBuf {
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    entries(cache).into_iter().find(|path| name(path).starts_with(program)).unwrap()
}

/// Puts the code of one entry into another, with a right checksum.
fn forge(entry: &Path, other: &Path) {
    const START: usize = 8 + 32;
    let split = |bytes: &[u8]| {
        let length = u32::from_le_bytes(bytes[START..START + 4].try_into().unwrap()) as usize;
        let code = START + 4 + length;
        (bytes[START..code].to_vec(), bytes[code..].to_vec())
    };
    let bytes = fs::read(entry).unwrap();
    let body = [split(&bytes).0, split(&fs::read(other).unwrap()).1].concat();
    let digest = Sha256::digest(&body);
    fs::write(entry, [&bytes[..8], &digest[..], &body[..]].concat()).unwrap();
}

#[test]
fn all_processes_load_the_programs_of_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let endings = super::run(folder.path(), "2x2", "compile cache: file", &[]);
    // Initial values, training and validation.
    assert_eq!(endings, ["[0, 3, 0] 0"; PROCESSES]);

    let mut processes = start(folder.path(), "2x2", "compile cache: file", |process| {
        if process == 1 { vec![(OTHER_FILE, "1".to_owned())] } else { Vec::new() }
    });
    for ending in processes.endings(0..PROCESSES) {
        assert!(ending.starts_with("the processes do not agree on `fit`"), "{ending}");
        assert!(ending.contains("`compiled programs`: process 1 ("), "{ending}");
    }
}

#[test]
#[ignore = "slow: ci/slow"]
fn a_process_that_dies_while_the_others_agree_on_a_program_is_named() {
    // Both pods wait at the same time, so that a busy machine has longer to send heartbeats.
    let pods = [0, 1].map(|killed| {
        let folder = tempfile::tempdir().unwrap();
        let processes = start(folder.path(), "2x1", "compile cache: killed", |process| {
            let mut variables = vec![("FULMEN_HEARTBEAT_TIMEOUT", "6".to_owned())];
            if process == killed {
                variables.push((KILLED, "1".to_owned()));
            }
            variables
        });
        (killed, processes, folder)
    });
    for (killed, mut processes, _folder) in pods {
        let ending = &processes.endings([1 - killed])[0];
        let named = format!("true [{killed}] process {killed} (");
        assert!(ending.starts_with(&named), "{ending}");
    }
}

#[test]
#[ignore = "slow: ci/slow"]
fn the_second_start_of_a_pod_compiles_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = [0, 1].map(|process| cache(folder.path(), process));
    // Initial values, training and validation. The second fit has them in memory.
    let compiled = "[([3, 0, 0], 1), ([0, 0, 3], 0)]";
    let (counts, losses) = fit(folder.path());
    assert_eq!(counts, compiled);
    let check = |expected: &str, why: &str| {
        assert_eq!(fit(folder.path()), (expected.to_owned(), losses.clone()), "{why}");
        assert_eq!((entries(&first).len(), entries(&second).len()), (3, 3), "{why}");
    };
    let loaded = "[([0, 3, 0], 0), ([0, 0, 3], 0)]";
    check(loaded, "both have all programs");

    fs::remove_dir_all(&second).unwrap();
    check(loaded, "process 1 has no cache, like a new host");

    // The checksum is right, but it is another program.
    forge(&entry(&second, "train"), &entry(&second, "eval_step-"));
    check(loaded, "process 1 has a forged entry");

    let damaged = entry(&second, "train");
    let mut bytes = fs::read(&damaged).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&damaged, &bytes).unwrap();
    check(loaded, "process 1 has a damaged entry");

    fs::write(entry(&first, "train"), &bytes).unwrap();
    check("[([1, 2, 0], 1), ([0, 0, 3], 0)]", "process 0 has a damaged entry");
    check(loaded, "the damaged entry was replaced");
}
