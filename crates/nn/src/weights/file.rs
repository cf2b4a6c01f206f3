//! Finds the values at a path: in one file, in the shards of an index, or in a folder with either.
//! The kind of a file is detected from its content.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

#[cfg(feature = "pytorch")]
use crc32c::crc32c;
use fulmen_checkpoint::{Checkpoint, MANIFEST, Rectangle};
use fulmen_tensor::{Block, Literal, TensorType};

use super::{index, pytorch};
use crate::safetensors::{Reader, type_of};
use crate::{Result, error};

/// The name of a Trainer folder in errors.
const CHECKPOINT: &str = "checkpoint";

/// The files to look for in a folder, in this order: Hugging Face's names.
const FOLDER_FILES: [&str; 7] = [
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    "diffusion_pytorch_model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors",
    "diffusion_pytorch_model.bin",
];

/// A value of a file, possibly not read yet.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// A value of a safetensors file, by its name.
    Safetensors(Arc<Reader>, String, TensorType),
    #[cfg(feature = "pytorch")]
    Stored(pytorch::StoredTensor),
    /// A tensor of a checkpoint, by its name.
    Saved(Arc<Checkpoint>, String, TensorType),
    /// Values of one type, along a new first axis.
    Stacked(Arc<[Value]>, TensorType),
    /// A part of a value, which begins at this element of an axis.
    Part { of: Arc<Value>, axis: usize, start: usize, ty: TensorType },
}

impl Value {
    pub(super) fn ty(&self) -> &TensorType {
        match self {
            Value::Safetensors(_, _, ty) => ty,
            #[cfg(feature = "pytorch")]
            Value::Stored(stored) => stored.ty(),
            Value::Saved(_, _, ty) | Value::Stacked(_, ty) | Value::Part { ty, .. } => ty,
        }
    }

    pub(super) fn read(&self) -> Result<Literal> {
        match self {
            Value::Safetensors(file, name, ty) => file.value(name, ty),
            #[cfg(feature = "pytorch")]
            Value::Stored(stored) => stored.read(),
            Value::Saved(_, _, ty) | Value::Stacked(_, ty) | Value::Part { ty, .. } => {
                let bytes = self.block(&Block::whole(&ty.shape))?;
                Literal::from_bytes(ty.clone(), &bytes)
            }
        }
    }

    /// Reads only a block. The formats of PyTorch have no way to do that, so the value is read, cut
    /// and dropped.
    pub(super) fn block(&self, block: &Block) -> Result<Vec<u8>> {
        match self {
            Value::Safetensors(file, name, ty) => file.block(name, ty, block),
            #[cfg(feature = "pytorch")]
            Value::Stored(stored) => {
                Ok(block.elements_of(stored.ty(), stored.read()?.bytes())?.into_owned())
            }
            Value::Saved(checkpoint, name, _) => {
                let to_u64s = |sizes: &[usize]| -> Vec<u64> {
                    sizes.iter().map(|&size| size as u64).collect()
                };
                let rectangle = Rectangle::new(to_u64s(&block.start), to_u64s(&block.size));
                checkpoint.read(name, &rectangle).map_err(|e| {
                    error::format(Path::new(checkpoint.name()), CHECKPOINT, e.to_string())
                })
            }
            Value::Stacked(values, _) => {
                let one =
                    Block { start: block.start[1..].to_vec(), size: block.size[1..].to_vec() };
                let some = &values[block.start[0]..][..block.size[0]];
                let blocks: Result<Vec<_>> = some.iter().map(|value| value.block(&one)).collect();
                Ok(blocks?.concat())
            }
            Value::Part { of, axis, start, .. } => {
                let mut block = block.clone();
                block.start[*axis] += start;
                of.block(&block)
            }
        }
    }

    /// Checks what [`Value::block`] does not: the checksum of the whole value. Values of checkpoints
    /// have one for each of their blocks.
    pub(super) fn verify(&self) -> Result<()> {
        match self {
            Value::Safetensors(file, name, ty) => file.verify(name, ty),
            #[cfg(feature = "pytorch")]
            Value::Stored(stored) => stored.read().map(drop),
            Value::Saved(..) => Ok(()),
            Value::Stacked(values, _) => values.iter().try_for_each(Value::verify),
            Value::Part { of, .. } => of.verify(),
        }
    }

    /// A text that differs between different values.
    pub(super) fn fingerprint(&self) -> Result<String> {
        match self {
            Value::Safetensors(file, name, _) => file.fingerprint(name),
            #[cfg(feature = "pytorch")]
            Value::Stored(stored) => Ok(format!("{:08x}", crc32c(stored.read()?.bytes()))),
            Value::Saved(checkpoint, name, _) => Ok(format!("{} {name}", checkpoint.sha256())),
            Value::Stacked(values, _) => {
                let each: Result<Vec<_>> = values.iter().map(Value::fingerprint).collect();
                Ok(format!("[{}]", each?.join(", ")))
            }
            Value::Part { of, axis, start, .. } => {
                Ok(format!("{} from {start} of axis {axis}", of.fingerprint()?))
            }
        }
    }
}

/// The values at a path, by name.
pub(super) fn read(path: &Path) -> Result<BTreeMap<String, Value>> {
    if path.to_string_lossy().contains("://") {
        return checkpoint(path);
    }
    let metadata = std::fs::metadata(path).map_err(|e| error::io("read", path, e))?;
    if metadata.is_dir() && path.join(MANIFEST).is_file() {
        return checkpoint(path);
    }
    if metadata.is_dir() {
        return match FOLDER_FILES.iter().map(|name| path.join(name)).find(|file| file.is_file()) {
            Some(file) => read(&file),
            None => {
                let message = format!(
                    "it does not contain {}; pass the path of the file itself",
                    FOLDER_FILES.join(", ")
                );
                Err(error::format(path, "folder of weights", message))
            }
        };
    }
    if !metadata.is_file() {
        return Err(error::format(path, "weight file", "it is not a regular file"));
    }
    match Kind::detect(path, metadata.len())? {
        Kind::Index => index::read(path),
        kind => of_kind(kind, path),
    }
}

/// The tensors of a checkpoint, however they are split into parts.
fn checkpoint(path: &Path) -> Result<BTreeMap<String, Value>> {
    let refuse = |reason: String| error::format(path, CHECKPOINT, reason);
    let opened = Arc::new(Checkpoint::open_folder(path).map_err(|e| refuse(e.to_string()))?);
    let value = |(name, entry)| {
        let ty = type_of(entry).map_err(|reason| refuse(format!("`{name}` {reason}")))?;
        Ok((String::clone(name), Value::Saved(opened.clone(), name.clone(), ty)))
    };
    opened.manifest().tensors.iter().map(value).collect()
}

/// The values of a shard. A shard must be a file of values, since nested indices could form a
/// cycle.
pub(super) fn read_shard(path: &Path) -> Result<BTreeMap<String, Value>> {
    let metadata = std::fs::metadata(path).map_err(|e| error::io("read", path, e))?;
    of_kind(Kind::detect(path, metadata.len())?, path)
}

fn of_kind(kind: Kind, path: &Path) -> Result<BTreeMap<String, Value>> {
    match kind {
        Kind::Safetensors => safetensors_values(path),
        Kind::PyTorch => pytorch::read(path),
        Kind::Index => {
            Err(error::format(path, "shard of weights", "it is itself an index of weight files"))
        }
    }
}

/// The kind of a file.
enum Kind {
    Safetensors,
    PyTorch,
    Index,
}

impl Kind {
    /// Detects the kind from the first bytes of a file of `length` bytes, or else from its name.
    fn detect(path: &Path, length: u64) -> Result<Kind> {
        let mut start = Vec::new();
        let mut file =
            fulmen_durable::open_regular(path).map_err(|e| error::io("read", path, e))?;
        file.by_ref().take(9).read_to_end(&mut start).map_err(|e| error::io("read", path, e))?;
        Ok(match start[..] {
            // The length of the header, which is a JSON object.
            [a, b, c, d, e, f, g, h, b'{']
                if u64::from_le_bytes([a, b, c, d, e, f, g, h]) <= length =>
            {
                Kind::Safetensors
            }
            [b'{', ..] => Kind::Index,
            _ if path.extension().is_some_and(|extension| extension == "safetensors") => {
                Kind::Safetensors
            }
            _ => Kind::PyTorch,
        })
    }
}

fn safetensors_values(path: &Path) -> Result<BTreeMap<String, Value>> {
    let file = Arc::new(Reader::open(path)?);
    let value = |(name, ty): (String, TensorType)| {
        (name.clone(), Value::Safetensors(file.clone(), name, ty))
    };
    Ok(file.types()?.into_iter().map(value).collect())
}
