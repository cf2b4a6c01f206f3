//! Saves models, or values under other names, to files that Python can read.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use fulmen_durable::NewFolder;
use fulmen_tensor::{Literal, Runtime, Tensor, TensorType};

use super::{StateDict, index};
use crate::library::NN;
use crate::safetensors::write_each;
use crate::{Module, Result, error};

/// Saves a model's parameters and buffers under their names as a safetensors file, which PyTorch
/// can load. Tied weights are saved once, under the first of their names. Values are transferred
/// from the device in groups of at most 64 MiB, or of one larger value. Host memory holds one group
/// at a time.
///
/// # Errors
/// Those of [`safetensors::write`](crate::safetensors::write); a parameter without a value.
#[track_caller]
pub fn save_weights<M: Module + ?Sized>(module: &M, path: impl AsRef<Path>) -> Result<()> {
    let _scope = NN.open();
    let values = Values::from_module(module)?;
    values.save(path.as_ref())
}

/// The values of a model's parameters and buffers, in the order of [`Module::state`].
///
/// Uses `get` instead of the cells, so that the error for a parameter without a value has the line
/// of the caller.
#[track_caller]
pub(crate) fn values_of<M: Module + ?Sized>(module: &M) -> Vec<(String, Tensor)> {
    let parameters =
        module.parameters().into_iter().map(|(name, parameter)| (name, parameter.get()));
    let buffers = module.buffers().into_iter().map(|(name, buffer)| (name, buffer.get()));
    parameters.chain(buffers).collect()
}

/// Saves values under these names as a safetensors file. Errors call the file `named`.
pub(crate) fn save_values(values: Vec<(String, Tensor)>, path: &Path, named: &Path) -> Result<()> {
    let values = Values::new(values)?;
    write_each(path, named, &values.types, &metadata(), &values.read)
}

/// The new folder for a model's files. It must not exist before, or must be empty.
pub(crate) fn new_folder(folder: &Path) -> Result<NewFolder> {
    let failed = |e: io::Error| error::io("write", folder, e);
    let occupied = match std::fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_some(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => false,
        Err(e) => return Err(failed(e)),
    };
    if occupied {
        let message =
            "the folder is not empty; choose a new one, so that files of two models do not mix";
        return Err(failed(io::Error::new(io::ErrorKind::AlreadyExists, message)));
    }
    NewFolder::create(folder).map_err(failed)
}

/// Like [`save_weights`], but writes several files with at most `max_shard_bytes` of values each,
/// and an index. Hugging Face's `from_pretrained` and [`load_weights`](super::load_weights) read
/// the new folder. A larger value gets a separate file.
///
/// The folder appears once everything is written and synced. It must not exist before, or must be
/// empty.
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
/// Those of [`save_weights`]; the folder is not empty.
#[track_caller]
pub fn save_sharded_weights<M: Module + ?Sized>(
    module: &M,
    folder: impl AsRef<Path>,
    max_shard_bytes: u64,
) -> Result<()> {
    let _scope = NN.open();
    Values::from_module(module)?.save_sharded(folder.as_ref(), max_shard_bytes)
}

/// [`save_weights`] of other values than those of a model: tensors under these names.
///
/// # Errors
/// Those of [`save_weights`].
#[track_caller]
pub fn save_tensors(values: Vec<(String, Tensor)>, path: impl AsRef<Path>) -> Result<()> {
    let _scope = NN.open();
    Values::new(values)?.save(path.as_ref())
}

/// [`save_sharded_weights`] of other values than those of a model: tensors under these names.
///
/// # Errors
/// Those of [`save_sharded_weights`].
#[track_caller]
pub fn save_sharded_tensors(
    values: Vec<(String, Tensor)>,
    folder: impl AsRef<Path>,
    max_shard_bytes: u64,
) -> Result<()> {
    let _scope = NN.open();
    Values::new(values)?.save_sharded(folder.as_ref(), max_shard_bytes)
}

impl StateDict {
    /// Saves the values under their names as a safetensors file. They are read in groups of at most
    /// 64 MiB, or of one larger value, so a model that does not fit into memory can be converted.
    ///
    /// ```
    /// use fulmen_nn::weights::{StateDict, Strictness, load_weights, save_weights};
    /// use fulmen_nn::{Linear, Module};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let [from, to] = ["from.safetensors", "to.safetensors"].map(|name| folder.path().join(name));
    /// let layer = Linear::new(3, 2);
    /// layer.initialize(0);
    /// save_weights(&layer, &from)?;
    /// StateDict::read(&from)?.rename("", "fc.")?.save(&to)?;
    /// assert_eq!(StateDict::read(&to)?.iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>(), ["fc.bias", "fc.weight"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A value cannot be read; those of [`safetensors::write`](crate::safetensors::write()).
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        Values::from_state_dict(self).save(path.as_ref())
    }

    /// Like [`StateDict::save`], but writes several files like [`save_sharded_weights`].
    ///
    /// # Errors
    /// Those of [`StateDict::save`]; the folder is not empty.
    pub fn save_sharded(&self, folder: impl AsRef<Path>, max_shard_bytes: u64) -> Result<()> {
        Values::from_state_dict(self).save_sharded(folder.as_ref(), max_shard_bytes)
    }
}

/// Values to be written.
struct Values<'a> {
    types: Vec<(String, TensorType)>,
    /// Returns the values at some indices.
    #[allow(clippy::type_complexity, reason = "a type alias would be used only once")]
    read: Box<dyn Fn(&[usize]) -> Result<Vec<Arc<Literal>>> + 'a>,
}

impl<'a> Values<'a> {
    fn from_state_dict(values: &'a StateDict) -> Values<'a> {
        let types: Vec<_> = values.iter().map(|(name, ty)| (name.to_owned(), ty)).collect();
        let names: Vec<String> = types.iter().map(|(name, _)| name.clone()).collect();
        let read = move |&i: &usize| {
            let value = values.get(&names[i])?;
            value.ok_or_else(|| {
                error::format(values.path(), "file", format!("it has no `{}`", names[i]))
            })
        };
        Values { types, read: Box::new(move |group| group.iter().map(&read).collect()) }
    }

    /// The values of a model.
    fn from_module<M: Module + ?Sized>(module: &M) -> Result<Values<'static>> {
        Values::new(values_of(module))
    }

    fn new(values: Vec<(String, Tensor)>) -> Result<Values<'static>> {
        for (name, value) in &values {
            value.check().map_err(|e| error::value(name, e))?;
        }
        let types = values.iter().map(|(name, value)| (name.clone(), value.ty().clone())).collect();
        let read = move |group: &[usize]| {
            let tensors: Vec<&Tensor> = group.iter().map(|&i| &values[i].1).collect();
            // Values in host memory need no device.
            let known_values: Option<Vec<Literal>> =
                tensors.iter().map(|tensor| tensor.literal()).collect();
            let literals =
                known_values.map_or_else(|| Runtime::global()?.eval_many(&tensors), Ok)?;
            Ok(literals.into_iter().map(Arc::new).collect())
        };
        Ok(Values { types, read: Box::new(read) })
    }

    fn save(&self, path: &Path) -> Result<()> {
        write_each(path, path, &self.types, &metadata(), &self.read)
    }

    fn save_sharded(&self, folder: &Path, max_shard_bytes: u64) -> Result<()> {
        let failed = |e: io::Error| error::io("write", folder, e);
        // This guard removes the folder unless the last statement is reached.
        let new = new_folder(folder)?;
        let mut shards: Vec<(u64, Vec<usize>)> = Vec::new();
        let mut total = 0;
        for (i, (_, ty)) in self.types.iter().enumerate() {
            let size = ty.size_in_bytes() as u64;
            total += size;
            match shards.last_mut() {
                Some((filled, indices)) if *filled + size <= max_shard_bytes => {
                    *filled += size;
                    indices.push(i);
                }
                _ => shards.push((size, vec![i])),
            }
        }
        let failed_in = |file: &str, e: io::Error| error::io("write", &folder.join(file), e);
        let mut files = BTreeMap::new();
        for (i, (_, indices)) in shards.iter().enumerate() {
            let file = format!("model-{:05}-of-{:05}.safetensors", i + 1, shards.len());
            let types: Vec<_> = indices.iter().map(|&i| self.types[i].clone()).collect();
            let read = |group: &[usize]| {
                (self.read)(&group.iter().map(|&i| indices[i]).collect::<Vec<_>>())
            };
            write_each(&new.path().join(&file), &folder.join(&file), &types, &metadata(), read)?;
            files.extend(types.into_iter().map(|(name, _)| (name, file.clone())));
        }
        let file = "model.safetensors.index.json";
        let text = index::write(total, &files);
        let written = fulmen_durable::write(&new.path().join(file), None, |file| {
            file.write_all(text.as_bytes())
        });
        written.map_err(|e| failed_in(file, e))?;
        new.keep().map_err(failed)
    }
}

/// Python readers look for this key to learn which framework's layout the values have.
fn metadata() -> BTreeMap<String, String> {
    BTreeMap::from([("format".to_owned(), "pt".to_owned())])
}
