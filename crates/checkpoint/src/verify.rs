//! [`verify`]: compares every byte of a checkpoint with its checksums.

use sha2::{Digest, Sha256};

use crate::manifest::hex;
use crate::{Checkpoint, Error, Result, ShardEntry, error};

/// Compares every byte with its checksums and returns everything that is damaged; empty if the
/// checkpoint is intact.
///
/// ```
/// # use std::sync::Arc;
/// # use fulmen_checkpoint::{Checkpoint, CheckpointWriter, Dtype, LocalStore, Part, Run, verify};
/// # let folder = tempfile::tempdir()?;
/// # let store = Arc::new(LocalStore::new(folder.path()));
/// # let writer = CheckpointWriter::new(store.clone(), "step_1")?;
/// # let mut shard = writer.shard("s.safetensors", vec![Part::whole("w", Dtype::U8, [2])])?;
/// # shard.write(&[1, 2])?;
/// # let shards = vec![shard.commit()?];
/// # writer.commit(Run::default(), shards)?;
/// let checkpoint = Checkpoint::open(store, "step_1")?;
/// assert!(verify(&checkpoint).is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn verify(checkpoint: &Checkpoint) -> Vec<Error> {
    checkpoint.manifest().shards.iter().flat_map(|shard| verify_shard(checkpoint, shard)).collect()
}

fn verify_shard(checkpoint: &Checkpoint, shard: &ShardEntry) -> Vec<Error> {
    let mut hash = Sha256::new();
    let mut damaged = Vec::new();
    let mut take = |read: Result<&[u8]>| match read {
        Ok(bytes) => hash.update(bytes),
        Err(error) => damaged.push(error),
    };
    match checkpoint.header(&shard.file) {
        Ok(header) => take(Ok(&header)),
        Err(error) => take(Err(error)),
    }
    for (name, tensor, part) in checkpoint.manifest().parts_in(&shard.file) {
        let blocks = checkpoint.blocks(name, tensor, part);
        // `take` has received every damaged block.
        let _ = blocks.try_each(|block| {
            take(block);
            Ok(())
        });
    }
    if damaged.is_empty() && hex(hash.finalize().as_ref()) != shard.sha256 {
        let location = checkpoint.location(&shard.file);
        damaged
            .push(error::damaged(format_args!("{location}: the file does not match its SHA-256")));
    }
    damaged
}
