//! [`Manifest`]: the contents of a checkpoint, and the location of each part of each tensor.
//!
//! The file is one JSON object, `{"sha256": …, "manifest": …}`, with the SHA-256 of the text of
//! `manifest`. All versions have this envelope, so readers can distinguish damage from a newer
//! version.

use std::collections::{BTreeMap, BTreeSet};

use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::blocks::BLOCK_BYTES;
use crate::header::MAX_HEADER_BYTES;
use crate::rectangle::elements;
use crate::shard::{WrittenShard, bytes_of, size_of};
use crate::{Error, Rectangle, Result, error};

/// The name of the manifest in the folder of a checkpoint.
pub const MANIFEST: &str = "manifest.json";

/// The version of the format that this crate writes, and the newest that it reads.
pub const FORMAT_VERSION: u64 = 1;

/// The size limit of a shard's header, with its length field.
const MAX_SHARD_HEADER_BYTES: u64 = MAX_HEADER_BYTES as u64 + 8;

/// The contents of a checkpoint, and the location of each part of each tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    format_version: u64,
    /// The training that wrote the checkpoint.
    pub run: Run,
    /// The files.
    pub shards: Vec<ShardEntry>,
    /// The tensors by their names.
    pub tensors: BTreeMap<String, TensorEntry>,
}

/// The training that wrote a checkpoint, and its progress.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    /// Finished optimizer steps.
    pub step: u64,
    /// Finished epochs.
    pub epoch: u64,
    /// The monitored value, by which checkpoints are ranked. A value that is not finite is stored
    /// as `None`.
    pub score: Option<f64>,
    /// The axes of the mesh, with the number of devices along each.
    pub mesh: Vec<(String, u64)>,
    /// The options of the Trainer.
    pub options: Map<String, Value>,
    /// The user's hyperparameters.
    pub hyperparameters: Map<String, Value>,
    /// The versions of the programs involved.
    pub versions: BTreeMap<String, String>,
    /// Other state that the Trainer needs to resume.
    pub training: Map<String, Value>,
}

/// A file of a checkpoint: a header, then the parts without gaps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardEntry {
    /// The name in the folder.
    pub file: String,
    /// The length of the file.
    pub bytes: u64,
    /// The length of the header, including the 8 bytes of its length field.
    pub header_bytes: u64,
    /// The CRC-32C of the header.
    pub header_crc32c: u32,
    /// The SHA-256 of the file, as `sha256sum` prints it.
    pub sha256: String,
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// The type of its elements.
    pub dtype: Dtype,
    /// The shape of the whole tensor.
    pub shape: Vec<u64>,
    /// The parts of the tensor. Together they cover each element once.
    pub parts: Vec<PartEntry>,
}

/// The location of a part of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartEntry {
    /// The part.
    #[serde(flatten)]
    pub rectangle: Rectangle,
    /// The file.
    pub file: String,
    /// The offset of its first byte in the file.
    pub start: u64,
    /// The CRC-32C of each MiB of the part; the last block may be shorter.
    pub crc32c: Vec<u32>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    sha256: String,
    manifest: Box<RawValue>,
}

impl Manifest {
    /// Combines what the processes have written.
    pub(crate) fn new(mut run: Run, written: Vec<WrittenShard>) -> Result<Manifest> {
        run.score = run.score.filter(|score| score.is_finite());
        let mut manifest = Manifest {
            format_version: FORMAT_VERSION,
            run,
            shards: Vec::new(),
            tensors: BTreeMap::new(),
        };
        for WrittenShard { shard, tensors } in written {
            manifest.shards.push(shard);
            for (name, incoming) in tensors {
                let entry = TensorEntry { parts: Vec::new(), ..incoming.clone() };
                let tensor = manifest.tensors.entry(name.clone()).or_insert(entry);
                if (tensor.dtype, &tensor.shape) != (incoming.dtype, &incoming.shape) {
                    return Err(Error::usage(format!(
                        "`{name}` is {} {:?} in one shard and {} {:?} in another; all processes must save the same \
                         tensors",
                        tensor.dtype, tensor.shape, incoming.dtype, incoming.shape
                    )));
                }
                tensor.parts.extend(incoming.parts);
            }
        }
        manifest.check().map_err(|error| {
            Error::usage(format!("the shards do not form a checkpoint: {error}"))
        })?;
        Ok(manifest)
    }

    /// The content of the file.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        let failed =
            |e: serde_json::Error| Error::usage(format!("cannot write the manifest as JSON: {e}"));
        let manifest = serde_json::value::to_raw_value(self).map_err(failed)?;
        let sha256 = hex(Sha256::digest(manifest.get()).as_ref());
        serde_json::to_vec(&Envelope { sha256, manifest }).map_err(failed)
    }

    /// Parses the content of a manifest file, which errors call `location`.
    pub(crate) fn from_bytes(bytes: &[u8], location: &str) -> Result<Manifest> {
        let damaged = |reason: String| error::damaged(format_args!("{location}: {reason}"));
        let envelope: Envelope = serde_json::from_slice(bytes)
            .map_err(|e| damaged(format!("not a complete manifest ({e})")))?;
        if hex(Sha256::digest(envelope.manifest.get()).as_ref()) != envelope.sha256 {
            return Err(damaged("the manifest does not match its checksum".into()));
        }
        #[derive(Deserialize)]
        struct Version {
            format_version: u64,
        }
        let wrong =
            |e: serde_json::Error| damaged(format!("not the manifest of a checkpoint ({e})"));
        let Version { format_version } =
            serde_json::from_str(envelope.manifest.get()).map_err(wrong)?;
        if format_version > FORMAT_VERSION {
            return Err(error::newer(format!(
                "{location}: the checkpoint has format version {format_version}, and this program reads up to \
                 {FORMAT_VERSION}; use the version of Fulmen that wrote it, or a newer one"
            )));
        }
        let manifest: Manifest = serde_json::from_str(envelope.manifest.get()).map_err(wrong)?;
        manifest.check().map_err(damaged)?;
        Ok(manifest)
    }

    /// The entry of a shard.
    pub(crate) fn shard(&self, file: &str) -> Option<&ShardEntry> {
        self.shards.iter().find(|shard| shard.file == file)
    }

    /// The parts in a file with their tensors, in file order.
    pub(crate) fn parts_in(&self, file: &str) -> Vec<(&str, &TensorEntry, &PartEntry)> {
        let tensors = self.tensors.iter().flat_map(|(name, tensor)| {
            tensor.parts.iter().map(move |part| (name.as_str(), tensor, part))
        });
        let mut parts: Vec<_> = tensors.filter(|(_, _, part)| part.file == file).collect();
        parts.sort_by_key(|(_, tensor, part)| {
            (part.start, bytes_of(tensor.dtype, &part.rectangle.extent))
        });
        parts
    }

    /// The size of all tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors.values().filter_map(|tensor| bytes_of(tensor.dtype, &tensor.shape)).sum()
    }

    /// Checks the guarantees that readers rely on: names stay in the folder, parts fill the shards
    /// without gaps, and the parts of a tensor cover each element once.
    fn check(&self) -> Result<(), String> {
        let mut files = BTreeSet::new();
        for shard in &self.shards {
            if shard.header_bytes > MAX_SHARD_HEADER_BYTES {
                return Err(format!(
                    "the header of {} has {} bytes, and the limit of the format is {MAX_SHARD_HEADER_BYTES}",
                    shard.file, shard.header_bytes
                ));
            }
            if !is_plain(&shard.file)
                || shard.file == MANIFEST
                || !files.insert(shard.file.as_str())
            {
                return Err(format!(
                    "`{}` is not a valid shard name, or is used twice",
                    shard.file
                ));
            }
        }
        let mut spans: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
        for (name, tensor) in &self.tensors {
            if size_of(tensor.dtype).is_none() || elements(&tensor.shape).is_none() {
                return Err(format!(
                    "`{name}` is {} {:?}, which is not a valid tensor",
                    tensor.dtype, tensor.shape
                ));
            }
            for part in &tensor.parts {
                part.rectangle.check_within(&tensor.shape).map_err(|e| format!("`{name}`: {e}"))?;
                let bytes = bytes_of(tensor.dtype, &part.rectangle.extent).unwrap_or_default();
                let end = part.start.checked_add(bytes);
                if part.crc32c.len() as u64 != bytes.div_ceil(BLOCK_BYTES) || end.is_none() {
                    return Err(format!(
                        "`{name}`{} has {} checksums",
                        part.rectangle,
                        part.crc32c.len()
                    ));
                }
                spans.entry(&part.file).or_default().push((part.start, end.unwrap_or_default()));
            }
            check_cover(tensor).map_err(|reason| format!("`{name}` {reason}"))?;
        }
        for shard in &self.shards {
            let mut spans = spans.remove(shard.file.as_str()).unwrap_or_default();
            spans.sort_unstable();
            let filled = spans.iter().try_fold(shard.header_bytes, |offset, (start, end)| {
                (offset == *start).then_some(*end)
            });
            if filled != Some(shard.bytes) {
                return Err(format!(
                    "the parts in {} do not fill its {} bytes",
                    shard.file, shard.bytes
                ));
            }
        }
        match spans.keys().next() {
            Some(file) => {
                Err(format!("parts of tensors refer to {file}, which is not one of its shards"))
            }
            None => Ok(()),
        }
    }
}

/// Checks that the parts of a tensor cover each element exactly once.
fn check_cover(tensor: &TensorEntry) -> Result<(), String> {
    let mut parts: Vec<&Rectangle> = tensor.parts.iter().map(|part| &part.rectangle).collect();
    parts.sort_by(|a, b| a.offset.cmp(&b.offset));
    for (i, part) in parts.iter().enumerate() {
        // Parts that begin after the end of this one along the first axis cannot overlap it.
        let end = part.offset.first().map_or(u64::MAX, |offset| offset + part.extent[0]);
        let mut candidates = parts[i + 1..]
            .iter()
            .take_while(|other| other.offset.first().is_none_or(|offset| *offset < end));
        if let Some(other) = candidates.find(|other| part.intersection(other).is_some()) {
            return Err(format!("has overlapping parts, {part} and {other}"));
        }
    }
    let covered: u64 = parts.iter().filter_map(|part| part.elements()).sum();
    let expected = elements(&tensor.shape).unwrap_or_default();
    if covered == expected {
        Ok(())
    } else {
        Err(format!("has {expected} elements, but its parts hold {covered}"))
    }
}

/// Whether a name is a plain file name: not hidden and without a path.
pub(crate) fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
