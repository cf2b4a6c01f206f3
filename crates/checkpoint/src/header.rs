//! [`header`]: the header of a safetensors file.

use std::collections::{BTreeMap, BTreeSet};

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde_json::json;

use crate::shard::bytes_of;

/// The reserved key that is not a tensor.
const METADATA: &str = "__metadata__";

/// The limit of the safetensors format.
pub(crate) const MAX_HEADER_BYTES: usize = 100_000_000;

/// Returns the header of a safetensors file with these tensors, in this order and without gaps, and
/// with a dictionary of strings. Equal arguments give equal bytes.
///
/// # Errors
/// A description of the problem: a name is empty, reserved or duplicated; a tensor is too large or
/// is not a whole number of bytes; the names exceed the limit of the format.
///
/// ```
/// use std::collections::BTreeMap;
/// use fulmen_checkpoint::{Dtype, header};
///
/// let mut file = header(&[("x".to_owned(), Dtype::U8, vec![3])], &BTreeMap::new())?;
/// file.extend([1, 2, 3]);
/// let read = safetensors::SafeTensors::deserialize(&file)?;
/// assert_eq!(read.tensor("x")?.data(), [1, 2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn header(
    tensors: &[(String, Dtype, Vec<u64>)],
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>, String> {
    let mut names = BTreeSet::new();
    let mut start = 0usize;
    let mut entries = vec![format!("{}:{}", json!(METADATA), json!(metadata))];
    for (name, dtype, shape) in tensors {
        if name.is_empty() || name == METADATA || !names.insert(name) {
            return Err(format!(
                "`{name}` is not a valid tensor name: names must be unique, not empty, and not {METADATA}"
            ));
        }
        let bytes = bytes_of(*dtype, shape).and_then(|bytes| usize::try_from(bytes).ok());
        let Some(end) = bytes.and_then(|bytes| start.checked_add(bytes)) else {
            return Err(format!(
                "cannot write `{name}`: its elements are not whole bytes, or there are too many"
            ));
        };
        let shape = shape.iter().map(|size| *size as usize).collect();
        let info = TensorInfo { dtype: *dtype, shape, data_offsets: (start, end) };
        entries.push(format!("{}:{}", json!(name), json!(info)));
        start = end;
    }
    let mut text = format!("{{{}}}", entries.join(",")).into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    if text.len() > MAX_HEADER_BYTES {
        return Err(format!(
            "the names of {} tensors take {} bytes, and the limit of a safetensors header is {MAX_HEADER_BYTES}; write several files",
            tensors.len(),
            text.len()
        ));
    }
    Ok([&(text.len() as u64).to_le_bytes(), &text[..]].concat())
}
