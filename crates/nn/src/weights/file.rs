//! Where the values of a path are: in one file, in the shards of an index, or in a folder that has either. What a file
//! is, is seen from its content.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use fulmen_tensor::{Literal, TensorType};

use super::{index, pytorch};
use crate::{Error, Result, safetensors};

/// The files that a folder is searched for, in this order: Hugging Face's names.
const IN_A_FOLDER: [&str; 4] =
    ["model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json", "pytorch_model.bin"];

/// A value of a file, or the way to it.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Read(Arc<Literal>),
    Stored(pytorch::Stored),
}

impl Value {
    pub(super) fn ty(&self) -> &TensorType {
        match self {
            Value::Read(literal) => literal.ty(),
            Value::Stored(stored) => stored.ty(),
        }
    }

    pub(super) fn read(&self) -> Result<Arc<Literal>> {
        match self {
            Value::Read(literal) => Ok(literal.clone()),
            Value::Stored(stored) => stored.read().map(Arc::new),
        }
    }
}

/// The values at a path, by name.
pub(super) fn read(path: &Path) -> Result<BTreeMap<String, Value>> {
    let metadata = std::fs::metadata(path).map_err(|e| Error::io("read", path, e))?;
    if metadata.is_dir() {
        return match IN_A_FOLDER.iter().map(|name| path.join(name)).find(|file| file.is_file()) {
            Some(file) => read(&file),
            None => {
                let message = format!("it has none of {}; name the file itself", IN_A_FOLDER.join(", "));
                Err(Error::format(path, "folder of weights", message))
            }
        };
    }
    if !metadata.is_file() {
        return Err(Error::format(path, "weight file", "it is no regular file"));
    }
    let mut start = vec![];
    let mut file = File::open(path).map_err(|e| Error::io("read", path, e))?;
    file.by_ref().take(9).read_to_end(&mut start).map_err(|e| Error::io("read", path, e))?;
    match start[..] {
        // The length of the header, which is a JSON object.
        [a, b, c, d, e, f, g, h, b'{'] if u64::from_le_bytes([a, b, c, d, e, f, g, h]) <= metadata.len() => {
            safetensors_values(path)
        }
        [b'{', ..] => index::read(path),
        _ if path.extension().is_some_and(|extension| extension == "safetensors") => safetensors_values(path),
        _ => pytorch::read(path),
    }
}

fn safetensors_values(path: &Path) -> Result<BTreeMap<String, Value>> {
    let (values, _) = safetensors::read(path)?;
    Ok(values.into_iter().map(|(name, literal)| (name, Value::Read(Arc::new(literal)))).collect())
}
