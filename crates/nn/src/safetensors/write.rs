//! Writes values to a file that is either complete or absent.

use std::borrow::Borrow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use fulmen_checkpoint::header;
use fulmen_tensor::{Literal, TensorType};

use super::checksums::{self, TensorChecksums};
use super::{CHECKSUMS, to_format};
use crate::{Result, error};

/// Writes named values and metadata to a file.
///
/// The values go to a temporary file in the same folder, which is synced and then renamed to
/// `path`. So `path` never has an incomplete file, and an existing file is unchanged if writing
/// fails, for example on a full disk. Equal values give equal bytes. [Checksums](super::CHECKSUMS)
/// of everything are added to the metadata.
/// # Errors
/// The folder does not exist or cannot be written, or the disk is full; a name is empty, duplicated
/// or reserved; a value is c128, which the format does not support.
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
pub fn write(
    path: impl AsRef<Path>,
    tensors: &[(String, Literal)],
    metadata: &BTreeMap<String, String>,
) -> Result<()> {
    let types: Vec<_> =
        tensors.iter().map(|(name, value)| (name.clone(), value.ty().clone())).collect();
    let path = path.as_ref();
    write_each(path, path, &types, metadata, |group| {
        Ok(group.iter().map(|&i| &tensors[i].1).collect())
    })
}

/// The size of the values held at once, unless a single one is larger.
const GROUP: usize = 64 << 20;

/// Like [`write()`], for values that are requested in groups by their indices, so that only one
/// group is in memory at a time. Errors call the file `named`.
pub(crate) fn write_each<L: Borrow<Literal>>(
    path: &Path,
    named: &Path,
    types: &[(String, TensorType)],
    metadata: &BTreeMap<String, String>,
    mut values: impl FnMut(&[usize]) -> Result<Vec<L>>,
) -> Result<()> {
    // With larger elements first, every value is aligned to its element size, as readers that map
    // the file expect.
    let mut order: Vec<usize> = (0..types.len()).collect();
    order.sort_by_key(|&i| (Reverse(types[i].1.dtype.size_in_bytes()), &types[i].0));
    let bytes = |i: usize| types[i].1.size_in_bytes();
    // The checksums precede the values and are not known yet, so space for the longest ones is
    // reserved.
    let mut sums: BTreeMap<&str, TensorChecksums> =
        types.iter().map(|(name, ty)| (name.as_str(), TensorChecksums::longest(ty))).collect();
    let room =
        header_of(types, &order, metadata, &sums).map_err(|e| error::io("write", named, e))?.len();
    let whole = (room + order.iter().map(|&i| bytes(i)).sum::<usize>()) as u64;
    let mut failure = None;
    let written = fulmen_durable::write(path, Some(whole), |file| {
        file.write_all(&vec![0; room])?;
        let mut rest = &order[..];
        while !rest.is_empty() {
            let mut group_bytes = 0;
            let fits = |&&i: &&usize| {
                group_bytes += bytes(i);
                group_bytes <= GROUP
            };
            let (group, after) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            let literals = values(group).map_err(|error| {
                failure = Some(error);
                io::Error::other("cannot read a value")
            })?;
            for (&i, literal) in group.iter().zip(&literals) {
                let literal: &Literal = literal.borrow();
                sums.insert(&types[i].0, TensorChecksums::of(literal.ty(), literal.bytes()));
                file.write_all(literal.bytes())?;
            }
            rest = after;
        }
        let mut header = header_of(types, &order, metadata, &sums)?;
        header.resize(room, b' ');
        header[..8].copy_from_slice(&(room as u64 - 8).to_le_bytes());
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&header)
    });
    match failure {
        Some(error) => Err(error),
        None => written.map_err(|e| error::io("write", named, e)),
    }
}

fn header_of(
    types: &[(String, TensorType)],
    order: &[usize],
    metadata: &BTreeMap<String, String>,
    sums: &BTreeMap<&str, TensorChecksums>,
) -> io::Result<Vec<u8>> {
    let refuse = |message: String| io::Error::new(io::ErrorKind::InvalidInput, message);
    let mut metadata = metadata.clone();
    metadata.insert(CHECKSUMS.to_owned(), checksums::write(sums, &metadata));
    let tensors = order.iter().map(|&i| {
        let (name, ty) = &types[i];
        let dtype = to_format(ty.dtype).ok_or_else(|| {
            refuse(format!("`{name}` is {ty}, which the format does not support; convert it first"))
        })?;
        Ok((name.clone(), dtype, ty.shape.dims().iter().map(|&size| size as u64).collect()))
    });
    header(&tensors.collect::<io::Result<Vec<_>>>()?, &metadata).map_err(refuse)
}
