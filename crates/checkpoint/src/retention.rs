//! Lists the checkpoints of a store, finds the newest, and removes old ones.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use crate::checkpoint::join;
use crate::store::Store;
use crate::{Checkpoint, Error, MANIFEST, Result, error};

/// A folder of a store that has a manifest or looks like an unfinished checkpoint.
#[derive(Debug)]
pub struct ListedCheckpoint {
    /// The folder's name in the store.
    pub name: String,
    /// The checkpoint, or why it is not valid.
    pub checkpoint: Result<Checkpoint>,
}

/// The checkpoints of a store: valid ones first, newest first, then invalid folders by name. A
/// checkpoint is valid if its manifest is complete and its shards exist with the right lengths.
/// Values are not read.
///
/// # Errors
/// The store cannot be listed. A store that does not exist yet has no checkpoints.
pub fn list(store: &Arc<dyn Store>) -> Result<Vec<ListedCheckpoint>> {
    let entries = match store.list("") {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error::io("read", &store.describe(""), error)),
    };
    let folders =
        entries.into_iter().filter(|entry| entry.bytes.is_none() && !entry.name.starts_with('.'));
    let mut listed: Vec<ListedCheckpoint> = folders
        .map(|entry| ListedCheckpoint {
            checkpoint: Checkpoint::open(store.clone(), &entry.name),
            name: entry.name,
        })
        .collect();
    listed.sort_by_key(newest_first);
    Ok(listed)
}

/// Valid checkpoints come first.
fn newest_first(listed: &ListedCheckpoint) -> Reverse<Option<u64>> {
    Reverse(listed.checkpoint.as_ref().ok().map(step))
}

fn step(checkpoint: &Checkpoint) -> u64 {
    checkpoint.manifest().run.step
}

/// Loads the newest checkpoint that `load` can read, and returns the errors of newer ones that it
/// could not read. A damaged checkpoint therefore never hides an older good one. In a store with
/// [levels](Store::levels), a checkpoint that cannot be read from one level is read from the next.
///
/// # Errors
/// The store cannot be listed.
pub fn newest<T>(
    store: &Arc<dyn Store>,
    mut load: impl FnMut(&Checkpoint) -> Result<T>,
) -> Result<(Option<T>, Vec<Error>)> {
    let mut skipped = Vec::new();
    let mut loaded_checkpoint = None;
    let mut stores = store.levels();
    if stores.is_empty() {
        stores.push(store.clone());
    }
    let mut listed = stores
        .iter()
        .map(list)
        .collect::<Result<Vec<Vec<_>>>>()?
        .into_iter()
        .flatten()
        .collect::<Vec<_>>();
    listed.sort_by_key(newest_first);
    for ListedCheckpoint { checkpoint, .. } in listed {
        match checkpoint {
            Ok(checkpoint) if loaded_checkpoint.is_none() => match load(&checkpoint) {
                Ok(loaded) => loaded_checkpoint = Some(loaded),
                Err(error) => skipped.push(error),
            },
            Ok(_) => {}
            Err(error) => skipped.push(error),
        }
    }
    Ok((loaded_checkpoint, skipped))
}

/// Whether a smaller or a larger score is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Smaller is better, as for a loss.
    #[default]
    Min,
    /// Larger is better, as for an accuracy.
    Max,
}

/// Which checkpoints to keep: the best by score and the last by step. The newest one is always
/// kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// How many of the best checkpoints to keep. Checkpoints without a score do not count.
    pub best: usize,
    /// How many of the last checkpoints to keep; 0 means 1.
    pub last: usize,
    /// Whether smaller or larger scores are better.
    pub mode: Mode,
}

impl RetentionPolicy {
    /// The indices to keep, given `(step, score)` with the newest first.
    fn kept_indices(&self, checkpoints: &[(u64, Option<f64>)]) -> BTreeSet<usize> {
        let mut scored: Vec<(usize, f64)> = checkpoints
            .iter()
            .enumerate()
            .filter_map(|(i, (_, score))| Some((i, (*score)?)))
            .collect();
        // Among equal scores, the newer checkpoint comes first.
        scored.sort_by(
            |(_, a), (_, b)| if self.mode == Mode::Min { a.total_cmp(b) } else { b.total_cmp(a) },
        );
        let best = scored.into_iter().take(self.best).map(|(i, _)| i);
        (0..checkpoints.len().min(self.last.max(1))).chain(best).collect()
    }
}

/// Removes the checkpoints that this policy does not keep, and returns their names. The manifest is
/// removed first, so that a half-removed checkpoint is not valid. Damaged and unfinished
/// checkpoints are neither counted nor removed, so the last good one stays.
///
/// # Errors
/// The store cannot be listed, or a checkpoint cannot be removed.
///
/// ```
/// # use std::sync::Arc;
/// # use fulmen_checkpoint::{CheckpointWriter, Dtype, RetentionPolicy, LocalStore, Part, Run, Store, prune};
/// # let folder = tempfile::tempdir()?;
/// let store: Arc<dyn Store> = Arc::new(LocalStore::new(folder.path()));
/// # for step in 1..=3 {
/// #     let writer = CheckpointWriter::new(store.clone(), &format!("step_{step}"))?;
/// #     let shards = vec![writer.shard("s.safetensors", Vec::new())?.commit()?];
/// #     writer.commit(Run { step, ..Run::default() }, shards)?;
/// # }
/// // Of step_1, step_2 and step_3:
/// let removed = prune(&store, &RetentionPolicy { last: 2, ..RetentionPolicy::default() })?;
/// assert_eq!(removed, ["step_1"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn prune(store: &Arc<dyn Store>, policy: &RetentionPolicy) -> Result<Vec<String>> {
    let valid: Vec<Checkpoint> =
        list(store)?.into_iter().filter_map(|listed| listed.checkpoint.ok()).collect();
    let steps_and_scores: Vec<_> = valid
        .iter()
        .map(|checkpoint| (step(checkpoint), checkpoint.manifest().run.score))
        .collect();
    let kept = policy.kept_indices(&steps_and_scores);
    let mut removed = Vec::new();
    for (_, checkpoint) in valid.iter().enumerate().filter(|(i, _)| !kept.contains(i)) {
        remove(store, checkpoint.name())?;
        removed.push(checkpoint.name().to_owned());
    }
    Ok(removed)
}

/// The file name extension of shards.
pub(crate) const SHARD_EXTENSION: &str = ".safetensors";

/// Whether a file has the name of a shard that a process wrote, such as `shard_0.safetensors` or
/// `shard_12-3.safetensors`. Other files in the folder of a checkpoint belong to the user.
fn is_shard(file: &str) -> bool {
    let number = file.strip_prefix("shard_").and_then(|rest| rest.strip_suffix(SHARD_EXTENSION));
    number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-'))
}

/// Removes a checkpoint, its manifest first. Does nothing if there is none.
///
/// # Errors
/// The store cannot be read, or a file cannot be removed.
pub fn remove(store: &Arc<dyn Store>, name: &str) -> Result<()> {
    if !files(&**store, name)?.iter().any(|file| file == MANIFEST) {
        return Ok(());
    }
    let shards: Vec<String> = Checkpoint::open(store.clone(), name)
        .iter()
        .flat_map(|checkpoint| checkpoint.manifest().shards.iter())
        .map(|shard| shard.file.clone())
        .collect();
    remove_file(&**store, name, MANIFEST)?;
    remove_shards(&**store, name, |_| true)?;
    shards.iter().try_for_each(|file| remove_file(&**store, name, file))
}

/// Removes the shards that killed writers left behind: files such as `shard_0.safetensors` that no
/// manifest names. Call it only while nothing else writes to the store. A folder whose manifest is
/// damaged is left alone.
///
/// # Errors
/// The store cannot be read, or a file cannot be removed.
///
/// ```
/// # use std::sync::Arc;
/// # use fulmen_checkpoint::{CheckpointWriter, LocalStore, Store, remove_unfinished};
/// # let folder = tempfile::tempdir()?;
/// let store: Arc<dyn Store> = Arc::new(LocalStore::new(folder.path()));
/// CheckpointWriter::new(store.clone(), "step_1")?.shard("shard_0.safetensors", Vec::new())?.commit()?;
/// // No manifest was written.
/// remove_unfinished(&store)?;
/// assert!(store.list("")?.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn remove_unfinished(store: &Arc<dyn Store>) -> Result<()> {
    for ListedCheckpoint { name, checkpoint } in list(store)? {
        match checkpoint {
            Ok(checkpoint) => {
                remove_shards(&**store, &name, |file| checkpoint.manifest().shard(file).is_none())?
            }
            Err(_) if files(&**store, &name)?.iter().any(|file| file == MANIFEST) => {}
            Err(_) => remove_shards(&**store, &name, |_| true)?,
        }
    }
    Ok(())
}

/// The names of the files in a folder; empty if there is no such folder.
pub(crate) fn files(store: &dyn Store, folder: &str) -> Result<Vec<String>> {
    match store.list(folder) {
        Ok(entries) => Ok(entries
            .into_iter()
            .filter(|entry| entry.bytes.is_some())
            .map(|entry| entry.name)
            .collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error::io("read", &store.describe(folder), error)),
    }
}

/// Removes those shards of a folder for which `unused` is true.
pub(crate) fn remove_shards(
    store: &dyn Store,
    folder: &str,
    unused: impl Fn(&str) -> bool,
) -> Result<()> {
    let shards = files(store, folder)?.into_iter().filter(|file| is_shard(file) && unused(file));
    shards.into_iter().try_for_each(|file| remove_file(store, folder, &file))
}

pub(crate) fn remove_file(store: &dyn Store, folder: &str, file: &str) -> Result<()> {
    let name = join(folder, file);
    match store.remove(&name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error::io("remove", &store.describe(&name), error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_and_the_last_are_kept_and_the_newest_always() {
        let checkpoints =
            [(5, Some(0.9)), (4, Some(0.2)), (3, None), (2, Some(0.1)), (1, Some(0.2))];
        let check = |best, last, mode, expected: &[usize]| {
            let kept = RetentionPolicy { best, last, mode }.kept_indices(&checkpoints);
            assert_eq!(kept.into_iter().collect::<Vec<_>>(), expected, "{best} {last} {mode:?}");
        };
        check(0, 0, Mode::Min, &[0]);
        check(0, 3, Mode::Min, &[0, 1, 2]);
        check(2, 1, Mode::Min, &[0, 1, 3]);
        check(1, 1, Mode::Max, &[0]);
        check(9, 9, Mode::Max, &[0, 1, 2, 3, 4]);
    }
}
