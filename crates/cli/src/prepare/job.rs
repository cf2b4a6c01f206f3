//! The steps that preparing any dataset has in common: existing shards, disk space, threads,
//! uploads, the manifest.
//!
//! Out of scope: the content of the shards (`run`, `text`).

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::journal::Journal;
use super::manifest::{MANIFEST, Manifest, ShardRecord};
use super::options::PrepareOptions;
use super::plan::PlannedShard;
use super::progress::Progress;
use super::shard_file::sha256_of;
use super::upload::Destination;
use fulmen_data::internal::in_parallel;
use fulmen_data::{Error, Result};
use fulmen_durable::messages::size;
use fulmen_files as store;

/// The disk space to leave free.
const RESERVED_BYTES: u64 = 64 << 20;

/// The state of a shard.
pub(crate) enum State {
    /// The shard is missing or has changed.
    Missing,
    /// The shard is in the output folder, but not uploaded yet.
    Written(ShardRecord),
    /// The shard is complete.
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

/// A running job.
pub(crate) struct Job<'a> {
    pub(crate) options: &'a PrepareOptions,
    pub(crate) journal: &'a Journal,
    pub(crate) progress: &'a dyn Progress,
}

impl Job<'_> {
    fn destination(&self) -> Option<Destination<'_>> {
        let folder = self.options.upload.as_ref()?;
        Some(Destination { folder, journal: self.journal, progress: self.progress })
    }

    /// Removes unfinished files of an interrupted run, and checks the upload target, so that its
    /// errors are reported now and not after hours.
    pub(crate) fn begin(&self) -> Result<()> {
        let PrepareOptions { output, upload, .. } = self.options;
        store::remove_leftovers(output)?;
        let Some(to) = upload else { return Ok(()) };
        let Some(local) = to.local() else { return to.join(MANIFEST).exists().map(drop) };
        std::fs::create_dir_all(local)
            .map_err(|source| Error::io(local, "creating the upload folder", source))?;
        let identity =
            |path: &Path| path.metadata().map(|metadata| (metadata.dev(), metadata.ino())).ok();
        if identity(local) == identity(output) {
            return Err(Error::usage(format!(
                "{to}: the upload target is the folder that the shards are written to; choose another folder, or none"
            )));
        }
        Ok(())
    }

    /// The states of these shards.
    pub(crate) fn states(&self, shards: &[PlannedShard]) -> Result<Vec<State>> {
        let written = |shard: &PlannedShard| {
            self.journal.shard(&shard.name).filter(|it| it.bytes == shard.bytes)
        };
        let records: Vec<Option<ShardRecord>> = shards.iter().map(written).collect();
        self.recorded_states(&records)
    }

    /// The states of the shards that earlier runs recorded.
    pub(crate) fn recorded_states(&self, records: &[Option<ShardRecord>]) -> Result<Vec<State>> {
        let is_local = |record: &ShardRecord| {
            let size =
                self.options.output.join(&record.name).metadata().map(|metadata| metadata.len());
            size.is_ok_and(|size| size == record.bytes)
        };
        let bytes: u64 = records
            .iter()
            .flatten()
            .filter(|record| is_local(record))
            .map(|record| record.bytes)
            .sum();
        if self.options.verify && bytes > 0 {
            self.progress.begin("verifying the shards that are there", bytes);
        }
        let destination = self.destination();
        in_parallel(records, self.options.threads, |record| {
            let Some(record) = record else { return Ok(State::Missing) };
            let is_local = is_local(record);
            if is_local && self.options.verify {
                let path = self.options.output.join(&record.name);
                let actual = sha256_of(&path, |bytes| self.progress.advance(bytes))
                    .map_err(|source| Error::io(&path, "reading the shard", source))?;
                if actual != record.sha256 {
                    self.progress.note(&format!(
                        "{}: its checksum has changed; writing it again",
                        record.name
                    ));
                    return Ok(State::Missing);
                }
            }
            let uploaded = match &destination {
                Some(destination) => destination.has(record)?,
                None => false,
            };
            Ok(match (is_local, uploaded) {
                (true, true) => {
                    // An earlier run may have ended between uploading and deleting the shard.
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

    /// Uploads a shard, if there is an upload target.
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
        std::fs::remove_file(&path)
            .map_err(|source| Error::io(&path, "deleting the uploaded shard", source))
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

/// Returns an error if the disk does not have enough space.
pub(crate) fn check_free_space(folder: &Path, bytes: u64) -> Result<()> {
    let room = fulmen_durable::available_space(folder)
        .map_err(|source| Error::io(folder, "querying the free disk space", source))?;
    let needed = bytes.saturating_add(if bytes == 0 { 0 } else { RESERVED_BYTES });
    if needed <= room {
        return Ok(());
    }
    let message = format!(
        "the remaining shards need {}, but the disk has {} free: {} are missing; free some space, \
         or use a folder on another disk",
        size(needed),
        size(room),
        size(needed - room)
    );
    Err(Error::io(folder, &message, ErrorKind::StorageFull.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_without_enough_space_is_an_error_with_numbers() {
        let folder = tempfile::tempdir().unwrap();
        check_free_space(folder.path(), 0).unwrap();
        let error = check_free_space(folder.path(), 1 << 60).unwrap_err();
        assert!(error.is_disk_full());
        let error = error.to_string();
        assert!(error.contains("need 1152921.5 TB") && error.contains("are missing"), "{error}");
    }
}
