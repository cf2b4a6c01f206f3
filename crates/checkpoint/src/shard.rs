//! [`ShardWriter`]: writes one safetensors file, part by part.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::thread;

use crc32c::{crc32c, crc32c_append};
use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::blocks::BLOCK_BYTES;
use crate::header::header;
use crate::manifest::hex;
use crate::rectangle::elements;
use crate::store::{NewObject, Store};
use crate::{Error, PartEntry, Rectangle, Result, ShardEntry, TensorEntry, error};

/// A part of a tensor to store in a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    rectangle: Rectangle,
}

impl Part {
    /// A whole tensor.
    pub fn whole(name: impl Into<String>, dtype: Dtype, shape: impl Into<Vec<u64>>) -> Part {
        let shape = shape.into();
        Part { name: name.into(), dtype, rectangle: Rectangle::whole(&shape), shape }
    }

    /// A rectangle of a tensor whose whole shape is `shape`.
    pub fn slice(
        name: impl Into<String>,
        dtype: Dtype,
        shape: impl Into<Vec<u64>>,
        rectangle: Rectangle,
    ) -> Part {
        Part { name: name.into(), dtype, shape: shape.into(), rectangle }
    }

    /// The name of the tensor.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Which part of the tensor it is.
    pub fn rectangle(&self) -> &Rectangle {
        &self.rectangle
    }

    /// The size of its elements in bytes.
    pub fn bytes(&self) -> u64 {
        bytes_of(self.dtype, &self.rectangle.extent).unwrap_or(u64::MAX)
    }

    /// The name in the file. The name of a part includes its rectangle, so that it is not mistaken
    /// for the whole tensor.
    fn key(&self) -> String {
        if self.rectangle == Rectangle::whole(&self.shape) {
            self.name.clone()
        } else {
            format!("{}{}", self.name, self.rectangle)
        }
    }
}

/// The size of an element in bytes, unless several elements share one.
pub(crate) fn size_of(dtype: Dtype) -> Option<u64> {
    dtype.bitsize().is_multiple_of(8).then_some(dtype.bitsize() as u64 / 8)
}

/// The size in bytes of a tensor of this shape.
pub(crate) fn bytes_of(dtype: Dtype, shape: &[u64]) -> Option<u64> {
    elements(shape)?.checked_mul(size_of(dtype)?)
}

/// A finished shard, for the manifest. Processes send it as JSON to the one that commits the
/// checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenShard {
    /// The entry of the file.
    pub(crate) shard: ShardEntry,
    /// The tensors that it contains.
    pub(crate) tensors: BTreeMap<String, TensorEntry>,
}

/// A shard that is being written. It buffers no values: all bytes go directly to the store.
///
/// ```
/// use fulmen_checkpoint::{CheckpointWriter, Dtype, LocalStore, Part};
///
/// let folder = tempfile::tempdir()?;
/// let writer = CheckpointWriter::new(std::sync::Arc::new(LocalStore::new(folder.path())), "step_1")?;
/// let parts = vec![Part::whole("a", Dtype::U8, [2]), Part::whole("b", Dtype::F32, [1])];
/// let mut shard = writer.shard("shard.safetensors", parts)?;
/// // Larger elements come first.
/// while let Some(part) = shard.next_part() {
///     let bytes = vec![0; part.bytes() as usize];
///     shard.write(&bytes)?;
/// }
/// shard.commit()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ShardWriter {
    file: Box<dyn NewObject>,
    location: String,
    parts: Vec<(Part, PartEntry)>,
    /// The index of the next part, and how much of it is written.
    next: usize,
    written: u64,
    sha256: Sha256,
    entry: ShardEntry,
}

impl std::fmt::Debug for ShardWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardWriter")
            .field("location", &self.location)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

impl ShardWriter {
    /// Begins the shard `file` in the folder `folder`.
    pub(crate) fn new(
        store: &dyn Store,
        folder: &str,
        file: &str,
        mut parts: Vec<Part>,
    ) -> Result<ShardWriter> {
        let name = if folder.is_empty() { file.to_owned() } else { format!("{folder}/{file}") };
        let location = store.describe(&name);
        // With larger elements first, every value is aligned to its element size, as readers that
        // map the file expect.
        parts.sort_by_key(|part| Reverse(part.dtype));
        let header = header_of(&parts)?;
        let mut start = header.len() as u64;
        let mut entries = Vec::new();
        for part in parts {
            let entry = PartEntry {
                rectangle: part.rectangle.clone(),
                file: file.to_owned(),
                start,
                crc32c: Vec::new(),
            };
            start += part.bytes();
            entries.push((part, entry));
        }
        let mut object =
            store.create(&name, start).map_err(|e| error::io("write", &location, e))?;
        object.write_all(&header).map_err(|e| error::io("write", &location, e))?;
        let mut sha256 = Sha256::new();
        sha256.update(&header);
        let entry = ShardEntry {
            file: file.to_owned(),
            bytes: start,
            header_bytes: header.len() as u64,
            header_crc32c: crc32c(&header),
            sha256: String::new(),
        };
        let mut writer = ShardWriter {
            file: object,
            location,
            parts: entries,
            next: 0,
            written: 0,
            sha256,
            entry,
        };
        writer.skip_complete_parts();
        Ok(writer)
    }

    /// The part that the next byte belongs to; `None` when all are written.
    pub fn next_part(&self) -> Option<&Part> {
        self.parts.get(self.next).map(|(part, _)| part)
    }

    /// Writes the next bytes, all or some, of [`next_part`](ShardWriter::next_part), little-endian
    /// and in row-major order.
    ///
    /// # Errors
    /// There are more bytes than the part has left; the store cannot be written or is full.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let remaining = self.next_part().map_or(0, |part| part.bytes() - self.written);
        if bytes.len() as u64 > remaining {
            let name = self.next_part().map_or("the shard", Part::name);
            return Err(Error::usage(format!(
                "{}: got {} bytes for {name}, which has only {remaining} left to write",
                self.location,
                bytes.len()
            )));
        }
        let ShardWriter { file, sha256, parts, next, written, .. } = self;
        let Some((_, entry)) = parts.get_mut(*next) else { return Ok(()) };
        let result = hash_in_parallel(sha256, bytes, || {
            file.write_all(bytes)?;
            append_checksums(&mut entry.crc32c, *written, bytes);
            Ok(())
        });
        result.map_err(|e| error::io("write", &self.location, e))?;
        self.written += bytes.len() as u64;
        self.skip_complete_parts();
        Ok(())
    }

    fn skip_complete_parts(&mut self) {
        while self.next_part().is_some_and(|part| part.bytes() == self.written) {
            (self.next, self.written) = (self.next + 1, 0);
        }
    }

    /// Makes the shard visible and durable. It becomes part of a checkpoint once a manifest names
    /// it.
    ///
    /// # Errors
    /// A part is incomplete; the store fails.
    pub fn commit(mut self) -> Result<WrittenShard> {
        if let Some(part) = self.next_part() {
            let name = part.name();
            let bytes = part.bytes();
            return Err(Error::usage(format!(
                "{}: `{name}` has {} of its {bytes} bytes",
                self.location, self.written
            )));
        }
        self.file.commit().map_err(|e| error::io("write", &self.location, e))?;
        self.entry.sha256 = hex(self.sha256.finalize().as_ref());
        let mut tensors: BTreeMap<String, TensorEntry> = BTreeMap::new();
        for (Part { name, dtype, shape, .. }, entry) in self.parts {
            tensors
                .entry(name)
                .or_insert(TensorEntry { dtype, shape, parts: Vec::new() })
                .parts
                .push(entry);
        }
        Ok(WrittenShard { shard: self.entry, tensors })
    }
}

/// Runs `write` while another thread hashes the bytes, if there are enough of them.
fn hash_in_parallel(
    sha256: &mut Sha256,
    bytes: &[u8],
    write: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    if (bytes.len() as u64) < BLOCK_BYTES {
        sha256.update(bytes);
        return write();
    }
    let (written, hashed) = thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, || sha256.update(bytes));
        (write(), thread.is_ok())
    });
    if !hashed {
        sha256.update(bytes);
    }
    written
}

/// Appends the checksums of the blocks of `bytes`, which start at offset `start` of the part.
fn append_checksums(checksums: &mut Vec<u32>, mut start: u64, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let offset = start % BLOCK_BYTES;
        let (chunk, rest) = bytes.split_at(bytes.len().min((BLOCK_BYTES - offset) as usize));
        match checksums.last_mut() {
            Some(checksum) if offset > 0 => *checksum = crc32c_append(*checksum, chunk),
            _ => checksums.push(crc32c(chunk)),
        }
        start += chunk.len() as u64;
        bytes = rest;
    }
}

/// The header of a file with these parts.
fn header_of(parts: &[Part]) -> Result<Vec<u8>> {
    for part in parts {
        part.rectangle
            .check_within(&part.shape)
            .map_err(|e| Error::usage(format!("`{}`: {e}", part.name)))?;
    }
    let tensor = |part: &Part| (part.key(), part.dtype, part.rectangle.extent.clone());
    // Python readers look for this key to learn which framework's layout the values have.
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    header(&parts.iter().map(tensor).collect::<Vec<_>>(), &metadata).map_err(Error::usage)
}
