//! [`copy`]: copies a checkpoint to another store.

use std::sync::Arc;

use crate::store::Store;
use crate::{Checkpoint, CheckpointWriter, Manifest, Part, Result};

/// Copies a checkpoint to another store, under the same name. Each block is compared with its
/// checksum, and the manifest is written last, so a checkpoint of that name remains valid until
/// then. Holds at most 17 MiB in memory.
///
/// # Errors
/// The checkpoint is damaged or cannot be read; the store cannot be written or is full.
///
/// ```
/// # use std::sync::Arc;
/// # use fulmen_checkpoint::{Checkpoint, CheckpointWriter, LocalStore, Run, Store, copy};
/// # let folder = tempfile::tempdir()?;
/// let [from, to] = ["memory", "disk"].map(|name| Arc::new(LocalStore::new(folder.path().join(name))));
/// # let writer = CheckpointWriter::new(from.clone(), "step_1")?;
/// # let shards = vec![writer.shard("s.safetensors", Vec::new())?.commit()?];
/// # writer.commit(Run { step: 1, ..Run::default() }, shards)?;
/// copy(&Checkpoint::open(from, "step_1")?, to.clone())?;
/// assert_eq!(Checkpoint::open(to, "step_1")?.manifest().run.step, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn copy(checkpoint: &Checkpoint, to: Arc<dyn Store>) -> Result<Manifest> {
    copy_while(checkpoint, to, &|| Ok(()))
}

/// Like [`copy`], but stops when `check` fails.
pub(crate) fn copy_while(
    checkpoint: &Checkpoint,
    to: Arc<dyn Store>,
    check: &dyn Fn() -> Result<()>,
) -> Result<Manifest> {
    let manifest = checkpoint.manifest();
    let writer = CheckpointWriter::new(to, checkpoint.name())?;
    let mut shards = Vec::new();
    for shard in &manifest.shards {
        checkpoint.verify_header(&shard.file)?;
        let parts = manifest.parts_in(&shard.file);
        let part = |(name, tensor, part): &(&str, &crate::TensorEntry, &crate::PartEntry)| {
            Part::slice(*name, tensor.dtype, tensor.shape.clone(), part.rectangle.clone())
        };
        let mut written = writer.shard(&shard.file, parts.iter().map(part).collect())?;
        for (name, tensor, part) in parts {
            checkpoint.blocks(name, tensor, part).try_each(|block| {
                check()?;
                written.write(block?)
            })?;
        }
        shards.push(written.commit()?);
    }
    writer.commit(manifest.run.clone(), shards)
}
