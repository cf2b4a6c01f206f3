//! [`Checkpoint`]: reads any rectangle of any tensor, even if it was written in different parts.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::{fmt, io};

use crc32c::crc32c;
use sha2::{Digest, Sha256};

use crate::blocks::Blocks;
use crate::manifest::hex;
use crate::retention::SHARD_EXTENSION;
use crate::shard::{bytes_of, size_of};
use crate::store::{Entry, Store};
use crate::{
    Error, LocalStore, MANIFEST, Manifest, PartEntry, Rectangle, Result, TensorEntry, error,
    open_store,
};

/// The size limit of a manifest in bytes; enough for the parts of millions of tensors.
const MAX_MANIFEST_BYTES: u64 = 1 << 30;

/// How many bytes to read at once when a tensor is streamed.
const SLAB_BYTES: u64 = 32 << 20;

/// A checkpoint with a complete manifest and all of its shards.
#[derive(Debug)]
pub struct Checkpoint {
    store: Arc<dyn Store>,
    name: String,
    manifest: Manifest,
    sha256: String,
    /// The shards whose header was verified.
    verified_shards: Mutex<BTreeSet<String>>,
}

/// A checkpoint whose manifest was read.
pub(crate) struct OpenedManifest {
    checkpoint: Checkpoint,
    folder: String,
    /// The files of the folder.
    entries: Vec<Entry>,
}

impl OpenedManifest {
    /// The first shard that is not as the manifest says, and how.
    pub(crate) fn wrong_shard(&self) -> Option<WrongShard> {
        self.checkpoint.manifest.shards.iter().find_map(|shard| {
            let found = self.entries.iter().find(|entry| entry.name == shard.file);
            let file = shard.file.clone();
            let expected = shard.bytes;
            match found.and_then(|entry| entry.bytes) {
                Some(bytes) if bytes == expected => None,
                Some(bytes) => Some(WrongShard::Length { file, bytes, expected }),
                None => Some(WrongShard::Missing(file)),
            }
        })
    }
}

/// How a shard differs from the manifest.
pub(crate) enum WrongShard {
    Missing(String),
    Length { file: String, bytes: u64, expected: u64 },
}

impl fmt::Display for WrongShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WrongShard::Missing(file) => write!(f, "the shard {file} is missing"),
            WrongShard::Length { file, bytes, expected } => {
                write!(f, "the shard {file} has {bytes} bytes instead of {expected}")
            }
        }
    }
}

/// The process that wrote a shard, from its name, such as `shard_1.safetensors`, or
/// `shard_1-2.safetensors` if the folder had that one. Process 0 also wrote the manifest, so it
/// saw the same folder.
fn other_writer(file: &str) -> Option<u64> {
    let number = file.strip_suffix(SHARD_EXTENSION)?.strip_prefix("shard_")?;
    let process = number.split('-').next()?.parse().ok()?;
    (process > 0).then_some(process)
}

impl Checkpoint {
    /// Opens the checkpoint `name` of a store. Values are compared with their checksums when they
    /// are read.
    ///
    /// # Errors
    /// The checkpoint does not exist or was not finished; its manifest is damaged or has a newer
    /// version; a shard is missing or has a different length.
    pub fn open(store: Arc<dyn Store>, name: &str) -> Result<Checkpoint> {
        let opened = Checkpoint::open_manifest(store, name)?;
        let Some(problem) = opened.wrong_shard() else { return Ok(opened.checkpoint) };
        let folder = &opened.folder;
        // All hosts see the same bucket.
        let is_address = folder.contains("://");
        if let WrongShard::Missing(file) = &problem
            && let Some(process) = other_writer(file).filter(|_| !is_address)
        {
            return Err(error::shard_elsewhere(folder, file, process));
        }
        Err(error::damaged(format_args!("{folder}: {problem}")))
    }

    /// Like [`Checkpoint::open`], without a look at the shards.
    pub(crate) fn open_manifest(store: Arc<dyn Store>, name: &str) -> Result<OpenedManifest> {
        let folder = store.describe(name);
        let entries = store.list(name).map_err(|e| error::io("read", &folder, e))?;
        let length = |file: &str| {
            entries.iter().find(|entry| entry.name == file).and_then(|entry| entry.bytes)
        };
        let Some(bytes) = length(MANIFEST) else {
            return Err(error::not_found(format!(
                "{folder}: there is no {MANIFEST}, so it is not a checkpoint, or it was not finished; use another one"
            )));
        };
        let file = join(name, MANIFEST);
        let location = store.describe(&file);
        if bytes > MAX_MANIFEST_BYTES {
            return Err(error::damaged(format_args!(
                "{location}: {bytes} bytes is too large for a manifest"
            )));
        }
        let mut content = vec![0; bytes as usize];
        store.read(&file, 0, &mut content).map_err(|e| error::io("read", &location, e))?;
        let manifest = Manifest::from_bytes(&content, &location)?;
        let sha256 = hex(Sha256::digest(&content).as_ref());
        let checkpoint = Checkpoint {
            store,
            name: name.to_owned(),
            manifest,
            sha256,
            verified_shards: Mutex::default(),
        };
        Ok(OpenedManifest { checkpoint, folder, entries })
    }

    /// Opens the checkpoint in a local folder, or below `gs://bucket/path` or `s3://bucket/path`.
    ///
    /// # Errors
    /// The errors of [`Checkpoint::open`] and [`open_store`]; the path is not a folder.
    pub fn open_folder(folder: impl AsRef<Path>) -> Result<Checkpoint> {
        let folder = folder.as_ref();
        let location = folder.display().to_string();
        if let Some((scheme, path)) = location.split_once("://") {
            let Some((parent, name)) = path.trim_end_matches('/').rsplit_once('/') else {
                return Err(Error::usage(format!(
                    "{location}: this is a bucket; use a checkpoint in it"
                )));
            };
            return Checkpoint::open(open_store(format!("{scheme}://{parent}"))?, name);
        }
        // Resolves paths such as `.`, which have no name.
        let whole = folder.canonicalize().map_err(|e| error::io("open", &location, e))?;
        match (whole.parent(), whole.file_name().and_then(|name| name.to_str())) {
            (Some(parent), Some(name)) if whole.is_dir() => {
                Checkpoint::open(Arc::new(LocalStore::new(parent)), name)
            }
            _ => Err(Error::usage(format!(
                "{location}: not the folder of a checkpoint; use the one that has a {MANIFEST}. Weights alone are loaded with \
                 load_weights"
            ))),
        }
    }

    /// The SHA-256 of the manifest file. Checkpoints with equal hashes have equal contents.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// The name in the store.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The contents of the checkpoint, and the location of each part.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Reads a rectangle of a tensor: its elements, little-endian and in row-major order.
    ///
    /// # Errors
    /// The tensor does not exist; the rectangle exceeds it; the bytes do not match their checksum;
    /// the store cannot be read; there is not enough memory.
    pub fn read(&self, tensor: &str, rectangle: &Rectangle) -> Result<Vec<u8>> {
        let entry = self.tensor(tensor)?;
        rectangle.check_within(&entry.shape)?;
        let mut bytes = Vec::new();
        let size =
            bytes_of(entry.dtype, &rectangle.extent).and_then(|size| usize::try_from(size).ok());
        let reserved = size.is_some_and(|size| bytes.try_reserve_exact(size).is_ok());
        if !reserved {
            let cause = io::ErrorKind::OutOfMemory.into();
            return Err(error::io(
                &format!("read `{tensor}`{rectangle}"),
                &self.store.describe(&self.name),
                cause,
            ));
        }
        bytes.resize(size.unwrap_or_default(), 0);
        self.read_into(tensor, entry, rectangle, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads a tensor in row-major order, slab by slab, and passes each slab to `take`. Holds at
    /// most 32 MiB in memory.
    ///
    /// # Errors
    /// The errors of [`Checkpoint::read`] and of `take`.
    pub fn stream(&self, tensor: &str, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let entry = self.tensor(tensor)?;
        let mut bytes = Vec::new();
        for slab in self.slabs(tensor)? {
            bytes.resize(bytes_of(entry.dtype, &slab.extent).unwrap_or_default() as usize, 0);
            self.read_into(tensor, entry, &slab, &mut bytes)?;
            take(&bytes)?;
        }
        Ok(())
    }

    /// Rectangles of at most 32 MiB that cover a tensor in row-major order.
    pub(crate) fn slabs(&self, tensor: &str) -> Result<Vec<Rectangle>> {
        let entry = self.tensor(tensor)?;
        Ok(Rectangle::slabs(&entry.shape, SLAB_BYTES / size_of(entry.dtype).unwrap_or(1)))
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<&TensorEntry> {
        self.manifest.tensors.get(name).ok_or_else(|| {
            error::not_found(format!(
                "{}: there is no tensor `{name}` in it",
                self.store.describe(&self.name)
            ))
        })
    }

    fn read_into(
        &self,
        name: &str,
        tensor: &TensorEntry,
        region: &Rectangle,
        into: &mut [u8],
    ) -> Result<()> {
        let size = size_of(tensor.dtype).unwrap_or(1);
        for part in &tensor.parts {
            let Some(common) = part.rectangle.intersection(region) else { continue };
            self.verify_header(&part.file)?;
            let mut blocks = self.blocks(name, tensor, part);
            part.rectangle.runs(region, &common, |from, to, run| {
                let to = (to * size) as usize;
                blocks.copy(from * size, &mut into[to..to + (run * size) as usize])
            })?;
        }
        Ok(())
    }

    /// A part of the tensor `name`, as blocks.
    pub(crate) fn blocks<'a>(
        &'a self,
        name: &'a str,
        tensor: &TensorEntry,
        part: &'a PartEntry,
    ) -> Blocks<'a> {
        let bytes = bytes_of(tensor.dtype, &part.rectangle.extent).unwrap_or_default();
        let read =
            move |start: u64, into: &mut [u8]| self.read_file(&part.file, part.start + start, into);
        let damaged = move |span: Range<u64>| {
            error::damaged(format_args!(
                "{}: bytes {} to {}, of the tensor `{name}`, do not match their checksum",
                self.location(&part.file),
                part.start + span.start,
                part.start + span.end
            ))
        };
        Blocks::new(bytes, &part.crc32c, read, damaged)
    }

    /// Compares the header of a shard with its checksum, once.
    pub(crate) fn verify_header(&self, file: &str) -> Result<()> {
        if self.verified_shards.lock().unwrap_or_else(PoisonError::into_inner).contains(file) {
            return Ok(());
        }
        self.header(file)?;
        self.verified_shards.lock().unwrap_or_else(PoisonError::into_inner).insert(file.to_owned());
        Ok(())
    }

    /// The header of a shard, verified.
    pub(crate) fn header(&self, file: &str) -> Result<Vec<u8>> {
        let location = self.location(file);
        let Some(shard) = self.manifest.shard(file) else {
            return Err(error::damaged(format_args!("{location}: not a shard of this manifest")));
        };
        let mut header = vec![0; shard.header_bytes as usize];
        self.read_file(file, 0, &mut header)?;
        if crc32c(&header) != shard.header_crc32c {
            return Err(error::damaged(format_args!(
                "{location}: the header does not match its checksum"
            )));
        }
        Ok(header)
    }

    /// The full name of a file of the checkpoint, for messages.
    pub(crate) fn location(&self, file: &str) -> String {
        self.store.describe(&join(&self.name, file))
    }

    fn read_file(&self, file: &str, start: u64, into: &mut [u8]) -> Result<()> {
        self.store
            .read(&join(&self.name, file), start, into)
            .map_err(|e| error::io("read", &self.location(file), e))
    }
}

/// The name of a file in a folder of a store.
pub(crate) fn join(folder: &str, file: &str) -> String {
    if folder.is_empty() { file.to_owned() } else { format!("{folder}/{file}") }
}
