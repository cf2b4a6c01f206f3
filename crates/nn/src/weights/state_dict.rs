//! [`StateDict`]: named values from a file, to be loaded into a model whose names may differ.

use std::collections::BTreeMap;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fulmen_tensor::{Block, DType, Literal, StoredValue, Tensor, TensorType};

use super::file::{self, Value};
use super::{LoadReport, Strictness, load};
use crate::library::NN;
use crate::{Error, Module, Result};

/// Values of up to this size are read at once. They are on every device in most models, and need no
/// file later.
const SMALL_BYTES: usize = 64 << 10;

/// Named values read from weight files: PyTorch's state dict.
///
/// The format is detected from the content, not from the file's name: a safetensors file; an index
/// of shards (`model.safetensors.index.json`, `pytorch_model.bin.index.json`); a folder with one of
/// Hugging Face's file names; a checkpoint of the Trainer; a file of `torch.save` (`.pt`, `.pth`,
/// `.bin`, `.ckpt`), whose pickle is parsed but never executed.
///
/// Values of more than 64 KiB stay in their file until a device needs them: each process then reads
/// only the parts that its devices hold, and converts them. So keep the files until the training has
/// begun or the values were used. A file that was changed or removed before is an error.
///
/// The methods that change names return a new dictionary, so calls can be chained:
///
/// ```
/// use fulmen_nn::weights::{StateDict, Strictness, save_weights};
/// use fulmen_nn::{Linear, Module};
/// use std::collections::BTreeMap;
///
/// // A file whose names start with `module.`, as those of a model wrapped in PyTorch's
/// // DistributedDataParallel do.
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("wrapped.safetensors");
/// let wrapped = BTreeMap::from([("module".to_owned(), Linear::new(3, 2))]);
/// wrapped.initialize(0);
/// save_weights(&wrapped, &path)?;
///
/// let layer = Linear::new(3, 2);
/// let report = StateDict::read(&path)?.rename("module.", "")?.load_into(&layer, Strictness::Strict)?;
/// assert_eq!(report.loaded, ["weight", "bias"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct StateDict {
    path: PathBuf,
    entries: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    value: Value,
    /// Whether the model has the two axes in the opposite order.
    transposed: bool,
}

impl StateDict {
    /// Reads the values at a path: a file, an index, or a folder.
    ///
    /// # Errors
    /// The path does not exist or cannot be read; the format is unknown or the file damaged; a
    /// shard is missing; a value has an unsupported type, such as a quantized or sparse one.
    pub fn read(path: impl AsRef<Path>) -> Result<StateDict> {
        let path = path.as_ref();
        let entries = file::read(path)?
            .into_iter()
            .map(|(name, value)| (name, Entry { value, transposed: false }))
            .collect();
        Ok(StateDict { path: path.into(), entries })
    }

    /// The names and types, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, TensorType)> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), entry.ty()))
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A value; `None` if there is no such name.
    ///
    /// # Errors
    /// The file can no longer be read, or the value is damaged.
    pub fn get(&self, name: &str) -> Result<Option<Arc<Literal>>> {
        self.entries.get(name).map(Entry::read).transpose()
    }

    /// The values below a prefix: `part("state_dict")` of a PyTorch Lightning checkpoint has the
    /// values whose names start with `state_dict.`, without that prefix.
    ///
    /// # Errors
    /// No name has this prefix.
    #[track_caller]
    pub fn part(&self, name: &str) -> Result<StateDict> {
        let prefix = format!("{name}.");
        self.some_begin_with(&prefix, Location::caller())?;
        let renamed = self
            .entries
            .iter()
            .filter_map(|(name, entry)| Some((name.strip_prefix(&prefix)?, entry)));
        let entries = renamed.map(|(name, entry)| (name.to_owned(), entry.clone())).collect();
        Ok(StateDict { path: self.path.clone(), entries })
    }

    /// Replaces the prefix `from` of names by `to`; other names stay. `rename("module.", "")`
    /// strips the prefix of PyTorch's DistributedDataParallel.
    ///
    /// # Errors
    /// No name has the prefix `from`; two values would have the same name.
    #[track_caller]
    pub fn rename(&self, from: &str, to: &str) -> Result<StateDict> {
        let location = Location::caller();
        self.some_begin_with(from, location)?;
        self.renamed(location, |name| {
            Some(
                name.strip_prefix(from)
                    .map_or_else(|| name.to_owned(), |rest| format!("{to}{rest}")),
            )
        })
    }

    /// Maps each name by `f`; values for which it returns `None` are dropped.
    ///
    /// # Errors
    /// Two values would have the same name.
    #[track_caller]
    pub fn rename_with(&self, f: impl FnMut(&str) -> Option<String>) -> Result<StateDict> {
        self.renamed(Location::caller(), f)
    }

    /// Swaps the two axes of the values whose names `is_swapped` selects. For example, GPT-2's
    /// `c_attn.weight`, `c_proj.weight` and `c_fc.weight` are `[in, out]`, but the weight of a
    /// [`Linear`](crate::Linear) is `[out, in]`.
    ///
    /// # Errors
    /// A selected value does not have two axes; no value is selected.
    #[track_caller]
    pub fn transpose(&self, mut is_swapped: impl FnMut(&str) -> bool) -> Result<StateDict> {
        let location = Location::caller();
        let mut swapped = self.clone();
        let mut picked = 0;
        for (name, entry) in swapped.entries.iter_mut().filter(|(name, _)| is_swapped(name)) {
            if entry.ty().shape.rank() != 2 {
                let message =
                    format!("transpose: `{name}` is {}, which does not have two axes", entry.ty());
                return Err(Error::usage_at(message, location));
            }
            entry.transposed = !entry.transposed;
            picked += 1;
        }
        if picked == 0 {
            return Err(Error::usage_at(
                format!("transpose: no name was selected{}", self.some_names()),
                location,
            ));
        }
        Ok(swapped)
    }

    /// Joins values of one type along a new first axis. `f` gives the name of the joined value and the
    /// place in it, from 0 on, or `None` for a value that stays. For example, published files of
    /// mixtures of experts have a matrix for each expert. Of large values, only the parts that a
    /// device needs are read.
    ///
    /// ```
    /// use fulmen_nn::weights::{StateDict, save_weights};
    /// use fulmen_nn::{Linear, Module};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("experts.safetensors");
    /// let experts = vec![Linear::new(3, 2).bias(false), Linear::new(3, 2).bias(false)];
    /// experts.initialize(0);
    /// save_weights(&experts, &path)?;
    ///
    /// let joined = StateDict::read(&path)?.stack(|name| {
    ///     let place = name.strip_suffix(".weight")?.parse().ok()?;
    ///     Some(("weights".to_owned(), place))
    /// })?;
    /// assert_eq!(joined.get("weights")?.unwrap().ty().to_string(), "f32[2, 2, 3]");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A place of a joined value is missing or taken twice; the types differ; a value of this name
    /// exists; a value was [transposed](StateDict::transpose).
    #[track_caller]
    pub fn stack(&self, mut f: impl FnMut(&str) -> Option<(String, usize)>) -> Result<StateDict> {
        let location = Location::caller();
        let mut entries = BTreeMap::new();
        let mut joined: BTreeMap<String, BTreeMap<usize, (&str, &Entry)>> = BTreeMap::new();
        for (name, entry) in &self.entries {
            let Some((new, place)) = f(name) else {
                entries.insert(name.clone(), entry.clone());
                continue;
            };
            if let Some((other, _)) =
                joined.entry(new.clone()).or_default().insert(place, (name, entry))
            {
                let message = format!(
                    "stack: `{other}` and `{name}` would both be number {place} of `{new}`"
                );
                return Err(Error::usage_at(message, location));
            }
        }
        for (new, places) in joined {
            let Some((_, (first, one))) = places.first_key_value() else { continue };
            let ty = one.ty();
            for (number, (place, (name, entry))) in places.iter().enumerate() {
                let what = if number != *place {
                    format!("`{new}` has no number {number}")
                } else if entry.ty() != ty {
                    format!("`{name}` is {}, but `{first}` is {ty}", entry.ty())
                } else if entry.transposed {
                    format!("`{name}` was transposed")
                } else {
                    continue;
                };
                return Err(Error::usage_at(format!("stack: {what}"), location));
            }
            let values = places.values().map(|(_, entry)| entry.value.clone()).collect();
            let stacked = TensorType::new(ty.dtype, [&[places.len()], ty.shape.dims()].concat());
            let value = Value::Stacked(values, stacked);
            if entries.insert(new.clone(), Entry { value, transposed: false }).is_some() {
                let message = format!("stack: there is a value `{new}` already");
                return Err(Error::usage_at(message, location));
            }
        }
        Ok(StateDict { path: self.path.clone(), entries })
    }

    /// Cuts values into equal parts along an axis. `f` gives the axis and the names of the parts, or
    /// nothing for a value that stays.
    ///
    /// # Errors
    /// The axis does not exist or has no such parts; two values would have the same name; a value
    /// was [transposed](StateDict::transpose).
    #[track_caller]
    pub fn split(
        &self,
        mut f: impl FnMut(&str) -> Option<(usize, Vec<String>)>,
    ) -> Result<StateDict> {
        let location = Location::caller();
        let mut entries = BTreeMap::new();
        let mut add = |new: String, entry: Entry| match entries.insert(new.clone(), entry) {
            Some(_) => {
                Err(Error::usage_at(format!("split: there are two values `{new}`"), location))
            }
            None => Ok(()),
        };
        for (name, entry) in &self.entries {
            let Some((axis, parts)) = f(name) else {
                add(name.clone(), entry.clone())?;
                continue;
            };
            let ty = entry.ty();
            let size = ty.shape.dims().get(axis).copied().unwrap_or_default();
            let count = parts.len().max(1);
            if size == 0 || !size.is_multiple_of(count) || entry.transposed {
                let message = format!(
                    "split: axis {axis} of `{name}`, {ty}, does not have {count} equal parts"
                );
                return Err(Error::usage_at(message, location));
            }
            let of = Arc::new(entry.value.clone());
            for (number, part) in parts.into_iter().enumerate() {
                let mut dims = ty.shape.dims().to_vec();
                dims[axis] = size / count;
                let ty = TensorType::new(ty.dtype, dims);
                let value = Value::Part { of: of.clone(), axis, start: number * size / count, ty };
                add(part, Entry { value, transposed: false })?;
            }
        }
        Ok(StateDict { path: self.path.clone(), entries })
    }

    /// Loads the values into a model's parameters and buffers of the same names.
    ///
    /// Values of other floating-point types are converted, which the report lists. Tied weights are
    /// found under any of their names; if there are several, as in files that PyTorch writes, the
    /// values must be equal.
    ///
    /// Large values stay in the file until a device needs them. Checksums are compared now.
    ///
    /// # Errors
    /// A value cannot be read. With [`Strictness::Strict`], also if a name is missing, unexpected
    /// or has a different shape, or if tied weights differ: the error lists everything, and the
    /// model does not change.
    #[track_caller]
    pub fn load_into<M: Module + ?Sized>(
        &self,
        module: &M,
        strictness: Strictness,
    ) -> Result<LoadReport> {
        let _scope = NN.open();
        load::load(self, module, strictness)
    }

    /// The value with this name as a tensor of this floating-point type or its own type. A small
    /// value is read. Of a larger one, only its checksum is compared; it is read in blocks when
    /// devices need it.
    pub(super) fn tensor(&self, name: &str, dtype: DType) -> Result<Option<Tensor>> {
        let Some(entry) = self.entries.get(name) else { return Ok(None) };
        let ty = entry.ty();
        if ty.size_in_bytes() <= SMALL_BYTES {
            let literal = entry.read()?;
            let same_type = ty.dtype == dtype;
            return Ok(Some(if same_type {
                literal.to_tensor()
            } else {
                literal.to_dtype(dtype)?.to_tensor()
            }));
        }
        entry.value.verify()?;
        let stored = Tensor::from_stored(ty, Arc::new(entry.clone()));
        Ok(Some(stored.to_dtype_on_host(dtype)))
    }

    /// The file or folder that was read.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The type of the value with this name.
    pub(super) fn ty(&self, name: &str) -> Option<TensorType> {
        self.entries.get(name).map(Entry::ty)
    }

    fn renamed(
        &self,
        location: &'static Location<'static>,
        mut f: impl FnMut(&str) -> Option<String>,
    ) -> Result<StateDict> {
        let mut entries = BTreeMap::new();
        let mut from: BTreeMap<String, &str> = BTreeMap::new();
        for (name, entry) in &self.entries {
            let Some(new) = f(name) else { continue };
            if let Some(other) = from.insert(new.clone(), name) {
                let message =
                    format!("rename: `{other}` and `{name}` would both get the name `{new}`");
                return Err(Error::usage_at(message, location));
            }
            entries.insert(new, entry.clone());
        }
        Ok(StateDict { path: self.path.clone(), entries })
    }

    fn some_begin_with(&self, prefix: &str, location: &'static Location<'static>) -> Result<()> {
        if self.entries.keys().any(|name| name.starts_with(prefix)) {
            return Ok(());
        }
        let message = format!(
            "no name in {} begins with `{prefix}`{}",
            self.path.display(),
            self.some_names()
        );
        Err(Error::usage_at(message, location))
    }

    /// The first few names, for an error message.
    fn some_names(&self) -> String {
        let names: Vec<&str> = self.entries.keys().map(String::as_str).take(5).collect();
        match self.entries.len() {
            0 => "; there are no names".into(),
            n if n > names.len() => {
                format!("; there are {n} names, the first are {}", names.join(", "))
            }
            _ => format!("; the names are {}", names.join(", ")),
        }
    }
}

impl Entry {
    fn ty(&self) -> TensorType {
        let ty = self.value.ty();
        match (self.transposed, ty.shape.dims()) {
            (true, &[rows, columns]) => TensorType::new(ty.dtype, [columns, rows]),
            _ => ty.clone(),
        }
    }

    fn read(&self) -> Result<Arc<Literal>> {
        let literal = self.value.read()?;
        if !self.transposed {
            return Ok(Arc::new(literal));
        }
        let dims = literal.ty().shape.dims();
        let swapped = swap_axes(literal.bytes(), dims, literal.ty().dtype.size_in_bytes());
        Ok(Arc::new(Literal::from_bytes(self.ty(), &swapped)?))
    }
}

impl StoredValue for Entry {
    fn read(&self, block: &Block) -> Result<Vec<u8>> {
        if !self.transposed {
            return self.value.block(block);
        }
        let reversed = |sizes: &[usize]| sizes.iter().rev().copied().collect::<Vec<usize>>();
        let stored = Block { start: reversed(&block.start), size: reversed(&block.size) };
        let size = self.value.ty().dtype.size_in_bytes();
        Ok(swap_axes(&self.value.block(&stored)?, &stored.size, size))
    }

    fn fingerprint(&self) -> Result<String> {
        let order = if self.transposed { " transposed" } else { "" };
        Ok(format!("{}{order}", self.value.fingerprint()?))
    }
}

/// Transposes a matrix of elements of `size` bytes.
fn swap_axes(bytes: &[u8], dims: &[usize], size: usize) -> Vec<u8> {
    let &[rows, columns] = dims else { return bytes.to_vec() };
    let mut swapped = Vec::with_capacity(bytes.len());
    for column in 0..columns {
        for row in 0..rows {
            let start = (row * columns + column) * size;
            swapped.extend_from_slice(&bytes[start..start + size]);
        }
    }
    swapped
}
