//! Reading: a file to values, with every number in its header checked.

use std::collections::BTreeMap;
use std::path::Path;

use fulmen_tensor::{DType, Literal, TensorType};
use safetensors::SafeTensors;

use super::NAMES;
use crate::{Error, Result};

/// What an error calls the format.
const FORMAT: &str = "safetensors file";

/// Reads the named values and the dictionary of texts of a safetensors file.
///
/// # Errors
/// The file cannot be read; it is no safetensors file, cut short, or damaged; an element type that no tensor has.
pub fn read(path: impl AsRef<Path>) -> Result<(BTreeMap<String, Literal>, BTreeMap<String, String>)> {
    let path = path.as_ref();
    let bytes = std::fs::read(path).map_err(|e| Error::io("read", path, e))?;
    let damaged = |e: safetensors::SafeTensorError| {
        Error::format(
            path,
            FORMAT,
            format!("{e} (the file has {} bytes; it may be cut short or of another format)", bytes.len()),
        )
    };
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(damaged)?;
    let metadata = header.metadata().iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect();
    let file = SafeTensors::deserialize(&bytes).map_err(damaged)?;
    let mut tensors = BTreeMap::new();
    for (name, view) in file.iter() {
        let Some(dtype) = NAMES.iter().find(|row| row.2 == view.dtype()).map(|row| row.0) else {
            let message = format!("`{name}` has elements of type {:?}, which no tensor here has", view.dtype());
            return Err(Error::format(path, FORMAT, message));
        };
        let ty = TensorType::new(dtype, view.shape());
        let value = match dtype {
            // Any byte but 0 means true in a file; a device wants 1.
            DType::Bool => {
                let bytes: Vec<u8> = view.data().iter().map(|&b| u8::from(b != 0)).collect();
                Literal::from_bytes(ty, &bytes)
            }
            _ => Literal::from_bytes(ty, view.data()),
        };
        let value = value.map_err(|e| Error::format(path, FORMAT, format!("`{name}`: {e}")))?;
        tensors.insert(name.to_owned(), value);
    }
    Ok((tensors, metadata))
}
