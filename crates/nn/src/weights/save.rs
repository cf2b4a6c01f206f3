//! From a model to files that Python reads too.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::Path;

use fulmen_durable::NewFolder;
use fulmen_tensor::{Literal, Runtime, Tensor};

use super::index;
use crate::record::NN;
use crate::{Error, Module, Result, safetensors};

/// Saves a model's parameters and buffers under their names as a safetensors file, so that PyTorch can load them too.
/// Tied weights are saved once, under the first of their names. The values come from the device in one transfer.
///
/// # Errors
/// Those of [`safetensors::write`]; a parameter without a value.
#[track_caller]
pub fn save_weights<M: Module + ?Sized>(module: &M, path: impl AsRef<Path>) -> Result<()> {
    let _scope = NN.open();
    safetensors::write(path, &values(module)?, &metadata())
}

/// As [`save_weights`], in several files of at most `max_shard_bytes` of values each and an index: a new folder that
/// Hugging Face's `from_pretrained` and [`load_weights`](super::load_weights) read. A single value that is larger has
/// a file of its own.
///
/// The folder appears when all is written and synced; it must not exist before, or be empty.
///
/// ```
/// use fulmen_nn::weights::{Strictness, load_weights, save_sharded_weights};
/// use fulmen_nn::{Linear, Module};
///
/// let parent = tempfile::tempdir()?;
/// let folder = parent.path().join("model");
/// let layer = Linear::new(300, 200);
/// layer.initialize(0);
/// save_sharded_weights(&layer, &folder, 100_000)?;
/// assert!(folder.join("model-00002-of-00002.safetensors").exists());
/// assert!(load_weights(&Linear::new(300, 200), &folder, Strictness::Strict)?.is_complete());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Those of [`save_weights`]; the folder has something in it.
#[track_caller]
pub fn save_sharded_weights<M: Module + ?Sized>(
    module: &M,
    folder: impl AsRef<Path>,
    max_shard_bytes: u64,
) -> Result<()> {
    let _scope = NN.open();
    let folder = folder.as_ref();
    let failed = |e: io::Error| Error::io("write", folder, e);
    let occupied = match std::fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_some(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => false,
        Err(e) => return Err(failed(e)),
    };
    if occupied {
        let message = "the folder is not empty; name a new one, so that files of two models do not mix";
        return Err(failed(io::Error::new(io::ErrorKind::AlreadyExists, message)));
    }
    let mut shards: Vec<(u64, Vec<(String, Literal)>)> = vec![];
    let mut total = 0;
    for (name, value) in values(module)? {
        let size = value.bytes().len() as u64;
        total += size;
        match shards.last_mut() {
            Some((filled, values)) if *filled + size <= max_shard_bytes => {
                *filled += size;
                values.push((name, value));
            }
            _ => shards.push((size, vec![(name, value)])),
        }
    }
    // Dropped on every way out but the last, which removes it.
    let new = NewFolder::create(folder).map_err(failed)?;
    let failed_in = |file: &str, e: io::Error| Error::io("write", &folder.join(file), e);
    let mut files = BTreeMap::new();
    for (i, (_, values)) in shards.iter().enumerate() {
        let file = format!("model-{:05}-of-{:05}.safetensors", i + 1, shards.len());
        safetensors::try_write(&new.path().join(&file), values, &metadata()).map_err(|e| failed_in(&file, e))?;
        files.extend(values.iter().map(|(name, _)| (name.clone(), file.clone())));
    }
    let (file, text) = ("model.safetensors.index.json", index::write(total, &files));
    let written = fulmen_durable::write(&new.path().join(file), None, |file| file.write_all(text.as_bytes()));
    written.map_err(|e| failed_in(file, e))?;
    new.keep().map_err(failed)
}

/// What a model consists of.
fn values<M: Module + ?Sized>(module: &M) -> Result<Vec<(String, Literal)>> {
    // Not the cells: a parameter without a value says so at the line that saves.
    let parameters = module.parameters().into_iter().map(|(name, parameter)| (name, parameter.get()));
    let buffers = module.buffers().into_iter().map(|(name, buffer)| (name, buffer.get()));
    let (names, values): (Vec<String>, Vec<Tensor>) = parameters.chain(buffers).unzip();
    for (name, value) in names.iter().zip(&values) {
        value.check().map_err(|e| Error::value(name, e))?;
    }
    let literals =
        if values.is_empty() { vec![] } else { Runtime::global()?.eval_many(&values.iter().collect::<Vec<_>>())? };
    Ok(names.into_iter().zip(literals).collect())
}

/// Python's readers look for this key to know whose layout the values have.
fn metadata() -> BTreeMap<String, String> {
    BTreeMap::from([("format".to_owned(), "pt".to_owned())])
}
