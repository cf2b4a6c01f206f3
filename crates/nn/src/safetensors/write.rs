//! Writing: values to a file that is either whole or not there.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::Path;

use fulmen_tensor::Literal;
use serde_json::json;

use super::{CHECKSUMS, METADATA, NAMES, checksums};
use crate::{Error, Result};

/// Writes named values and a dictionary of texts to a file.
///
/// The values go to a temporary file in the same folder, which is synced and then takes the place of `path`. So there
/// is never half a file at `path`, and one that stood there is untouched if writing fails (a full disk, say). The same
/// values give the same bytes. To the texts come [checksums](super::CHECKSUMS) of all that is written.
///
/// # Errors
/// The folder is not there or cannot be written to, the disk is full; a name that is empty, twice there, or
/// reserved; a value of c128, which the format does not have.
///
/// ```
/// use std::collections::BTreeMap;
/// use fulmen_nn::safetensors;
/// use fulmen_tensor::Literal;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("x.safetensors");
/// let x = Literal::from_slice(&[1.0f32, 2.0], [2])?;
/// safetensors::write(&path, &[("x".to_owned(), x)], &BTreeMap::new())?;
/// let (tensors, _metadata) = safetensors::read(&path)?;
/// assert_eq!(tensors["x"].to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write(path: impl AsRef<Path>, tensors: &[(String, Literal)], metadata: &BTreeMap<String, String>) -> Result<()> {
    let path = path.as_ref();
    try_write(path, tensors, metadata).map_err(|e| Error::io("write", path, e))
}

/// As [`write`], with an error that does not name the file.
pub(crate) fn try_write(
    path: &Path,
    tensors: &[(String, Literal)],
    metadata: &BTreeMap<String, String>,
) -> io::Result<()> {
    let (header, order) = header(tensors, metadata)?;
    let values: u64 = tensors.iter().map(|(_, value)| value.bytes().len() as u64).sum();
    fulmen_durable::write(path, Some(8 + header.len() as u64 + values), |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        order.iter().try_for_each(|&i| file.write_all(tensors[i].1.bytes()))
    })
}

/// The header, and the order in which the values follow it.
fn header(tensors: &[(String, Literal)], metadata: &BTreeMap<String, String>) -> io::Result<(Vec<u8>, Vec<usize>)> {
    let refuse = |message: String| io::Error::new(io::ErrorKind::InvalidInput, message);
    let mut names = BTreeSet::new();
    for (name, _) in tensors {
        if name.is_empty() || name == METADATA || !names.insert(name) {
            return Err(refuse(format!(
                "`{name}` cannot name a value: names are not empty, not {METADATA}, and differ"
            )));
        }
    }
    // Larger elements first keeps each value aligned to its element, as readers that map the file want it.
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by(|&a, &b| {
        let key = |i: usize| (std::cmp::Reverse(tensors[i].1.ty().dtype.size_in_bytes()), &tensors[i].0);
        key(a).cmp(&key(b))
    });
    let sums = tensors.iter().map(|(name, value)| (name.as_str(), checksums::of_tensor(value.ty(), value.bytes())));
    let mut metadata = metadata.clone();
    metadata.insert(CHECKSUMS.to_owned(), checksums::write(&sums.collect(), &metadata));
    let mut parts = vec![format!("{}:{}", json!(METADATA), json!(metadata))];
    let mut start = 0usize;
    for &i in &order {
        let (name, value) = &tensors[i];
        let (ty, end) = (value.ty(), start + value.bytes().len());
        let Some((_, dtype, _)) = NAMES.iter().find(|row| row.0 == ty.dtype) else {
            return Err(refuse(format!("`{name}` is {ty}, and the format has no such elements; convert it first")));
        };
        let entry = json!({ "dtype": dtype, "shape": ty.shape.dims(), "data_offsets": [start, end] });
        parts.push(format!("{}:{entry}", json!(name)));
        start = end;
    }
    let mut header = format!("{{{}}}", parts.join(",")).into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok((header, order))
}
