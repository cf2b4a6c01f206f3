//! Where checkpoints are: in the folder of the run, or where `checkpoint_dir` and `checkpoint_local` say.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fulmen_checkpoint::{Store, TieredStore, list, open_store, remove_unfinished};
use fulmen_durable::NewFile;

use super::{OpenStore, check_writable, local, runs};
use crate::console::note;
use crate::{Error, Options, Result};

/// The time from one copy to `checkpoint_dir` to the next.
const COPY_EVERY: Duration = Duration::from_secs(300);

/// Whether a path is the address of an object store.
pub(super) fn is_address(path: &Path) -> bool {
    path.to_string_lossy().contains("://")
}

/// What opens the store of a folder of checkpoints.
pub(crate) fn opener(options: &Options) -> Result<OpenStore> {
    let (dir, near) = (options.checkpoint_dir.clone(), &options.checkpoint_local);
    if dir.as_os_str().is_empty() {
        return match near.as_os_str().is_empty() {
            true => Ok(Arc::new(local)),
            false => Err(Error::option(format!(
                "checkpoint_local: it is {}, and checkpoint_dir is none; give the place that checkpoints are copied to",
                near.display()
            ))),
        };
    }
    let mut store = open_store(&dir).map_err(|e| Error::option(format!("checkpoint_dir: {e}")))?;
    if is_address(near) || *near == dir {
        return Err(Error::option(format!(
            "checkpoint_local: it is {}; give a folder of this machine other than checkpoint_dir",
            near.display()
        )));
    }
    if !near.as_os_str().is_empty() {
        let tell = |failure: &str| note(&format!("warning: {failure}"));
        store = Arc::new(TieredStore::new(local(near), store, COPY_EVERY, tell));
    }
    Ok(Arc::new(move |folder: &Path| if folder == dir { store.clone() } else { local(folder) }))
}

/// The folder of a run's checkpoints.
pub(crate) fn folder(options: &Options, run_dir: &Path) -> PathBuf {
    match options.checkpoint_dir.as_os_str().is_empty() {
        true => run_dir.join("checkpoints"),
        false => options.checkpoint_dir.clone(),
    }
}

/// Where checkpoints are looked for, in words for people.
pub(crate) fn root(options: &Options) -> &Path {
    if options.checkpoint_dir.as_os_str().is_empty() { &options.default_root_dir } else { &options.checkpoint_dir }
}

/// The folders in which checkpoints may be, the newest run's first; those of one run together.
pub(crate) fn all(options: &Options) -> Result<Vec<Vec<PathBuf>>> {
    let (dir, near) = (&options.checkpoint_dir, &options.checkpoint_local);
    if dir.as_os_str().is_empty() {
        return Ok(runs(&options.default_root_dir)?
            .into_iter()
            .map(|(_, run)| vec![run.join("checkpoints")])
            .collect());
    }
    Ok(vec![[near, dir].into_iter().filter(|place| !place.as_os_str().is_empty()).cloned().collect()])
}

/// Checks before the first step that checkpoints can be written, and removes what a killed run left there half written.
/// `resumed` says whether the run goes on with a checkpoint. While what it gives lives, other programs know that this run does.
pub(crate) fn check(options: &Options, open: &OpenStore, run_dir: &Path, resumed: bool) -> Result<Option<NewFile>> {
    let dir = folder(options, run_dir);
    if options.checkpoint_dir.as_os_str().is_empty() {
        return check_writable(&dir).map(Some);
    }
    let store: Arc<dyn Store> = open(&dir);
    if !resumed && list(&store).map_err(Error::checkpoint_file)?.iter().any(|one| one.checkpoint.is_ok()) {
        return Err(Error::option(format!(
            "checkpoint_dir: there are checkpoints in {}; go on with them (resume auto), or name another place",
            dir.display()
        )));
    }
    let near = if options.checkpoint_local.as_os_str().is_empty() { &dir } else { &options.checkpoint_local };
    let alive = if is_address(near) { None } else { Some(check_writable(near)?) };
    remove_unfinished(&store).map_err(Error::checkpoint_file)?;
    Ok(alive)
}
