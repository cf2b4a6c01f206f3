//! [`merge`]: writes the tensors of a checkpoint as plain safetensors files, which every reader of
//! the format opens.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::checkpoint::join;
use crate::retention::remove_file;
use crate::shard::bytes_of;
use crate::store::Store;
use crate::{Checkpoint, Error, Part, Result, ShardWriter, error};

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
/// A merge that fails or is killed can be repeated: until it is complete, the folder has a file that
/// lists what it writes, and the next merge replaces these files.
///
/// # Errors
/// The checkpoint is damaged or has no such tensors; the folder has other files, cannot be written,
/// or is full.
pub fn merge(
    checkpoint: &Checkpoint,
    to: &dyn Store,
    folder: &str,
    options: &MergeOptions,
) -> Result<Vec<String>> {
    remove_unfinished_merge(to, folder)?;
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
    let names: Vec<String> = match options.max_shard_bytes {
        None => vec!["model.safetensors".to_owned()],
        Some(_) => (1..=count).map(|i| format!("model-{i:05}-of-{count:05}.safetensors")).collect(),
    };
    let unfinished =
        Unfinished { files: names.iter().cloned().chain([INDEX.to_owned()]).collect() };
    write_file(to, &join(folder, UNFINISHED), json!(unfinished).to_string().as_bytes())?;
    let mut weight_map = BTreeMap::new();
    for (file, (_, parts)) in names.iter().zip(files) {
        weight_map.extend(parts.iter().map(|part| (part.name().to_owned(), file.clone())));
        let mut writer = ShardWriter::new(to, folder, file, parts)?;
        while let Some(name) = writer.next_part().map(|part| part.name().to_owned()) {
            checkpoint.stream(&name, |bytes| writer.write(bytes))?;
        }
        writer.commit()?;
    }
    if options.max_shard_bytes.is_some() {
        let index =
            json!({ "metadata": { "total_size": total }, "weight_map": weight_map }).to_string();
        write_file(to, &join(folder, INDEX), index.as_bytes())?;
    }
    remove_file(to, folder, UNFINISHED)?;
    Ok(names)
}

/// The index of several files.
const INDEX: &str = "model.safetensors.index.json";

/// The file that a folder has while a merge writes to it.
const UNFINISHED: &str = "merge.unfinished.json";

/// The size limit of that file.
const MAX_UNFINISHED_BYTES: u64 = 16 << 20;

/// The content of that file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Unfinished {
    /// The files that the merge writes.
    files: BTreeSet<String>,
}

/// Removes the files of a merge that was not finished. Rejects a folder with other files.
fn remove_unfinished_merge(to: &dyn Store, folder: &str) -> Result<()> {
    let Ok(entries) = to.list(folder) else { return Ok(()) };
    let location = to.describe(folder);
    let name = join(folder, UNFINISHED);
    let length = entries.iter().find(|entry| entry.name == UNFINISHED).and_then(|it| it.bytes);
    let unfinished = match length {
        None => Unfinished { files: BTreeSet::new() },
        Some(bytes) => {
            let mut text = vec![0; bytes.min(MAX_UNFINISHED_BYTES) as usize];
            to.read(&name, 0, &mut text).map_err(|e| error::io("read", &to.describe(&name), e))?;
            serde_json::from_slice(&text).map_err(|e| {
                Error::usage(format!("{}: not the list of a merge ({e})", to.describe(&name)))
            })?
        }
    };
    let is_ours = |name: &str| {
        name == UNFINISHED
            || unfinished.files.contains(name)
            || fulmen_durable::is_temporary(name.as_ref())
    };
    if let Some(other) = entries.iter().find(|entry| !is_ours(&entry.name)) {
        return Err(Error::usage(format!(
            "{location}: the folder has `{}`; choose a new folder, so that files of two models do not mix",
            other.name
        )));
    }
    // The list goes last: until then, this can be repeated.
    for file in &unfinished.files {
        remove_file(to, folder, file)?;
    }
    if length.is_some() { remove_file(to, folder, UNFINISHED) } else { Ok(()) }
}

fn write_file(to: &dyn Store, name: &str, bytes: &[u8]) -> Result<()> {
    let write = || {
        let mut file = to.create(name, bytes.len() as u64)?;
        file.write_all(bytes)?;
        file.commit()
    };
    write().map_err(|e| error::io("write", &to.describe(name), e))
}
