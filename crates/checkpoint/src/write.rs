//! [`CheckpointWriter`]: shards of many processes, and the manifest that makes them a checkpoint.

use std::io::Write;
use std::iter;
use std::sync::Arc;

use crate::manifest::is_plain;
use crate::retention::{SHARD, files, remove_shards};
use crate::store::Store;
use crate::{Error, MANIFEST, Manifest, Part, Result, Run, ShardWriter, WrittenShard};

/// A checkpoint that is being written. Each process has one, for shards of its own names. One process commits them all.
#[derive(Clone, Debug)]
pub struct CheckpointWriter {
    store: Arc<dyn Store>,
    name: String,
}

impl CheckpointWriter {
    /// Begins the checkpoint `name` of a store. One that has the name stays as it is until [`commit`](Self::commit).
    ///
    /// # Errors
    /// The name is not that of a folder.
    pub fn new(store: Arc<dyn Store>, name: &str) -> Result<CheckpointWriter> {
        if !is_plain(name) {
            return Err(Error::usage(format!(
                "`{name}` cannot name a checkpoint: use letters, digits, `-`, `_` and `=`, as in step_100"
            )));
        }
        Ok(CheckpointWriter { store, name: name.to_owned() })
    }

    /// Begins a shard of these parts. No other process may use the name `file`. If the folder has a file of that name, of the
    /// checkpoint that is replaced say, a number is added to it.
    ///
    /// # Errors
    /// A part that is twice there or does not lie within its tensor; the store cannot be written to, or is full.
    pub fn shard(&self, file: &str, parts: Vec<Part>) -> Result<ShardWriter> {
        let Some(stem) = file.strip_suffix(SHARD).filter(|_| is_plain(file)) else {
            return Err(Error::usage(format!("`{file}` cannot name a shard; name it as in shard_0{SHARD}")));
        };
        let taken = files(&*self.store, &self.name)?;
        let names = iter::once(file.to_owned()).chain((1..).map(|n: u64| format!("{stem}-{n}{SHARD}")));
        let free = names.filter(|name| !taken.contains(name)).take(1).collect::<String>();
        ShardWriter::new(&*self.store, &self.name, &free, parts)
    }

    /// Writes the manifest, from the shards of all processes. From now on this is the checkpoint of the name, and the shards
    /// of the one before are removed.
    ///
    /// # Errors
    /// The shards do not hold each element of each tensor once; the store cannot be written to, or is full.
    pub fn commit(self, run: Run, shards: Vec<WrittenShard>) -> Result<Manifest> {
        let manifest = Manifest::new(run, shards)?;
        let bytes = manifest.to_bytes()?;
        let name = format!("{}/{MANIFEST}", self.name);
        let write = || {
            let mut file = self.store.create(&name, bytes.len() as u64)?;
            file.write_all(&bytes)?;
            file.commit()
        };
        write().map_err(|e| Error::io("write", &self.store.describe(&name), e))?;
        // The checkpoint is whole. A shard that stays takes room until the next one.
        let _ = remove_shards(&*self.store, &self.name, |file| manifest.shard(file).is_none());
        Ok(manifest)
    }
}
