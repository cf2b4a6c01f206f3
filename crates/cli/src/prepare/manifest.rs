//! The manifest of a prepared dataset, `manifest.json` next to the shards.
//!
//! Out of scope: the progress of an unfinished run (`journal`).

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::archives::SourceFile;
use fulmen_data::{Error, Result};
use fulmen_files as store;

/// The name of the file.
pub(crate) const MANIFEST: &str = "manifest.json";

/// The maximum size of a JSON file about a dataset.
pub(crate) const MAX_JSON_BYTES: u64 = 256 << 20;

/// A prepared dataset: its shards with their checksums, its classes, and its sources.
///
/// The manifest does not depend on the time, the machine, or interruptions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of this format, which is 1.
    pub version: u32,
    /// `imagenet`, `coco` or `text`.
    pub dataset: String,
    /// The splits, such as `train`.
    pub splits: Vec<SplitManifest>,
    /// The classes by their index in the samples; empty for text.
    pub classes: Vec<Class>,
    /// The files from which the shards were made.
    pub sources: Vec<SourceFile>,
    /// The options that the shards depend on.
    pub options: BTreeMap<String, String>,
    /// Unusual samples that were kept unchanged.
    pub warnings: Vec<Warning>,
}

/// A split of the dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitManifest {
    /// The name of the split, such as `train`.
    pub name: String,
    /// The number of samples in all shards.
    pub samples: u64,
    /// The number of tokens in all shards, if they have tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The size of all shards in bytes.
    pub bytes: u64,
    /// The shards in order.
    pub shards: Vec<ShardRecord>,
}

impl SplitManifest {
    pub(crate) fn new(name: &str, shards: Vec<ShardRecord>) -> SplitManifest {
        SplitManifest {
            name: name.to_owned(),
            samples: shards.iter().map(|shard| shard.samples).sum(),
            tokens: shards.iter().map(|shard| shard.tokens).sum(),
            bytes: shards.iter().map(|shard| shard.bytes).sum(),
            shards,
        }
    }
}

/// A shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRecord {
    /// The name of the file.
    pub name: String,
    /// The number of samples.
    pub samples: u64,
    /// The number of tokens, if the shard has tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The size in bytes.
    pub bytes: u64,
    /// The SHA-256 checksum in hexadecimal digits.
    pub sha256: String,
    /// The number of documents from which the shard was made, if some documents gave no sample. It
    /// is only for resuming a run, and not in the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) documents: Option<u64>,
    /// Unusual samples in the shard. The manifest lists those of all shards together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
}

impl ShardRecord {
    /// The number of documents from which the shard was made.
    pub(crate) fn documents(&self) -> u64 {
        self.documents.unwrap_or(self.samples)
    }
}

/// A class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Class {
    /// The index of the class in the samples.
    pub index: usize,
    /// The id of the class in the dataset: ImageNet's `n01440764`, COCO's category `1`.
    pub id: String,
    /// The name of the class: `tench, Tinca tinca`.
    pub name: String,
}

/// A warning about a sample that was kept unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// The sample's key.
    pub sample: String,
    /// The warning.
    pub what: String,
}

impl Manifest {
    /// Reads the manifest of a folder of shards.
    ///
    /// # Errors
    /// No `manifest.json` in the folder; a `manifest.json` in a different format.
    pub fn read(folder: &Path) -> Result<Manifest> {
        let path = folder.join(MANIFEST);
        let bytes = fulmen_durable::read_regular(&path, MAX_JSON_BYTES)
            .map_err(|source| Error::io(&path, "reading the manifest", source))?;
        let manifest: Manifest = serde_json::from_slice(&bytes)
            .map_err(|source| Error::file(&path, format!("not a manifest of shards: {source}")))?;
        match manifest.version {
            1 => Ok(manifest),
            version => {
                Err(Error::file(&path, format!("version {version} of the manifest, expected 1")))
            }
        }
    }

    /// Writes the manifest atomically.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(MANIFEST);
        let mut text = serde_json::to_vec_pretty(self)
            .map_err(|source| Error::runtime("writing JSON", source))?;
        text.push(b'\n');
        store::write_whole(&path, &text)
            .map_err(|source| Error::io(&path, "writing the manifest", source))
    }
}
