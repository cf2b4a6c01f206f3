//! [`merge`]: writes the tensors of a checkpoint as plain safetensors files, which every reader of
//! the format opens.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::json;

use crate::checkpoint::join;
use crate::shard::bytes_of;
use crate::store::Store;
use crate::{Checkpoint, Error, Part, Result, ShardWriter};

/// The prefix of the names of optimizer state.
pub const OPTIMIZER_PREFIX: &str = "optimizer/";
/// The prefix of the names of the Trainer's own state.
pub const TRAINER_PREFIX: &str = "trainer/";

/// Whether a value belongs to an optimizer or to the Trainer, rather than to the module.
pub fn is_training_state(name: &str) -> bool {
    name.starts_with(OPTIMIZER_PREFIX) || name.starts_with(TRAINER_PREFIX)
}

/// Options for a merge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeOptions {
    /// Whether to write only the module's tensors, without [training state](is_training_state).
    pub weights_only: bool,
    /// The size limit of a file in bytes; a larger tensor gets a separate file. `None` writes one
    /// file.
    pub max_shard_bytes: Option<u64>,
}

impl MergeOptions {
    fn selects(&self, name: &str) -> bool {
        !self.weights_only || !is_training_state(name)
    }
}

/// Writes the whole tensors of a checkpoint into a folder of a store, under their names. The result
/// is one file `model.safetensors` or, with `max_shard_bytes`, several files with an index, named
/// like Hugging Face's. Returns the names of the files. Holds at most 64 MiB in memory.
///
/// # Errors
/// The checkpoint is damaged or has no such tensors; the folder is not empty, cannot be written, or
/// is full.
pub fn merge(
    checkpoint: &Checkpoint,
    to: &dyn Store,
    folder: &str,
    options: &MergeOptions,
) -> Result<Vec<String>> {
    if to.list(folder).is_ok_and(|entries| !entries.is_empty()) {
        let location = to.describe(folder);
        return Err(Error::usage(format!(
            "{location}: the folder is not empty; choose a new one, so that files of two models do not mix"
        )));
    }
    let tensors = checkpoint.manifest().tensors.iter().filter(|(name, _)| options.selects(name));
    let mut files: Vec<(u64, Vec<Part>)> = Vec::new();
    for (name, tensor) in tensors {
        let bytes = bytes_of(tensor.dtype, &tensor.shape).unwrap_or_default();
        let part = Part::whole(name, tensor.dtype, tensor.shape.clone());
        match files.last_mut() {
            Some((filled, parts))
                if options.max_shard_bytes.is_none_or(|limit| *filled + bytes <= limit) =>
            {
                *filled += bytes;
                parts.push(part);
            }
            _ => files.push((bytes, vec![part])),
        }
    }
    if files.is_empty() {
        return Err(Error::usage(format!("{}: there are no tensors to merge", checkpoint.name())));
    }
    let count = files.len();
    let total: u64 = files.iter().map(|(bytes, _)| bytes).sum();
    let (mut names, mut weight_map) = (Vec::new(), BTreeMap::new());
    for (i, (_, parts)) in files.into_iter().enumerate() {
        let file = match options.max_shard_bytes {
            None => "model.safetensors".to_owned(),
            Some(_) => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
        };
        weight_map.extend(parts.iter().map(|part| (part.name().to_owned(), file.clone())));
        let mut writer = ShardWriter::new(to, folder, &file, parts)?;
        while let Some(name) = writer.next_part().map(|part| part.name().to_owned()) {
            checkpoint.stream(&name, |bytes| writer.write(bytes))?;
        }
        writer.commit()?;
        names.push(file);
    }
    if options.max_shard_bytes.is_some() {
        let index =
            json!({ "metadata": { "total_size": total }, "weight_map": weight_map }).to_string();
        let name = join(folder, "model.safetensors.index.json");
        let write = || {
            let mut file = to.create(&name, index.len() as u64)?;
            file.write_all(index.as_bytes())?;
            file.commit()
        };
        write().map_err(|e| Error::io("write", &to.describe(&name), e))?;
    }
    Ok(names)
}
