//! The list of what was made, which stands beside the shards as `manifest.json`.
//!
//! Not here: what is done so far (`journal`).

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::archives::SourceFile;
use fulmen_data::{Error, Result};
use fulmen_files as store;

/// The name of the file.
pub(crate) const MANIFEST: &str = "manifest.json";

/// What a prepared dataset is: its shards with their checksums, its classes, and what it was made from.
///
/// Nothing in it depends on when, where, or in how many goes it was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of this form: 1.
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
    /// What was found strange and kept as it was.
    pub remarks: Vec<Warning>,
}

/// One split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitManifest {
    /// `train`, or another.
    pub name: String,
    /// Samples in all its shards.
    pub samples: u64,
    /// Tokens in all its shards, where they are of tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Bytes of all its shards.
    pub bytes: u64,
    /// The shards in their order.
    pub shards: Vec<ShardRecord>,
}

impl SplitManifest {
    pub(crate) fn of(name: &str, shards: Vec<ShardRecord>) -> SplitManifest {
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
    /// How many samples are in it.
    pub samples: u64,
    /// How many tokens are in it, where it is of tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Its size as a file.
    pub bytes: u64,
    /// Its SHA-256 checksum in hexadecimal digits.
    pub sha256: String,
    /// How many documents it was made of, where some gave no sample. Of use to a run that goes on, and in no manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) documents: Option<u64>,
    /// What was found strange in it. In a manifest all of them stand together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<Warning>,
}

impl ShardRecord {
    /// How many documents it was made of.
    pub(crate) fn documents(&self) -> u64 {
        self.documents.unwrap_or(self.samples)
    }
}

/// A class of things.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Class {
    /// The number that stands in the samples.
    pub index: usize,
    /// What the dataset calls it: ImageNet's `n01440764`, COCO's category `1`.
    pub id: String,
    /// What people call it: `tench, Tinca tinca`.
    pub name: String,
}

/// Something strange that was kept as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// The sample's key.
    pub sample: String,
    /// What is strange.
    pub what: String,
}

impl Manifest {
    /// Reads the manifest of a folder of shards.
    ///
    /// # Errors
    /// No `manifest.json` in the folder, or one of another form.
    pub fn read(folder: &Path) -> Result<Manifest> {
        let path = folder.join(MANIFEST);
        let bytes = std::fs::read(&path).map_err(|source| Error::io(&path, "reading the manifest", source))?;
        let manifest: Manifest = serde_json::from_slice(&bytes)
            .map_err(|source| Error::file(&path, format!("not a manifest of shards: {source}")))?;
        match manifest.version {
            1 => Ok(manifest),
            version => Err(Error::file(&path, format!("version {version} of the manifest, expected 1"))),
        }
    }

    /// Writes it, whole or not at all.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(MANIFEST);
        let mut text = serde_json::to_vec_pretty(self).map_err(|source| Error::runtime("writing JSON", source))?;
        text.push(b'\n');
        store::write_whole(&path, &text).map_err(|source| Error::io(&path, "writing the manifest", source))
    }
}
