//! Reads files and checks every number in their headers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crc32c::{crc32c, crc32c_append};
use fulmen_checkpoint::Blocks;
use fulmen_tensor::{Block, DType, Literal, TensorType};
use safetensors::tensor::Metadata;

use super::checksums::{self, Checksums};
use super::from_format;
use crate::{Error, Result, error};

/// What an error calls the format.
const FORMAT: &str = "safetensors file";

/// What an error about a file that has vanished says first.
const WHEN_READ: &str = "reading weights when a device needs them; keep their file until then";

/// How many bytes to read at once when a value is verified.
const PIECE_BYTES: u64 = 1 << 20;

/// A fingerprint of a value covers this many pieces, which are spread evenly over the value.
const SAMPLE_PIECES: u64 = 16;

/// The bytes of each piece.
const SAMPLE_BYTES: u64 = 64;

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
    header_checksum: u32,
    version: Version,
}

/// What changes when a file is replaced or written.
#[derive(PartialEq, Eq)]
struct Version {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Version {
    fn of(file: &std::fs::Metadata) -> Version {
        Version {
            device: file.dev(),
            inode: file.ino(),
            size: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
        }
    }
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
        let mut bytes = self.stored_bytes(name, ty, &Block::whole(&ty.shape), None)?;
        let compared = self.checksums.compare_tensor(name, || checksums::of_tensor(ty, &bytes));
        compared.map_err(|reason| self.refuse(reason))?;
        normalize(ty.dtype, &mut bytes);
        Literal::from_bytes(ty.clone(), &bytes).map_err(|e| self.refuse(format!("`{name}`: {e}")))
    }

    /// Reads only a block of a value with this name and type.
    pub(crate) fn block(&self, name: &str, ty: &TensorType, block: &Block) -> Result<Vec<u8>> {
        let sums = self.block_checksums(name, ty)?;
        let mut bytes = self.stored_bytes(name, ty, block, sums.as_deref())?;
        normalize(ty.dtype, &mut bytes);
        Ok(bytes)
    }

    /// The bytes of a block as they are in the file. `sums` are the checksums of the MiBs of the
    /// value, if they should be compared.
    fn stored_bytes(
        &self,
        name: &str,
        ty: &TensorType,
        block: &Block,
        sums: Option<&[u32]>,
    ) -> Result<Vec<u8>> {
        let span = self.span(name)?;
        let size = ty.dtype.size_in_bytes();
        let mut bytes = Vec::new();
        let count = block.size.iter().product::<usize>() * size;
        bytes.try_reserve_exact(count).map_err(|e| error::io("read", &self.path, e.into()))?;
        bytes.resize(count, 0);
        let start = span.start;
        let mut verified = sums.map(|sums| {
            let read = move |offset: u64, into: &mut [u8]| self.read_at(start + offset, into);
            let damaged = move |_: Range<u64>| self.refuse(checksums::does_not_match(name));
            Blocks::new(span.end - start, sums, read, damaged)
        });
        let mut result = Ok(());
        block.contiguous_runs(&ty.shape, |offset, to, length| {
            let into = &mut bytes[to * size..][..length * size];
            let offset = (offset * size) as u64;
            if result.is_ok() {
                result = match &mut verified {
                    Some(blocks) => blocks.copy(offset, into),
                    None => self.read_at(start + offset, into),
                };
            }
        });
        drop(verified);
        result?;
        self.check_unchanged()?;
        Ok(bytes)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let read = self.file.read_exact_at(into, self.start + offset);
        read.map_err(|e| error::io("read", &self.path, e))
    }

    fn block_checksums(&self, name: &str, ty: &TensorType) -> Result<Option<Vec<u32>>> {
        self.checksums.blocks(name, ty).map_err(|reason| self.refuse(reason))
    }

    /// Compares a value with its checksum, if it has one, unless its blocks have some, which
    /// [`Reader::block`] compares. The value is read in pieces.
    pub(crate) fn verify(&self, name: &str, ty: &TensorType) -> Result<()> {
        if !self.checksums.exist() || self.block_checksums(name, ty)?.is_some() {
            return Ok(());
        }
        let span = self.span(name)?;
        let mut piece = vec![0; PIECE_BYTES.min(span.end - span.start) as usize];
        let mut checksum = checksums::of_tensor(ty, &[]);
        let mut next = span.start;
        while next < span.end {
            let length = PIECE_BYTES.min(span.end - next);
            let piece = &mut piece[..length as usize];
            self.read_at(next, piece)?;
            checksum = crc32c_append(checksum, piece);
            next += length;
        }
        self.checksums.compare_tensor(name, || checksum).map_err(|reason| self.refuse(reason))
    }

    /// A text that differs between files with other contents: it has checksums of the header and of
    /// samples of the value. Two values that differ only between the samples have the same one.
    pub(crate) fn fingerprint(&self, name: &str) -> Result<String> {
        let span = self.span(name)?;
        let length = span.end - span.start;
        let mut piece = vec![0; SAMPLE_BYTES.min(length) as usize];
        let last = length - piece.len() as u64;
        let mut checksum = 0;
        for number in 0..SAMPLE_PIECES {
            let offset = u128::from(last) * u128::from(number) / u128::from(SAMPLE_PIECES - 1);
            self.read_at(span.start + offset as u64, &mut piece)?;
            checksum = crc32c_append(checksum, &piece);
        }
        self.check_unchanged()?;
        Ok(format!("{:08x} {name} {checksum:08x}", self.header_checksum))
    }

    /// Where a value is, relative to the first one.
    fn span(&self, name: &str) -> Result<Range<u64>> {
        let Some(info) = self.header.info(name) else {
            return Err(self.refuse(format!("it has no `{name}`")));
        };
        Ok(info.data_offsets.0 as u64..info.data_offsets.1 as u64)
    }

    /// Checks that the path still has the file that was opened, with the same content.
    fn check_unchanged(&self) -> Result<()> {
        match std::fs::metadata(&self.path) {
            Ok(now) if Version::of(&now) == self.version => Ok(()),
            Ok(_) => Err(error::changed(&self.path)),
            Err(e) => Err(error::io("read", &self.path, e).context(WHEN_READ)),
        }
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
        let version = Version::of(&file.metadata().map_err(io)?);
        let size = version.size;
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
            header_checksum: crc32c(&text),
            version,
        })
    }
}

/// In a file, every byte of a boolean value except 0 means true; a device needs 1.
fn normalize(dtype: DType, bytes: &mut [u8]) {
    if dtype == DType::Bool {
        bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
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

    #[test]
    fn values_that_differ_at_their_start_middle_or_end_have_other_fingerprints() {
        let folder = tempfile::tempdir().unwrap();
        let fingerprint = |name: &str, changed: &[usize]| {
            let mut bytes = vec![0u8; 5000];
            changed.iter().for_each(|&at| bytes[at] = 1);
            let header = br#"{"w":{"dtype":"U8","shape":[5000],"data_offsets":[0,5000]}}"#;
            let path = folder.path().join(name);
            let length = (header.len() as u64).to_le_bytes();
            std::fs::write(&path, [&length[..], header, &bytes].concat()).unwrap();
            Reader::open(&path).unwrap().fingerprint("w").unwrap()
        };
        let zeros = fingerprint("zeros", &[]);
        assert_eq!(fingerprint("same", &[]), zeros);
        for changed in [0, 2310, 4999] {
            assert_ne!(fingerprint("changed", &[changed]), zeros, "{changed}");
        }
    }
}
