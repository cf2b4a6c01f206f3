//! [`CheckpointWriter`]: shards of many processes, and the manifest that makes them a checkpoint.

use std::io::{self, Write};
use std::sync::Arc;

use crate::manifest::is_plain;
use crate::store::Store;
use crate::{Error, MANIFEST, Manifest, Part, Result, Run, ShardWriter, WrittenShard};

/// A checkpoint that is being written. Each process has one, for shards of its own names. One process commits them all.
#[derive(Clone, Debug)]
pub struct CheckpointWriter {
    store: Arc<dyn Store>,
    name: String,
}

impl CheckpointWriter {
    /// Begins the checkpoint `name` of a store. What a killed run left under the name is written over.
    ///
    /// # Errors
    /// The name is not that of a folder; there is a checkpoint of that name.
    pub fn new(store: Arc<dyn Store>, name: &str) -> Result<CheckpointWriter> {
        if !is_plain(name) {
            return Err(Error::usage(format!(
                "`{name}` cannot name a checkpoint: use letters, digits, `-`, `_` and `=`, as in step_100"
            )));
        }
        let taken = match store.list(name) {
            Ok(entries) => entries.iter().any(|entry| entry.name == MANIFEST),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(Error::io("read", &store.describe(name), error)),
        };
        if taken {
            let place = store.describe(name);
            return Err(Error::usage(format!("{place}: there is a checkpoint of that name; use another name")));
        }
        Ok(CheckpointWriter { store, name: name.to_owned() })
    }

    /// Begins a shard of these parts. No other process may use the name `file`.
    ///
    /// # Errors
    /// A part that is twice there or does not lie within its tensor; the store cannot be written to, or is full.
    pub fn shard(&self, file: &str, parts: Vec<Part>) -> Result<ShardWriter> {
        if !is_plain(file) || file == MANIFEST {
            return Err(Error::usage(format!("`{file}` cannot name a shard; name it as in shard_0.safetensors")));
        }
        ShardWriter::new(&*self.store, &self.name, file, parts)
    }

    /// Writes the manifest, from the shards of all processes. From now on there is a checkpoint.
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
        Ok(manifest)
    }
}
