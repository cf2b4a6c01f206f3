//! Checksums of the content of a file, in its metadata. The format itself has none, so a flipped
//! bit would go unnoticed.

use std::collections::{BTreeMap, BTreeSet};

use crc32c::{crc32c, crc32c_append};
use fulmen_tensor::TensorType;
use serde_json::{Value, json};

/// The metadata key of the checksums that [`write`](super::write) adds: a JSON object with the
/// CRC-32C of each tensor (its type as text, such as `f32[2, 3]`, then its bytes) and of each other
/// entry of the metadata.
pub const CHECKSUMS: &str = "fulmen.crc32c";

/// The checksum of a tensor.
pub(super) fn of_tensor(ty: &TensorType, bytes: &[u8]) -> u32 {
    crc32c_append(crc32c(ty.to_string().as_bytes()), bytes)
}

/// The checksums as an entry of the metadata.
pub(super) fn write(tensors: &BTreeMap<&str, u32>, metadata: &BTreeMap<String, String>) -> String {
    let metadata: BTreeMap<&str, u32> =
        other_entries(metadata).map(|(key, text)| (key, crc32c(text.as_bytes()))).collect();
    json!({ "tensors": tensors, "metadata": metadata }).to_string()
}

fn other_entries(metadata: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, &str)> {
    metadata
        .iter()
        .map(|(key, text)| (key.as_str(), text.as_str()))
        .filter(|(key, _)| *key != CHECKSUMS)
}

/// The checksums of a file that has them.
pub(super) struct Checksums(Option<Value>);

impl Checksums {
    /// The checksums in a file's metadata, after verifying the metadata, or a message about a
    /// mismatch. `names` are the names of the file's tensors, which are verified when they are
    /// read.
    pub(super) fn read(
        metadata: &BTreeMap<String, String>,
        names: &[String],
    ) -> Result<Checksums, String> {
        let Some(text) = metadata.get(CHECKSUMS) else { return Ok(Checksums(None)) };
        let table: Value = serde_json::from_str(text).map_err(|e| {
            format!("the checksums in its metadata (`{CHECKSUMS}`) are damaged: {e}")
        })?;
        let checksums = Checksums(Some(table));
        for (key, text) in other_entries(metadata) {
            checksums.compare("metadata", key, || crc32c(text.as_bytes()))?;
        }
        checksums.check_all("metadata", |key| metadata.contains_key(key))?;
        let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        checksums.check_all("tensors", |name| names.contains(name))?;
        Ok(checksums)
    }

    /// Whether the file has checksums.
    pub(super) fn exist(&self) -> bool {
        self.0.is_some()
    }

    /// Compares the checksum of a tensor.
    pub(super) fn compare_tensor(
        &self,
        name: &str,
        checksum: impl FnOnce() -> u32,
    ) -> Result<(), String> {
        self.compare("tensors", name, checksum)
    }

    fn compare(&self, kind: &str, name: &str, actual: impl FnOnce() -> u32) -> Result<(), String> {
        let Some(table) = &self.0 else { return Ok(()) };
        match table[kind][name].as_u64() {
            Some(expected) if expected == u64::from(actual()) => Ok(()),
            Some(_) => Err(damaged(kind, name, "does not match its checksum")),
            None => Err(damaged(kind, name, "has no checksum, but the rest of the file has")),
        }
    }

    /// Checks that everything with a checksum exists.
    fn check_all(&self, kind: &str, is_there: impl Fn(&str) -> bool) -> Result<(), String> {
        let Some(table) = &self.0 else { return Ok(()) };
        let Some(sums) = table[kind].as_object() else {
            return Err(format!(
                "the checksums in its metadata (`{CHECKSUMS}`) are damaged: `{kind}` is missing"
            ));
        };
        match sums.keys().find(|name| !is_there(name)) {
            None => Ok(()),
            Some(name) => Err(damaged(kind, name, "has a checksum but is missing")),
        }
    }
}

fn damaged(kind: &str, name: &str, problem: &str) -> String {
    let noun = if kind == "tensors" { "tensor" } else { "metadata" };
    format!(
        "{noun} `{name}` {problem}: the file was damaged after it was written; use another copy of it"
    )
}
