//! [`CheckpointWriter`]: writes the shards of many processes, and the manifest that makes them a
//! checkpoint.

use std::io::{ErrorKind, Write};
use std::iter;
use std::sync::Arc;

use crate::manifest::{ShardEntry, is_plain};
use crate::retention::{SHARD_EXTENSION, files, remove_shards};
use crate::store::Store;
use crate::{Error, MANIFEST, Manifest, Part, Result, Run, ShardWriter, WrittenShard, error};

/// A checkpoint that is being written. Each process has a writer for its own shards; one process
/// commits them all.
#[derive(Clone, Debug)]
pub struct CheckpointWriter {
    store: Arc<dyn Store>,
    name: String,
}

impl CheckpointWriter {
    /// Begins the checkpoint `name` of a store. An existing checkpoint of that name stays valid
    /// until [`commit`](Self::commit).
    ///
    /// # Errors
    /// The name is not a valid folder name.
    pub fn new(store: Arc<dyn Store>, name: &str) -> Result<CheckpointWriter> {
        if !is_plain(name) {
            return Err(Error::usage(format!(
                "`{name}` is not a valid checkpoint name: use letters, digits, `-`, `_` and `=`, as in step_100"
            )));
        }
        Ok(CheckpointWriter { store, name: name.to_owned() })
    }

    /// Begins a shard with these parts. No other process may use the name `file`. If the folder
    /// already has that file, for example from the checkpoint to be replaced, a number is added to
    /// the name.
    ///
    /// # Errors
    /// A part is given twice or exceeds its tensor; the store cannot be written or is full.
    pub fn shard(&self, file: &str, parts: Vec<Part>) -> Result<ShardWriter> {
        let Some(stem) = file.strip_suffix(SHARD_EXTENSION).filter(|_| is_plain(file)) else {
            return Err(Error::usage(format!(
                "`{file}` is not a valid shard name; use a name like shard_0{SHARD_EXTENSION}"
            )));
        };
        let existing = files(&*self.store, &self.name)?;
        let names = iter::once(file.to_owned())
            .chain((1..).map(|n: u64| format!("{stem}-{n}{SHARD_EXTENSION}")));
        let free = names.filter(|name| !existing.contains(name)).take(1).collect::<String>();
        ShardWriter::new(&*self.store, &self.name, &free, parts)
    }

    /// The index of the first shard that this process does not see in the store. That of another
    /// process is not there if each host has a folder of its own. `None` is a process without a
    /// shard.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn first_missing(&self, shards: &[Option<WrittenShard>]) -> Result<Option<usize>> {
        let failed = |e| error::io("read", &self.store.describe(&self.name), e);
        let entries = match self.store.list(&self.name) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            listed => listed.map_err(failed)?,
        };
        let is_seen = |shard: &ShardEntry| {
            let listed = entries.iter().find(|entry| entry.name == shard.file);
            listed.is_some_and(|entry| entry.bytes == Some(shard.bytes)) || self.has_length(shard)
        };
        let is_missing = |shard: &Option<WrittenShard>| {
            shard.as_ref().is_some_and(|written| !is_seen(&written.shard))
        };
        Ok(shards.iter().position(is_missing))
    }

    /// Whether a file has the length of its entry. A network file system may list a folder as it was,
    /// but it looks again when a file is opened.
    fn has_length(&self, shard: &ShardEntry) -> bool {
        let name = format!("{}/{}", self.name, shard.file);
        let has_byte = |index: u64| self.store.read(&name, index, &mut [0]).is_ok();
        shard.bytes.checked_sub(1).is_some_and(has_byte) && !has_byte(shard.bytes)
    }

    /// Writes the manifest, from the shards of all processes. This replaces the checkpoint of that
    /// name, and the shards of the previous one are removed.
    ///
    /// # Errors
    /// The shards do not hold each element of each tensor once; the store cannot be written or is
    /// full.
    pub fn commit(self, run: Run, shards: Vec<WrittenShard>) -> Result<Manifest> {
        let manifest = Manifest::new(run, shards)?;
        let bytes = manifest.to_bytes()?;
        let name = format!("{}/{MANIFEST}", self.name);
        let write = || {
            let mut file = self.store.create(&name, bytes.len() as u64)?;
            file.write_all(&bytes)?;
            file.commit()
        };
        write().map_err(|e| error::io("write", &self.store.describe(&name), e))?;
        // The checkpoint is complete. A leftover shard takes space until the next one.
        let _ = remove_shards(&*self.store, &self.name, |file| manifest.shard(file).is_none());
        Ok(manifest)
    }
}
