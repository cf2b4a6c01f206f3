//! Reads files and checks every number in their headers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fulmen_tensor::{DType, Literal, TensorType};
use safetensors::tensor::Metadata;

use super::checksums::Checksums;
use super::from_format;
use crate::{Error, Result, error};

/// What an error calls the format.
const FORMAT: &str = "safetensors file";

/// The format's own limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Reads the named values and the metadata of a safetensors file.
///
/// If the file has [checksums](super::CHECKSUMS), as those that [`write`](super::write) makes,
/// everything is verified.
///
/// # Errors
/// The file cannot be read; it is not a safetensors file, is truncated or is damaged; it has an
/// unsupported element type.
pub fn read(
    path: impl AsRef<Path>,
) -> Result<(BTreeMap<String, Literal>, BTreeMap<String, String>)> {
    let file = Reader::open(path.as_ref())?;
    // The header was checked: the values are contiguous in this order, up to the end of the file.
    let tensors =
        file.types()?.into_iter().map(|(name, ty)| Ok((name.clone(), file.value(&name, &ty)?)));
    Ok((tensors.collect::<Result<_>>()?, file.metadata))
}

/// Reads only the metadata, without the values.
///
/// # Errors
/// Those of [`read`], except errors in the values.
///
/// ```
/// use std::collections::BTreeMap;
/// use fulmen_nn::safetensors;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("x.safetensors");
/// safetensors::write(&path, &[], &BTreeMap::from([("author".to_owned(), "me".to_owned())]))?;
/// assert_eq!(safetensors::read_metadata(&path)?["author"], "me");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read_metadata(path: impl AsRef<Path>) -> Result<BTreeMap<String, String>> {
    Ok(Reader::open(path.as_ref())?.metadata)
}

/// A file whose header was read and matches its size. Values are read on request.
pub(crate) struct Reader {
    path: PathBuf,
    file: File,
    /// The offset of the values.
    start: u64,
    header: Metadata,
    metadata: BTreeMap<String, String>,
    checksums: Checksums,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Reader").field(&self.path).finish()
    }
}

impl Reader {
    /// The names and types, in file order.
    pub(crate) fn types(&self) -> Result<Vec<(String, TensorType)>> {
        let types = self.header.offset_keys().into_iter().filter_map(|name| {
            let info = self.header.info(&name)?;
            Some(match from_format(info.dtype) {
                Some(dtype) => Ok((name, TensorType::new(dtype, info.shape.as_slice()))),
                None => Err(self.refuse(format!(
                    "`{name}` has elements of the unsupported type {:?}",
                    info.dtype
                ))),
            })
        });
        types.collect()
    }

    /// Reads a value with this name and type.
    pub(crate) fn value(&self, name: &str, ty: &TensorType) -> Result<Literal> {
        let Some(info) = self.header.info(name) else {
            return Err(self.refuse(format!("it has no `{name}`")));
        };
        let (begin, end) = info.data_offsets;
        let mut bytes = Vec::new();
        let read = bytes.try_reserve_exact(end - begin).map_err(io::Error::from).and_then(|()| {
            bytes.resize(end - begin, 0);
            self.file.read_exact_at(&mut bytes, self.start + begin as u64)
        });
        read.map_err(|e| error::io("read", &self.path, e))?;
        self.checksums.compare_tensor(name, ty, &bytes).map_err(|reason| self.refuse(reason))?;
        if ty.dtype == DType::Bool {
            // In a file, every byte except 0 means true; a device needs 1.
            bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        Literal::from_bytes(ty.clone(), &bytes).map_err(|e| self.refuse(format!("`{name}`: {e}")))
    }

    fn refuse(&self, message: String) -> Error {
        error::format(&self.path, FORMAT, message)
    }

    /// Reads the header of a file.
    pub(crate) fn open(path: &Path) -> Result<Reader> {
        let io = |e| error::io("read", path, e);
        let refuse = |message: String| error::format(path, FORMAT, message);
        let file_info = std::fs::metadata(path).map_err(io)?;
        if file_info.is_dir() {
            return Err(refuse("it is a folder; use a file in it".into()));
        }
        if !file_info.is_file() {
            // A device has no end, and opening a pipe would wait for a writer.
            return Err(refuse("it is not a regular file".into()));
        }
        let mut file = File::open(path).map_err(io)?;
        let size = file_info.len();
        let mut start = Vec::new();
        Read::by_ref(&mut file).take(8).read_to_end(&mut start).map_err(io)?;
        if is_pytorch(&start) {
            return Err(refuse(
            "it is a PyTorch file, which has weights but no training state of Fulmen; load the weights into a model \
             with load_weights"
                .into(),
        ));
        }
        let header_bytes = <[u8; 8]>::try_from(start).map_or(u64::MAX, u64::from_le_bytes);
        if header_bytes > MAX_HEADER_BYTES.min(size.saturating_sub(8)) {
            return Err(refuse(format!(
                "its {size} bytes do not contain a header; it is truncated or has a different format"
            )));
        }
        let mut text = vec![0; header_bytes as usize];
        file.read_exact(&mut text).map_err(io)?;
        let header: Metadata = serde_json::from_slice(&text)
            .map_err(|e| refuse(format!("its header is damaged or has a different format: {e}")))?;
        let expected = 8 + text.len() as u64 + header.data_len() as u64;
        if size != expected {
            let state = if size < expected { "truncated" } else { "damaged" };
            return Err(refuse(format!(
                "it has {size} bytes, and its header describes {expected}; it is {state}"
            )));
        }
        let metadata = header
            .metadata()
            .iter()
            .flatten()
            .map(|(key, text)| (key.clone(), text.clone()))
            .collect();
        let checksums = Checksums::read(&metadata, &header.offset_keys()).map_err(refuse)?;
        Ok(Reader {
            path: path.to_owned(),
            file,
            start: 8 + text.len() as u64,
            header,
            metadata,
            checksums,
        })
    }
}

/// Whether a file begins like PyTorch's: a zip archive or, in old ones, a pickle. The length of a
/// header may equal the first bytes of a pickle, for example 640, but the following bytes then
/// differ.
fn is_pytorch(start: &[u8]) -> bool {
    let is_length = || {
        <[u8; 8]>::try_from(start).is_ok_and(|start| u64::from_le_bytes(start) <= MAX_HEADER_BYTES)
    };
    start.starts_with(b"PK\x03\x04") || matches!(start, [0x80, 2..=5, ..]) && !is_length()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_as_long_as_a_pickle_begins_is_a_header() {
        for length in [0x0280u64, 0x0380, 0x0480, 0x0580, 0x10280] {
            assert!(!is_pytorch(&length.to_le_bytes()), "{length}");
        }
        // The magic number of an old `torch.save` file, and an empty dictionary.
        assert!(
            is_pytorch(&[0x80, 2, 0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46])
                && is_pytorch(&[0x80, 2, b'}', b'.'])
        );
        assert!(is_pytorch(b"PK\x03\x04\0\0\0\0"));
    }
}
