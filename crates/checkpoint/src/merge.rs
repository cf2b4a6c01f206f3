//! [`merge`]: the tensors of a checkpoint as plain safetensors files, which every reader of the format opens.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::json;

use crate::read::join;
use crate::shard::bytes_of;
use crate::store::Store;
use crate::{Checkpoint, Error, Part, Result, ShardWriter};

/// The beginning of the names of what optimizers remember.
pub const OPTIMIZER: &str = "optimizer/";
/// The beginning of the names of what is the Trainer's own.
pub const TRAINER: &str = "trainer/";

/// Whether a value belongs to an optimizer or to the Trainer, and not to the module.
pub fn is_training_state(name: &str) -> bool {
    name.starts_with(OPTIMIZER) || name.starts_with(TRAINER)
}

/// What a merge writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Merge {
    /// Only the module's tensors, without those of [training](is_training_state).
    pub weights_only: bool,
    /// The tensors of one file, in bytes; a larger tensor has a file of its own. `None` is one file.
    pub max_shard_bytes: Option<u64>,
}

impl Merge {
    fn takes(&self, name: &str) -> bool {
        !self.weights_only || !is_training_state(name)
    }
}

/// Writes the tensors of a checkpoint into a folder of a store, whole, under their names: one file `model.safetensors`, or
/// with `max_shard_bytes` several as Hugging Face names them, with their index. It gives the names of the files. At most 64
/// MiB are held.
///
/// # Errors
/// The checkpoint is damaged or has no such tensors; the folder has something in it, cannot be written to, or is full.
pub fn merge(checkpoint: &Checkpoint, to: &dyn Store, folder: &str, options: &Merge) -> Result<Vec<String>> {
    if to.list(folder).is_ok_and(|entries| !entries.is_empty()) {
        let place = to.describe(folder);
        return Err(Error::usage(format!(
            "{place}: the folder is not empty; name a new one, so that files of two models do not mix"
        )));
    }
    let tensors = checkpoint.manifest().tensors.iter().filter(|(name, _)| options.takes(name));
    let mut files: Vec<(u64, Vec<Part>)> = vec![];
    for (name, tensor) in tensors {
        let bytes = bytes_of(tensor.dtype, &tensor.shape).unwrap_or_default();
        let part = Part::whole(name, tensor.dtype, tensor.shape.clone());
        match files.last_mut() {
            Some((filled, parts)) if options.max_shard_bytes.is_none_or(|most| *filled + bytes <= most) => {
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
    let (mut names, mut weight_map) = (vec![], BTreeMap::new());
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
        let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map }).to_string();
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
