//! [`TieredStore`]: frequent checkpoints in a near store, copied to a far one in the background.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::copy::copy_while;
use crate::retention::{list, remove, remove_shards};
use crate::store::{Entry, NewObject, Store};
use crate::{Checkpoint, Error, MANIFEST, Manifest, Result, error};

/// The delay after failed attempts doubles from this one up to `MAX_RETRY_DELAY`.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);

/// Longer intervals count as this one, which never ends in practice.
const MAX_INTERVAL: Duration = Duration::from_secs(1 << 32);

/// Combines two stores: files are written to the near one, memory for example, and copied to the
/// far one in the background.
///
/// A checkpoint is read from the near store if its manifest is there, and otherwise from the far
/// one. Removing a checkpoint removes it from both. A copied checkpoint stays in the near store
/// only until a newer one exists. The newest checkpoint is copied first. A far store that fails is
/// retried until [`finish`](Store::finish) gives up; `tell` gets each failure.
///
/// The process that commits checkpoints copies them. All processes must see the files of the near
/// store. It must therefore be on a single machine that runs all of them, or in a folder that all
/// machines mount.
///
/// ```
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use fulmen_checkpoint::{Checkpoint, CheckpointWriter, LocalStore, Run, Store, TieredStore};
/// # let folder = tempfile::tempdir()?;
/// let near = Arc::new(LocalStore::new(folder.path().join("memory")));
/// let far = Arc::new(LocalStore::new(folder.path().join("disk")));
/// let store = Arc::new(TieredStore::new(near, far.clone(), Duration::ZERO, |failure| eprintln!("{failure}")));
///
/// let writer = CheckpointWriter::new(store.clone(), "step_1")?;
/// let shards = vec![writer.shard("s.safetensors", Vec::new())?.commit()?];
/// writer.commit(Run { step: 1, ..Run::default() }, shards)?;
/// store.finish(Duration::from_secs(60))?;
/// assert_eq!(Checkpoint::open(far, "step_1")?.manifest().run.step, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TieredStore {
    shared: Arc<Shared>,
}

struct Shared {
    near: Arc<dyn Store>,
    far: Arc<dyn Store>,
    /// The minimum time between the starts of two copies.
    interval: Duration,
    tell: Box<dyn Fn(&str) + Send + Sync>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_started: bool,
    /// Whether there may be checkpoints to copy.
    is_pending: bool,
    is_copying: bool,
    is_finishing: bool,
    is_dropped: bool,
    /// The error of the last attempt, if it failed.
    failure: Option<String>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("near", &self.near)
            .field("far", &self.far)
            .finish_non_exhaustive()
    }
}

impl TieredStore {
    /// Combines two stores. Copies start at least `interval` apart, until
    /// [`finish`](Store::finish).
    pub fn new(
        near: Arc<dyn Store>,
        far: Arc<dyn Store>,
        interval: Duration,
        tell: impl Fn(&str) + Send + Sync + 'static,
    ) -> TieredStore {
        let interval = interval.min(MAX_INTERVAL);
        let state = Mutex::default();
        let changed = Condvar::new();
        TieredStore {
            shared: Arc::new(Shared { near, far, interval, tell: Box::new(tell), state, changed }),
        }
    }
}

impl Drop for TieredStore {
    fn drop(&mut self) {
        self.shared.lock().is_dropped = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Copies the checkpoints of the near store, on a thread that the first call starts.
    fn start(self: &Arc<Shared>) -> io::Result<()> {
        let mut state = self.lock();
        state.is_pending = true;
        if !state.is_started {
            let shared = self.clone();
            thread::Builder::new().name("fulmen-copies".into()).spawn(move || shared.copy_all())?;
            state.is_started = true;
        }
        self.changed.notify_all();
        Ok(())
    }

    fn copy_all(&self) {
        let mut copied = BTreeMap::new();
        let mut failures = 0;
        // The time of the next attempt, and the final deadline.
        let mut next_copy = Instant::now();
        let mut final_deadline = Instant::now();
        let mut state = self.lock();
        while !state.is_dropped {
            let now = Instant::now();
            let remaining =
                if state.is_finishing { next_copy.min(final_deadline) } else { next_copy }
                    .saturating_duration_since(now);
            if !state.is_pending || !remaining.is_zero() {
                let wait = if state.is_pending { remaining } else { MAX_RETRY_DELAY };
                state = self.wait(state, wait);
                continue;
            }
            (state.is_pending, state.is_copying) = (false, true);
            drop(state);
            let result = self.copy_newest(&mut copied);
            let failure = result
                .as_ref()
                .err()
                .filter(|_| self.check_in_use().is_ok())
                .map(ToString::to_string);
            if let Some(failure) = &failure {
                let wait = MAX_RETRY_DELAY.min(MIN_RETRY_DELAY * 2u32.pow(failures));
                (next_copy, final_deadline) =
                    (Instant::now() + wait, Instant::now() + MIN_RETRY_DELAY);
                failures = (failures + 1).min(6);
                (self.tell)(&format!("{failure}; retrying in {} s", wait.as_secs()));
            } else {
                (next_copy, final_deadline, failures) = (now + self.interval, now, 0);
            }
            state = self.lock();
            state.is_copying = false;
            state.is_pending |= result.unwrap_or(true);
            state.failure = failure;
            self.changed.notify_all();
        }
    }

    /// Copies the newest checkpoint that was not copied yet, and returns whether there was one.
    fn copy_newest(&self, copied: &mut BTreeMap<String, String>) -> Result<bool> {
        let whole: Vec<Checkpoint> =
            list(&self.near)?.into_iter().filter_map(|listed| listed.checkpoint.ok()).collect();
        let is_copied = |checkpoint: &Checkpoint| {
            copied.get(checkpoint.name()).is_some_and(|sha256| sha256 == checkpoint.sha256())
        };
        // Skip the first, which is the newest.
        for old in whole.iter().skip(1).filter(|old| is_copied(old)) {
            remove(&self.near, old.name())?;
        }
        let Some(next) = whole.iter().find(|checkpoint| !is_copied(checkpoint)) else {
            return Ok(false);
        };
        let result = match Checkpoint::open(self.far.clone(), next.name()) {
            Ok(copy) if is_copy(copy.manifest(), next.manifest()) => Ok(()),
            _ => copy_while(next, self.far.clone(), &|| self.check_in_use()).map(drop),
        };
        match Checkpoint::open(self.near.clone(), next.name()) {
            // The process that removed it may not have seen the whole copy.
            Err(error) if error.is_not_found() => {
                remove(&self.far, next.name())?;
                remove_shards(&*self.far, next.name(), |_| true)?;
            }
            // A different checkpoint has the name now.
            Ok(now) if now.sha256() != next.sha256() => {}
            _ => {
                result?;
                copied.insert(next.name().to_owned(), next.sha256().to_owned());
            }
        }
        Ok(true)
    }

    fn check_in_use(&self) -> Result<()> {
        if self.lock().is_dropped {
            Err(Error::usage("the store is no longer used"))
        } else {
            Ok(())
        }
    }

    /// The store that has the checkpoint; the near store comes first.
    fn holder(&self, folder: &str) -> io::Result<Option<&Arc<dyn Store>>> {
        for store in [&self.near, &self.far] {
            if entries(store, folder)?.iter().any(|entry| entry.name == MANIFEST) {
                return Ok(Some(store));
            }
        }
        Ok(None)
    }
}

/// Whether both checkpoints hold the same values of the same run, even if their files differ.
fn is_copy(one: &Manifest, other: &Manifest) -> bool {
    let parts = |manifest: &Manifest| -> BTreeSet<_> {
        let tensors = manifest.tensors.iter();
        tensors
            .flat_map(|(name, tensor)| tensor.parts.iter().map(move |part| (name, tensor, part)))
            .map(|(name, tensor, part)| {
                let rectangle = (part.rectangle.offset.clone(), part.rectangle.extent.clone());
                (name.clone(), tensor.dtype, tensor.shape.clone(), rectangle, part.crc32c.clone())
            })
            .collect()
    };
    one.run == other.run && parts(one) == parts(other)
}

fn entries(store: &Arc<dyn Store>, folder: &str) -> io::Result<Vec<Entry>> {
    match store.list(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        listed => listed,
    }
}

impl Store for TieredStore {
    fn create(&self, name: &str, bytes: u64) -> io::Result<Box<dyn NewObject>> {
        let inner = self.shared.near.create(name, bytes)?;
        let checkpoint = name
            .strip_suffix(MANIFEST)
            .and_then(|folder| folder.strip_suffix('/'))
            .map(str::to_owned);
        Ok(Box::new(NearObject { inner, checkpoint, shared: self.shared.clone() }))
    }

    fn read(&self, name: &str, start: u64, into: &mut [u8]) -> io::Result<()> {
        match self.shared.near.read(name, start, into) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.shared.far.read(name, start, into)
            }
            read => read,
        }
    }

    fn list(&self, folder: &str) -> io::Result<Vec<Entry>> {
        if let Some(store) = self.shared.holder(folder)? {
            return store.list(folder);
        }
        let mut merged = entries(&self.shared.near, folder)?;
        for entry in entries(&self.shared.far, folder)? {
            if !merged.iter().any(|near| near.name == entry.name) {
                merged.push(entry);
            }
        }
        merged.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(merged)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        // The shards of two checkpoints of the same name may share file names.
        if let Some((folder, file)) = name.rsplit_once('/')
            && file != MANIFEST
            && let Some(store) = self.shared.holder(folder)?
        {
            return store.remove(name);
        }
        let is_gone = |result: &io::Result<()>| {
            result.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
        };
        let near = self.shared.near.remove(name);
        let far = self.shared.far.remove(name);
        match (is_gone(&near), is_gone(&far)) {
            (true, _) => far,
            (_, true) => near,
            _ => near.and(far),
        }
    }

    fn describe(&self, name: &str) -> String {
        self.shared.near.describe(name)
    }

    /// Waits until all checkpoints that this process committed, and that were not removed since,
    /// are in the far store.
    ///
    /// # Errors
    /// Copying takes longer than `grace`. The checkpoints are in the near store, and copying
    /// continues as long as this store exists.
    fn finish(&self, grace: Duration) -> Result<()> {
        let deadline = Instant::now().checked_add(grace);
        let mut state = self.shared.lock();
        state.is_finishing = true;
        self.shared.changed.notify_all();
        while state.is_pending || state.is_copying {
            let remaining = deadline
                .map_or(grace, |deadline| deadline.saturating_duration_since(Instant::now()));
            if remaining.is_zero() {
                let reason =
                    state.failure.clone().unwrap_or_else(|| "the copy takes longer".into());
                let near = self.shared.near.describe("");
                let far = self.shared.far.describe("");
                return Err(error::timeout(format!(
                    "{far}: the last checkpoints were not copied there within {grace:?}: {reason}; they are in {near}: copy \
                     them from there, or start the run again with the same options"
                )));
            }
            state = self.shared.wait(state, remaining);
        }
        state.is_finishing = false;
        Ok(())
    }

    fn levels(&self) -> Vec<Arc<dyn Store>> {
        vec![self.shared.near.clone(), self.shared.far.clone()]
    }
}

/// A file of the near store.
struct NearObject {
    inner: Box<dyn NewObject>,
    /// The checkpoint that the file completes, if the file is a manifest.
    checkpoint: Option<String>,
    shared: Arc<Shared>,
}

impl Write for NearObject {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl NewObject for NearObject {
    fn commit(self: Box<Self>) -> io::Result<()> {
        let NearObject { inner, checkpoint, shared } = *self;
        inner.commit()?;
        let Some(name) = checkpoint else { return Ok(()) };
        let problem = match Checkpoint::open_manifest(shared.near.clone(), &name) {
            Ok(opened) => opened.wrong_shard().map(|problem| {
                format!(
                    "{problem}. Each process writes its own shard, so the folder must be one that all processes see: choose \
                     another, or leave it out"
                )
            }),
            Err(error) => Some(error.to_string()),
        };
        if let Some(problem) = problem {
            let _ = shared.near.remove(&format!("{name}/{MANIFEST}"));
            return Err(io::Error::other(problem));
        }
        shared.start()
    }
}
