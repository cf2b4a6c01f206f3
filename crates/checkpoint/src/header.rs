//! [`header`]: what a safetensors file begins with.

use std::collections::{BTreeMap, BTreeSet};

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde_json::json;

use crate::shard::bytes_of;

/// The key that is not a tensor's.
const METADATA: &str = "__metadata__";

/// The format's own limit.
const MOST: usize = 100_000_000;

/// What a safetensors file begins with, for these tensors in this order without gaps, and a dictionary of texts. The same
/// give the same bytes.
///
/// # Errors
/// What is wrong: a name that is empty, reserved or twice there; a tensor that is not whole bytes, or too large; names that the
/// format has no room for.
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
pub fn header(tensors: &[(String, Dtype, Vec<u64>)], metadata: &BTreeMap<String, String>) -> Result<Vec<u8>, String> {
    let (mut names, mut start) = (BTreeSet::new(), 0usize);
    let mut entries = vec![format!("{}:{}", json!(METADATA), json!(metadata))];
    for (name, dtype, shape) in tensors {
        if name.is_empty() || name == METADATA || !names.insert(name) {
            return Err(format!("`{name}` cannot name a tensor: names are not empty, not {METADATA}, and differ"));
        }
        let bytes = bytes_of(*dtype, shape).and_then(|bytes| usize::try_from(bytes).ok());
        let Some(end) = bytes.and_then(|bytes| start.checked_add(bytes)) else {
            return Err(format!("`{name}` cannot be written: its elements are not whole bytes, or too many"));
        };
        let shape = shape.iter().map(|size| *size as usize).collect();
        let info = TensorInfo { dtype: *dtype, shape, data_offsets: (start, end) };
        entries.push(format!("{}:{}", json!(name), json!(info)));
        start = end;
    }
    let mut text = format!("{{{}}}", entries.join(",")).into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    if text.len() > MOST {
        return Err(format!(
            "the names of {} tensors take {} bytes, and a safetensors header holds {MOST}; write more files",
            tensors.len(),
            text.len()
        ));
    }
    Ok([&(text.len() as u64).to_le_bytes(), &text[..]].concat())
}
