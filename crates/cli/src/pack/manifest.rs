//! The manifest of packed data, `manifest.json` next to the shards. It lists each shard as soon as
//! it is finished, so an interrupted run continues from it.
//!
//! Out of scope: where the manifest and the shards are (`output`).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use fulmen_data::{Error, Fingerprint, Result};
use fulmen_files::Location;

/// The name of the file.
pub(crate) const MANIFEST: &str = "manifest.json";

/// The maximum size of a JSON file about a dataset.
pub(crate) const MAX_JSON_BYTES: u64 = 256 << 20;

const VERSION: u32 = 2;

/// A packed dataset: its shards with their checksums, its classes, and its sources.
///
/// The manifest does not depend on the time, the machine, or interruptions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of this format, which is 2.
    pub version: u32,
    /// Whether all shards are there. It is false while a run is writing, and after it was
    /// interrupted.
    pub complete: bool,
    /// The splits, such as `train`.
    pub splits: Vec<SplitManifest>,
    /// The names of the classes by their number in the samples; empty for text.
    pub classes: Vec<String>,
    /// The files from which the shards were made.
    pub sources: Vec<SourceFile>,
    /// The options that the shards depend on.
    pub options: BTreeMap<String, String>,
    /// What was left out. Warnings about samples are in the record of their shard.
    pub warnings: Vec<Warning>,
}

/// A split of the dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Adds a shard, or replaces the one with its name.
    pub(crate) fn add(&mut self, shard: ShardRecord) {
        match self.shards.binary_search_by(|it| it.name.cmp(&shard.name)) {
            Ok(position) => self.shards[position] = shard,
            Err(position) => self.shards.insert(position, shard),
        }
        self.samples = self.shards.iter().map(|shard| shard.samples).sum();
        self.tokens = self.shards.iter().map(|shard| shard.tokens).sum();
        self.bytes = self.shards.iter().map(|shard| shard.bytes).sum();
    }
}

/// A finished shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRecord {
    /// The name of the file.
    pub name: String,
    /// The number of samples.
    pub samples: u64,
    /// The number of tokens, if the shard has tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The number of documents from which the shard was made, if some documents gave no sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<u64>,
    /// The size in bytes.
    pub bytes: u64,
    /// The SHA-256 checksum in hexadecimal digits.
    pub sha256: String,
    /// Unusual samples in the shard, which were kept unchanged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
}

impl ShardRecord {
    /// The number of documents from which the shard was made.
    pub(crate) fn documents(&self) -> u64 {
        self.documents.unwrap_or(self.samples)
    }

    /// The number of documents that gave no sample.
    pub(crate) fn empty_documents(&self) -> u64 {
        self.documents().saturating_sub(self.samples)
    }
}

/// A file or a folder from which shards were made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// The name, without folders.
    pub name: String,
    /// The split that was made from it.
    pub split: String,
    /// The size in bytes.
    pub bytes: u64,
    /// The time of the last change of a local file, or a hash over a folder, or over an object and
    /// its version in a store.
    pub version: String,
}

impl SourceFile {
    /// Looks at a file. Its content is not read.
    pub(crate) fn new(split: &str, location: &Location) -> Result<SourceFile> {
        let version = match location.local() {
            Some(path) => {
                let changed = path.metadata().and_then(|metadata| metadata.modified());
                let changed = changed
                    .map_err(|source| Error::io(path, "looking at the file", source))?
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default();
                format!("changed {}.{:09} s after 1970", changed.as_secs(), changed.subsec_nanos())
            }
            None => {
                let mut hash = Fingerprint::new();
                location.fingerprint(&mut hash)?;
                hash.to_string()
            }
        };
        let bytes = location.size()?;
        Ok(SourceFile { name: location.name(), split: split.to_owned(), bytes, version })
    }
}

/// A warning about a sample that was kept unchanged, or about something that was left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// The sample's key, if it is about one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sample: String,
    /// The warning.
    pub what: String,
}

impl Manifest {
    /// A manifest without shards.
    pub(crate) fn new(
        splits: &[String],
        sources: Vec<SourceFile>,
        options: BTreeMap<String, String>,
    ) -> Manifest {
        let split =
            |name: &String| SplitManifest { name: name.clone(), ..SplitManifest::default() };
        Manifest {
            version: VERSION,
            complete: false,
            splits: splits.iter().map(split).collect(),
            classes: Vec::new(),
            sources,
            options,
            warnings: Vec::new(),
        }
    }

    /// Reads the manifest of a folder of shards.
    ///
    /// # Errors
    /// No `manifest.json` in the folder; a `manifest.json` in a different format, or of a run that
    /// has not finished.
    pub fn read(folder: &Path) -> Result<Manifest> {
        let path = folder.join(MANIFEST);
        let bytes = fulmen_durable::read_regular(&path, MAX_JSON_BYTES)
            .map_err(|source| Error::io(&path, "reading the manifest", source))?;
        let manifest = Manifest::parse(&bytes, &Location::from(&path))?;
        if manifest.complete {
            return Ok(manifest);
        }
        let message =
            "the run that writes these shards has not finished; run the same command again";
        Err(Error::file(&path, message))
    }

    pub(crate) fn parse(bytes: &[u8], location: &Location) -> Result<Manifest> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let refused = |message: String| Error::usage(format!("{location}: {message}"));
        let unknown = |error| refused(format!("this is not a manifest of packed shards: {error}"));
        match serde_json::from_slice(bytes).map_err(unknown)? {
            Version { version: VERSION } => serde_json::from_slice(bytes).map_err(unknown),
            Version { version } => {
                Err(refused(format!("version {version} of the manifest, expected {VERSION}")))
            }
        }
    }

    /// What differs between what the shards of two manifests were made from.
    pub(crate) fn difference(&self, now: &Manifest) -> Option<String> {
        let word = |value: Option<&String>| value.map_or("nothing", String::as_str).to_owned();
        let names = self.options.keys().chain(now.options.keys());
        let values = names.map(|name| (name, self.options.get(name), now.options.get(name)));
        let differs = |&(_, before, after): &(_, Option<&String>, Option<&String>)| before != after;
        // A change of a source changes the samples too, and says more.
        if let Some(index) =
            (0..self.sources.len()).find(|&index| now.sources.get(index) != self.sources.get(index))
        {
            let before = &self.sources[index];
            let state = |file: &SourceFile| {
                let SourceFile { name, split, bytes, version } = file;
                format!("{split}={name}, {bytes} bytes, {version},")
            };
            let after = now.sources.get(index).map_or_else(|| "nothing".to_owned(), state);
            return Some(format!(
                "the source {} was {} and is now {after}",
                before.name,
                state(before)
            ));
        }
        if let Some(more) = now.sources.get(self.sources.len()) {
            return Some(format!("the source {} is new", more.name));
        }
        let (name, before, after) = values.into_iter().find(differs)?;
        Some(format!("{name} was {} and is now {}", word(before), word(after)))
    }

    pub(crate) fn to_json(&self) -> Result<Vec<u8>> {
        let mut text = serde_json::to_vec_pretty(self)
            .map_err(|source| Error::runtime("writing JSON", source))?;
        text.push(b'\n');
        Ok(text)
    }
}
