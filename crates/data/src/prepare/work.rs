//! What runs of all datasets share: which shards are there, room on the disk, threads, uploads, the end.
//!
//! Not here: what the shards are made of (`run`, `text`).

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::journal::Journal;
use super::manifest::{MANIFEST, Manifest, ShardRecord};
use super::options::PrepareOptions;
use super::plan::PlannedShard;
use super::progress::Progress;
use super::shard_file::sha256_of;
use super::upload::Destination;
use crate::{Error, Result};

/// What a disk should have left when all is written.
const SPARE: u64 = 64 << 20;

/// How far a shard is.
pub(crate) enum State {
    /// Not written, or not what it was.
    Missing,
    /// In the output's folder, but not where it is to be uploaded to.
    Written(ShardRecord),
    /// Where it should be.
    Done(ShardRecord),
}

impl State {
    pub(crate) fn record(&self) -> Option<ShardRecord> {
        match self {
            State::Missing => None,
            State::Written(record) | State::Done(record) => Some(record.clone()),
        }
    }
}

/// A run under way.
pub(crate) struct Work<'a> {
    pub(crate) options: &'a PrepareOptions,
    pub(crate) journal: &'a Journal,
    pub(crate) progress: &'a dyn Progress,
}

impl Work<'_> {
    fn destination(&self) -> Option<Destination<'_>> {
        let folder = self.options.upload.as_ref()?;
        Some(Destination { folder, journal: self.journal, progress: self.progress })
    }

    /// How far these shards are.
    pub(crate) fn states(&self, shards: &[PlannedShard]) -> Result<Vec<State>> {
        let written = |shard: &PlannedShard| self.journal.shard(&shard.name).filter(|it| it.bytes == shard.bytes);
        let records: Vec<Option<ShardRecord>> = shards.iter().map(written).collect();
        self.states_of(&records)
    }

    /// How far the shards are that earlier runs wrote down.
    pub(crate) fn states_of(&self, records: &[Option<ShardRecord>]) -> Result<Vec<State>> {
        let here = |record: &ShardRecord| {
            let size = self.options.output.join(&record.name).metadata().map(|metadata| metadata.len());
            size.is_ok_and(|size| size == record.bytes)
        };
        let bytes: u64 = records.iter().flatten().filter(|record| here(record)).map(|record| record.bytes).sum();
        if self.options.verify && bytes > 0 {
            self.progress.begin("verifying the shards that are there", bytes);
        }
        let destination = self.destination();
        in_parallel(records, self.options.threads, |record| {
            let Some(record) = record else { return Ok(State::Missing) };
            let here = here(record);
            if here && self.options.verify {
                let path = self.options.output.join(&record.name);
                let found = sha256_of(&path, |bytes| self.progress.advance(bytes))
                    .map_err(|source| Error::io(&path, "reading the shard", source))?;
                if found != record.sha256 {
                    self.progress
                        .note(&format!("{}: its checksum is not what it was; it is written again", record.name));
                    return Ok(State::Missing);
                }
            }
            let uploaded = match &destination {
                Some(destination) => destination.has(record)?,
                None => false,
            };
            Ok(match (here, uploaded) {
                (true, true) => {
                    // A run may have ended between the two.
                    self.delete(record)?;
                    State::Done(record.clone())
                }
                (false, true) if self.options.delete_uploaded => State::Done(record.clone()),
                (true, false) if destination.is_none() => State::Done(record.clone()),
                (true, false) => State::Written(record.clone()),
                (false, _) => State::Missing,
            })
        })
    }

    /// Brings a shard to where it is to be uploaded to, if it is.
    pub(crate) fn upload(&self, record: &ShardRecord) -> Result<()> {
        let Some(destination) = self.destination() else { return Ok(()) };
        destination.upload_shard(&self.options.output, record)?;
        self.delete(record)
    }

    fn delete(&self, record: &ShardRecord) -> Result<()> {
        if !self.options.delete_uploaded {
            return Ok(());
        }
        let path = self.options.output.join(&record.name);
        std::fs::remove_file(&path).map_err(|source| Error::io(&path, "deleting the uploaded shard", source))
    }

    /// Writes the manifest, and uploads it.
    pub(crate) fn finish(&self, manifest: &Manifest) -> Result<()> {
        manifest.write(&self.options.output)?;
        let Some(destination) = self.destination() else { return Ok(()) };
        let path = self.options.output.join(MANIFEST);
        let reading = |source| Error::io(&path, "reading the manifest", source);
        let sha256 = sha256_of(&path, |_| ()).map_err(reading)?;
        let bytes = path.metadata().map_err(reading)?.len();
        destination.upload(&path, MANIFEST, bytes, &sha256)
    }
}

/// Refuses to begin what the disk has no room for.
pub(crate) fn check_room(folder: &Path, bytes: u64) -> Result<()> {
    let room =
        fs4::available_space(folder).map_err(|source| Error::io(folder, "asking for room on the disk", source))?;
    let needed = bytes.saturating_add(if bytes == 0 { 0 } else { SPARE });
    if needed <= room {
        return Ok(());
    }
    let gigabytes = |bytes: u64| bytes as f64 / 1e9;
    Err(Error::file(
        folder,
        format!(
            "the shards still to be written need {:.1} GB and the disk has room for {:.1} GB: {:.1} GB are missing; make \
             room, or give a folder on another disk",
            gigabytes(needed),
            gigabytes(room),
            gigabytes(needed - room)
        ),
    ))
}

/// The results for all items, in their order, by several threads. The first error ends the work.
pub(crate) fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let results = Mutex::new((items.iter().map(|_| None).collect::<Vec<Option<R>>>(), None));
    let one = || {
        while !failed.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return };
            let result = work(item);
            let mut results = results.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            match result {
                Ok(result) => results.0[at] = Some(result),
                Err(error) => {
                    failed.store(true, Ordering::Relaxed);
                    results.1.get_or_insert(error);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(items.len()) {
            // Where no thread can be had, those that are there do the work.
            let _ = std::thread::Builder::new().name("fulmen-prepare".to_owned()).spawn_scoped(scope, one);
        }
        one();
    });
    let (results, error) = results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    match error {
        Some(error) => Err(error),
        None => Ok(results.into_iter().flatten().collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_without_room_is_refused_with_numbers() {
        let folder = tempfile::tempdir().unwrap();
        check_room(folder.path(), 0).unwrap();
        let error = check_room(folder.path(), 1 << 60).unwrap_err().to_string();
        assert!(error.contains("need 1152921504.7 GB") && error.contains("are missing"), "{error}");
    }

    #[test]
    fn work_in_parallel_keeps_order_and_ends_at_an_error() {
        let items: Vec<u32> = (0..100).collect();
        assert_eq!(in_parallel(&items, 7, |&item| Ok(item * 2)).unwrap()[99], 198);
        let error = in_parallel(&items, 3, |&item| match item {
            40 => Err(Error::new("forty")),
            _ => Ok(item),
        });
        assert_eq!(error.unwrap_err().to_string(), "forty");
    }
}
