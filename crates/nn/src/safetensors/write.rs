//! Writing: values to a file that is either whole or not there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use fulmen_tensor::Literal;
use serde_json::json;

use super::{METADATA, NAMES};
use crate::{Error, Result};

/// Writes named values and a dictionary of texts to a file.
///
/// The values go to a temporary file in the same folder, which is synced and then takes the place of `path`. So there
/// is never half a file at `path`, and one that stood there is untouched if writing fails (a full disk, say). The same
/// values give the same bytes.
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
    let (header, order) = header(tensors, metadata).map_err(|message| Error::io("write", path, message))?;
    write_whole(path, |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        order.iter().try_for_each(|&i| file.write_all(tensors[i].1.bytes()))
    })
    .map_err(|e| Error::io("write", path, e))
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
    let mut parts = vec![];
    if !metadata.is_empty() {
        parts.push(format!("{}:{}", json!(METADATA), json!(metadata)));
    }
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

/// Writes a file so that `path` holds either what it held or all of the new.
pub(crate) fn write_whole(path: &Path, fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".writing-");
    // A temporary file is readable by its owner only; this one is to stay, so it gets what any new file gets.
    #[cfg(unix)]
    let builder = builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    // Dropped on every way out but the last, which removes it.
    let temporary =
        builder.tempfile_in(folder).map_err(|e| io::Error::new(e.kind(), format!("in {}: {e}", folder.display())))?;
    let mut file = BufWriter::with_capacity(1 << 20, temporary.as_file());
    fill(&mut file)?;
    file.flush()?;
    drop(file);
    temporary.as_file().sync_all()?;
    temporary.persist(path).map_err(|e| e.error)?;
    // The new name is on the disk when the folder is. Only Unix can sync one.
    #[cfg(unix)]
    File::open(folder)?.sync_all()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_disk_that_fills_up_half_way_keeps_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        std::fs::write(&path, "old").unwrap();
        let result = write_whole(&path, |file| {
            file.write_all(&[1; 4096])?;
            file.flush()?;
            // Every write to this device fails as on a full disk.
            std::fs::OpenOptions::new().write(true).open("/dev/full")?.write_all(b"x")
        });
        let error = Error::io("write", &path, result.unwrap_err());
        assert!(error.is_disk_full(), "{error}");
        assert!(error.to_string().starts_with("cannot write ") && error.to_string().contains("x.safetensors"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "the temporary file is gone");
    }
}
