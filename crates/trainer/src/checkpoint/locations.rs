//! Where checkpoints are stored: in the folder of the run, or in `checkpoint_dir` and
//! `checkpoint_local`.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fulmen_checkpoint::{Store, TieredStore, list, open_store, remove_unfinished};
use fulmen_durable::{FolderLock, NewFile};

use super::{OpenStore, check_writable, local, runs};
use crate::console::warning;
use crate::{Options, Result, error};

/// The time between two copies to `checkpoint_dir`.
const COPY_INTERVAL: Duration = Duration::from_secs(300);

/// How often, and after which time, to try again to lock a folder that another run uses.
const LOCK_TRIES: u32 = 8;
const LOCK_WAIT: Duration = Duration::from_millis(250);

/// Whether a path is the address of an object store.
pub(crate) fn is_address(path: &Path) -> bool {
    path.to_string_lossy().contains("://")
}

/// The function that opens the store of a folder of checkpoints.
pub(crate) fn opener(options: &Options) -> Result<OpenStore> {
    let dir = options.checkpoint_dir.clone();
    let local_dir = &options.checkpoint_local;
    if dir.as_os_str().is_empty() {
        if local_dir.as_os_str().is_empty() {
            return Ok(Arc::new(local));
        }
        return Err(error::option(format!(
            "checkpoint_local: it is {}, but checkpoint_dir is none; set it to the folder or address to which checkpoints are \
             copied",
            local_dir.display()
        )));
    }
    let mut store = open_store(&dir).map_err(|e| error::option(format!("checkpoint_dir: {e}")))?;
    if is_address(local_dir) || *local_dir == dir {
        return Err(error::option(format!(
            "checkpoint_local: it is {}; use a folder of this machine other than checkpoint_dir",
            local_dir.display()
        )));
    }
    if !local_dir.as_os_str().is_empty() {
        let warn = |failure: &str| warning!("{failure}");
        store = Arc::new(TieredStore::new(local(local_dir), store, COPY_INTERVAL, warn));
    }
    Ok(Arc::new(move |folder: &Path| if folder == dir { store.clone() } else { local(folder) }))
}

/// The folder of a run's checkpoints.
pub(crate) fn folder(options: &Options, run_dir: &Path) -> PathBuf {
    if options.checkpoint_dir.as_os_str().is_empty() {
        run_dir.join("checkpoints")
    } else {
        options.checkpoint_dir.clone()
    }
}

/// The folder in which checkpoints are searched, for messages.
pub(crate) fn root(options: &Options) -> &Path {
    if options.checkpoint_dir.as_os_str().is_empty() {
        &options.default_root_dir
    } else {
        &options.checkpoint_dir
    }
}

/// The folders that may have checkpoints. Each element has the folders of one run; the newest run
/// comes first.
pub(crate) fn folders_by_run(options: &Options) -> Result<Vec<Vec<PathBuf>>> {
    let dir = &options.checkpoint_dir;
    let local_dir = &options.checkpoint_local;
    if dir.as_os_str().is_empty() {
        return Ok(runs(&options.default_root_dir)?
            .into_iter()
            .map(|(_, run)| vec![run.join("checkpoints")])
            .collect());
    }
    Ok(vec![
        [local_dir, dir]
            .into_iter()
            .filter(|folder| !folder.as_os_str().is_empty())
            .cloned()
            .collect(),
    ])
}

/// Checks before the first step that checkpoints can be written, and removes unfinished files of
/// killed runs. `resumed` is whether the run resumes from a checkpoint. While the result exists, other
/// programs know that this run is alive, and no other run can use its `checkpoint_dir`.
pub(crate) fn check(
    options: &Options,
    open: &OpenStore,
    run_dir: &Path,
    resumed: bool,
) -> Result<RunFiles> {
    let dir = folder(options, run_dir);
    if options.checkpoint_dir.as_os_str().is_empty() {
        return Ok(RunFiles { _alive: Some(check_writable(&dir)?), _locks: Vec::new() });
    }
    // Before anything is removed: another run may be writing there.
    let mut locks = Vec::from_iter(lock("checkpoint_dir", &dir)?);
    locks.extend(lock("checkpoint_local", &options.checkpoint_local)?);
    let store: Arc<dyn Store> = open(&dir);
    if !resumed
        && list(&store)
            .map_err(error::checkpoint_file)?
            .iter()
            .any(|listed| listed.checkpoint.is_ok())
    {
        return Err(error::option(format!(
            "checkpoint_dir: there are checkpoints in {}; resume from them (resume auto), or choose another folder",
            dir.display()
        )));
    }
    let local_dir = if options.checkpoint_local.as_os_str().is_empty() {
        &dir
    } else {
        &options.checkpoint_local
    };
    let alive = if is_address(local_dir) { None } else { Some(check_writable(local_dir)?) };
    remove_unfinished(&store).map_err(error::checkpoint_file)?;
    Ok(RunFiles { _alive: alive, _locks: locks })
}

/// What shows other programs that a run is alive.
#[derive(Debug, Default)]
pub(crate) struct RunFiles {
    /// A file that keeps other programs from removing the run's unfinished files.
    _alive: Option<NewFile>,
    /// The locks on the folders that only one run at a time can use.
    _locks: Vec<FolderLock>,
}

/// Locks the local folder of an option. A store has no locks.
fn lock(option: &str, folder: &Path) -> Result<Option<FolderLock>> {
    if is_address(folder) || folder.as_os_str().is_empty() {
        return Ok(None);
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let holder = format!("the run of process {} on {}", std::process::id(), host.trim());
    let take = || std::fs::create_dir_all(folder).and_then(|()| FolderLock::take(folder, &holder));
    let is_taken = |lock: &std::io::Result<FolderLock>| {
        lock.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    let mut locked = take();
    // A process that was just killed may still be ending, with large memory or devices.
    for _ in 0..LOCK_TRIES {
        if is_taken(&locked) {
            std::thread::sleep(LOCK_WAIT);
            locked = take();
        }
    }
    match locked {
        Ok(lock) => Ok(Some(lock)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Err(error::option(format!(
            "{option}: {error}, and only one run at a time can use {}; wait for it, or choose another folder",
            folder.display()
        ))),
        Err(error) => Err(error::checkpoint(folder, format!("cannot lock the folder ({error})"))),
    }
}
