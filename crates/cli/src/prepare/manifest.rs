//! The manifest of a prepared dataset, `manifest.json` next to the shards.
//!
//! Out of scope: the work so far (`journal`).

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::archives::SourceFile;
use fulmen_data::{Error, Result};
use fulmen_files as store;

/// The name of the file.
pub(crate) const MANIFEST: &str = "manifest.json";

/// A prepared dataset: its shards with their checksums, its classes, and its sources.
///
/// It does not depend on the time, the place, or interruptions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of this format: 1.
    pub version: u32,
    /// `imagenet`, `coco` or `text`.
    pub dataset: String,
    /// `train` and others.
    pub splits: Vec<SplitManifest>,
    /// The classes by their index in the samples; empty for text.
    pub classes: Vec<Class>,
    /// The files that it was made from.
    pub sources: Vec<SourceFile>,
    /// The options that the shards depend on.
    pub options: BTreeMap<String, String>,
    /// Unusual samples that were kept unchanged.
    pub warnings: Vec<Warning>,
}

/// One split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitManifest {
    /// `train`, or another name.
    pub name: String,
    /// Samples in all its shards.
    pub samples: u64,
    /// Tokens in all its shards, if they have tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The size of all its shards in bytes.
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

/// One shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRecord {
    /// The file's name.
    pub name: String,
    /// The number of samples in it.
    pub samples: u64,
    /// The number of tokens in it, if it has tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its SHA-256 checksum in hexadecimal digits.
    pub sha256: String,
    /// The number of documents it was made from, if some gave no sample. Only for resuming a run;
    /// not in the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) documents: Option<u64>,
    /// Unusual samples in it. The manifest lists all of them together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
}

impl ShardRecord {
    /// The number of documents it was made from.
    pub(crate) fn documents(&self) -> u64 {
        self.documents.unwrap_or(self.samples)
    }
}

/// A class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Class {
    /// The number in the samples.
    pub index: usize,
    /// The dataset's id of it: ImageNet's `n01440764`, COCO's category `1`.
    pub id: String,
    /// Its name: `tench, Tinca tinca`.
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
    /// No `manifest.json` in the folder, or one in another format.
    pub fn read(folder: &Path) -> Result<Manifest> {
        let path = folder.join(MANIFEST);
        let bytes = std::fs::read(&path)
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

    /// Writes it atomically.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(MANIFEST);
        let mut text = serde_json::to_vec_pretty(self)
            .map_err(|source| Error::runtime("writing JSON", source))?;
        text.push(b'\n');
        store::write_whole(&path, &text)
            .map_err(|source| Error::io(&path, "writing the manifest", source))
    }
}
