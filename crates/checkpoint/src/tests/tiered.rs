//! Tests two levels: memory, and a store that fails, waits or loses its content.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::common::{SMALL, local, read_all, write, write_process};
use crate::{
    Checkpoint, CheckpointWriter, Entry, LocalStore, MANIFEST, NewObject, Run, Store, TieredStore,
    list, newest, remove,
};

/// Longer than any machine stalls.
const LONG: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Works,
    /// Every write fails.
    Fails,
    /// A commit of a manifest waits.
    Waits,
}

/// A store whose behavior tests control.
#[derive(Clone, Debug)]
struct ControlledStore {
    inner: LocalStore,
    /// The current mode, and the number of commits that wait.
    mode: Arc<(Mutex<(Mode, usize)>, Condvar)>,
}

impl ControlledStore {
    fn new(folder: &Path, mode: Mode) -> ControlledStore {
        ControlledStore {
            inner: LocalStore::new(folder),
            mode: Arc::new((Mutex::new((mode, 0)), Condvar::new())),
        }
    }

    fn set(&self, mode: Mode) {
        self.mode.0.lock().unwrap().0 = mode;
        self.mode.1.notify_all();
    }

    fn until_one_waits(&self) {
        let (state, changed) = &*self.mode;
        drop(changed.wait_while(state.lock().unwrap(), |state| state.1 == 0).unwrap());
    }
}

impl Store for ControlledStore {
    fn create(&self, name: &str, bytes: u64) -> io::Result<Box<dyn NewObject>> {
        if self.mode.0.lock().unwrap().0 == Mode::Fails {
            return Err(io::Error::other("the answer was 503"));
        }
        let is_manifest = name.ends_with(MANIFEST);
        Ok(Box::new(ControlledFile {
            inner: self.inner.create(name, bytes)?,
            store: self.clone(),
            is_manifest,
        }))
    }
    fn read(&self, name: &str, start: u64, into: &mut [u8]) -> io::Result<()> {
        self.inner.read(name, start, into)
    }
    fn list(&self, folder: &str) -> io::Result<Vec<Entry>> {
        self.inner.list(folder)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }
    fn describe(&self, name: &str) -> String {
        self.inner.describe(name)
    }
}

struct ControlledFile {
    inner: Box<dyn NewObject>,
    store: ControlledStore,
    is_manifest: bool,
}

impl Write for ControlledFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl NewObject for ControlledFile {
    fn commit(self: Box<Self>) -> io::Result<()> {
        let (state, changed) = &*self.store.mode;
        if self.is_manifest {
            state.lock().unwrap().1 += 1;
            changed.notify_all();
            let mut state =
                changed.wait_while(state.lock().unwrap(), |state| state.0 == Mode::Waits).unwrap();
            state.1 -= 1;
        }
        self.inner.commit()
    }
}

struct Tiers {
    folder: tempfile::TempDir,
    far: ControlledStore,
    tiered: Arc<TieredStore>,
    messages: Arc<Mutex<Vec<String>>>,
}

impl Tiers {
    fn new(mode: Mode) -> Tiers {
        let folder = tempfile::tempdir().unwrap();
        let far = ControlledStore::new(&folder.path().join("far"), mode);
        let (tiered, messages) = tiers(folder.path(), &far, Duration::ZERO);
        Tiers { folder, far, tiered, messages }
    }

    fn store(&self) -> Arc<dyn Store> {
        self.tiered.clone()
    }

    fn names(&self, level: &str) -> Vec<String> {
        list(&local(&self.folder.path().join(level)))
            .unwrap()
            .into_iter()
            .map(|listed| listed.name)
            .collect()
    }

    fn newest(&self) -> (Option<u64>, Vec<String>) {
        let load = |checkpoint: &Checkpoint| {
            read_all(checkpoint, &SMALL).map(|()| checkpoint.manifest().run.step)
        };
        let (step, skipped) = newest(&self.store(), load).unwrap();
        (step, skipped.iter().map(ToString::to_string).collect())
    }
}

fn tiers(
    folder: &Path,
    far: &ControlledStore,
    interval: Duration,
) -> (Arc<TieredStore>, Arc<Mutex<Vec<String>>>) {
    let messages: Arc<Mutex<Vec<String>>> = Arc::default();
    let tell = messages.clone();
    let tell = move |text: &str| tell.lock().unwrap().push(text.to_owned());
    (
        Arc::new(TieredStore::new(
            local(&folder.join("near")),
            Arc::new(far.clone()),
            interval,
            tell,
        )),
        messages,
    )
}

#[test]
fn a_failing_far_store_is_retried_and_reported_until_all_is_copied() {
    let tiers = Tiers::new(Mode::Fails);
    for step in 1..=3 {
        write(&tiers.store(), step, &SMALL, 2).unwrap();
    }
    let error = tiers.tiered.finish(Duration::ZERO).unwrap_err();
    let text = error.to_string();
    assert!(
        error.is_timeout()
            && text.contains("/far")
            && text.contains("/near")
            && text.contains("0ns"),
        "{text}"
    );
    assert_eq!(tiers.newest().0, Some(3));
    // The copy is in the middle of an attempt, or waits for the next one.
    while tiers.messages.lock().unwrap().is_empty() {
        std::thread::yield_now();
    }
    let message = tiers.messages.lock().unwrap()[0].clone();
    assert!(
        message.contains("/far/step_") && message.contains("the answer was 503; retrying in 1 s"),
        "{message}"
    );
    assert!(
        tiers.tiered.finish(Duration::ZERO).unwrap_err().to_string().contains("the answer was 503")
    );
    assert!(tiers.names("far").is_empty());
    assert_eq!(tiers.names("near"), ["step_3", "step_2", "step_1"]);

    tiers.far.set(Mode::Works);
    tiers.tiered.finish(LONG).unwrap();
    assert_eq!(tiers.names("far"), ["step_3", "step_2", "step_1"]);
    assert_eq!(tiers.names("near"), ["step_3"]);
    assert_eq!(list(&tiers.store()).unwrap().len(), 3);
    for step in 1..=3 {
        read_all(&Checkpoint::open(tiers.store(), &format!("step_{step}")).unwrap(), &SMALL)
            .unwrap();
    }
}

#[test]
fn the_newest_whole_checkpoint_of_both_levels_loads() {
    let tiers = Tiers::new(Mode::Works);
    let flip = |step: u64| {
        let path = tiers.folder.path().join(format!("near/step_{step}/shard_0.safetensors"));
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
    };
    for step in 1..=2 {
        write(&tiers.store(), step, &SMALL, 2).unwrap();
        tiers.tiered.finish(LONG).unwrap();
    }
    assert_eq!(tiers.newest(), (Some(2), Vec::new()));
    // A byte flips in memory, so the copy loads.
    flip(2);
    let (step, skipped) = tiers.newest();
    assert!(
        step == Some(2) && skipped.len() == 1 && skipped[0].contains("/near/step_2"),
        "{skipped:?}"
    );
    // A byte flips in a checkpoint that has no copy yet, so the older one loads.
    tiers.far.set(Mode::Fails);
    write(&tiers.store(), 3, &SMALL, 2).unwrap();
    assert_eq!(tiers.newest().0, Some(3));
    flip(3);
    assert_eq!(tiers.newest().0, Some(2));
    // The machine is lost.
    fs::remove_dir_all(tiers.folder.path().join("near")).unwrap();
    assert_eq!(tiers.newest(), (Some(2), Vec::new()));
}

#[test]
fn a_checkpoint_that_is_removed_while_it_is_copied_is_gone_from_both() {
    let tiers = Tiers::new(Mode::Waits);
    write(&tiers.store(), 1, &SMALL, 2).unwrap();
    tiers.far.until_one_waits();
    remove(&tiers.store(), "step_1").unwrap();
    tiers.far.set(Mode::Works);
    tiers.tiered.finish(LONG).unwrap();
    assert!(tiers.names("near").is_empty() && tiers.names("far").is_empty());
    assert!(list(&tiers.store()).unwrap().is_empty());
}

#[test]
fn a_checkpoint_that_replaces_another_of_its_name_does_so_in_both() {
    let tiers = Tiers::new(Mode::Works);
    let save = |step: u64| {
        let writer = CheckpointWriter::new(tiers.store(), "last").unwrap();
        let shards = vec![write_process(&writer, &SMALL, 0, 1).unwrap()];
        writer.commit(Run { step, ..Run::default() }, shards).unwrap();
    };
    let far = || {
        let checkpoint = Checkpoint::open(Arc::new(tiers.far.clone()), "last").unwrap();
        read_all(&checkpoint, &SMALL).unwrap();
        checkpoint.manifest().run.step
    };
    save(1);
    tiers.tiered.finish(LONG).unwrap();
    assert_eq!(far(), 1);
    tiers.far.set(Mode::Waits);
    save(2);
    tiers.far.until_one_waits();
    // Until the new manifest is copied, the older checkpoint stays complete. A third save replaces
    // the one being copied.
    assert_eq!(far(), 1);
    save(3);
    assert_eq!(far(), 1);
    tiers.far.set(Mode::Works);
    tiers.tiered.finish(LONG).unwrap();
    assert_eq!((far(), tiers.newest().0), (3, Some(3)));
    assert!(tiers.messages.lock().unwrap().is_empty());
}

#[test]
fn the_next_process_copies_what_a_killed_one_did_not() {
    let folder = tempfile::tempdir().unwrap();
    let far = ControlledStore::new(&folder.path().join("far"), Mode::Fails);
    let (tiered, _) = tiers(folder.path(), &far, Duration::ZERO);
    write(&(tiered.clone() as Arc<dyn Store>), 1, &SMALL, 2).unwrap();
    drop(tiered);
    far.set(Mode::Works);
    // At the end, the store does not wait for the time between two copies.
    let (tiered, _) = tiers(folder.path(), &far, Duration::MAX);
    write(&(tiered.clone() as Arc<dyn Store>), 2, &SMALL, 2).unwrap();
    tiered.finish(LONG).unwrap();
    assert_eq!(list(&local(&folder.path().join("far"))).unwrap().len(), 2);
}

#[test]
fn a_near_store_that_other_processes_do_not_see_is_refused() {
    let tiers = Tiers::new(Mode::Works);
    let writer = CheckpointWriter::new(tiers.store(), "step_1").unwrap();
    let elsewhere =
        CheckpointWriter::new(local(&tiers.folder.path().join("elsewhere")), "step_1").unwrap();
    let shards = vec![
        write_process(&writer, &SMALL, 0, 2).unwrap(),
        write_process(&elsewhere, &SMALL, 1, 2).unwrap(),
    ];
    let error = writer.commit(Run::default(), shards).unwrap_err().to_string();
    assert!(
        error.contains("shard_1.safetensors is missing") && error.contains("all processes see"),
        "{error}"
    );
    assert!(!error.contains("damaged"), "{error}");
    assert!(newest(&tiers.store(), |_| Ok(())).unwrap().0.is_none());
}
