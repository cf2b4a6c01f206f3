//! Checksums of the content of a file, in its metadata. The format itself has none, so a flipped
//! bit would go unnoticed.

use std::collections::{BTreeMap, BTreeSet};

use crc32c::{crc32c, crc32c_append};
use fulmen_checkpoint::BLOCK_BYTES;
use fulmen_tensor::TensorType;
use serde_json::{Value, json};

/// The metadata key of the checksums that [`write`](super::write) adds: a JSON object with the
/// CRC-32C of each tensor (its type as text, such as `f32[2, 3]`, then its bytes) and of each other
/// entry of the metadata. Tensors of more than 1 MiB also have those of their type and of each MiB,
/// so that a part can be verified.
pub const CHECKSUMS: &str = "fulmen.crc32c";

/// The key of the table with the checksums of the type and the blocks of larger tensors.
const PARTS: &str = "parts";

/// The checksum of a tensor.
pub(super) fn of_tensor(ty: &TensorType, bytes: &[u8]) -> u32 {
    crc32c_append(of_type(ty), bytes)
}

fn of_type(ty: &TensorType) -> u32 {
    crc32c(ty.to_string().as_bytes())
}

/// The checksums of a tensor.
pub(super) struct TensorChecksums {
    whole: u32,
    /// Those of its type and of its blocks; empty if there is only one block.
    parts: Vec<u32>,
}

impl TensorChecksums {
    pub(super) fn of(ty: &TensorType, bytes: &[u8]) -> TensorChecksums {
        let whole = of_tensor(ty, bytes);
        let mut parts = Vec::new();
        if bytes.len() > BLOCK_BYTES as usize {
            parts.push(of_type(ty));
            parts.extend(bytes.chunks(BLOCK_BYTES as usize).map(crc32c));
        }
        TensorChecksums { whole, parts }
    }

    /// Those that are longest as text.
    pub(super) fn longest(ty: &TensorType) -> TensorChecksums {
        let blocks = ty.size_in_bytes().div_ceil(BLOCK_BYTES as usize);
        let parts = if blocks > 1 { vec![u32::MAX; 1 + blocks] } else { Vec::new() };
        TensorChecksums { whole: u32::MAX, parts }
    }
}

/// The checksums as an entry of the metadata.
pub(super) fn write(
    tensors: &BTreeMap<&str, TensorChecksums>,
    metadata: &BTreeMap<String, String>,
) -> String {
    let metadata: BTreeMap<&str, u32> =
        other_entries(metadata).map(|(key, text)| (key, crc32c(text.as_bytes()))).collect();
    let whole: BTreeMap<&str, u32> =
        tensors.iter().map(|(name, checksums)| (*name, checksums.whole)).collect();
    let parts: BTreeMap<&str, &[u32]> = tensors
        .iter()
        .filter(|(_, checksums)| !checksums.parts.is_empty())
        .map(|(name, checksums)| (*name, &checksums.parts[..]))
        .collect();
    let mut all = json!({ "tensors": whole, "metadata": metadata });
    if !parts.is_empty() {
        all[PARTS] = json!(parts);
    }
    all.to_string()
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
        if checksums.0.as_ref().is_some_and(|table| table.get(PARTS).is_some()) {
            checksums.check_all(PARTS, |name| names.contains(name))?;
        }
        Ok(checksums)
    }

    /// Whether the file has checksums.
    pub(super) fn exist(&self) -> bool {
        self.0.is_some()
    }

    /// The checksums of the blocks of a tensor of this type, if the file has them.
    pub(super) fn blocks(&self, name: &str, ty: &TensorType) -> Result<Option<Vec<u32>>, String> {
        let Some(list) = self.0.as_ref().and_then(|table| table.get(PARTS)?.get(name)) else {
            return Ok(None);
        };
        let number = |value: &Value| u32::try_from(value.as_u64()?).ok();
        let parts = list.as_array().and_then(|list| list.iter().map(number).collect());
        let mut parts: Vec<u32> = parts.unwrap_or_default();
        let count = 1 + ty.size_in_bytes().div_ceil(BLOCK_BYTES as usize);
        if parts.len() != count || parts.remove(0) != of_type(ty) {
            return Err(does_not_match(name));
        }
        Ok(Some(parts))
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
            Some(_) => Err(damaged(kind, name, MISMATCH)),
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

/// What is said about a block of a tensor that differs from its checksum.
pub(super) fn does_not_match(name: &str) -> String {
    damaged("tensors", name, MISMATCH)
}

const MISMATCH: &str = "does not match its checksum";

fn damaged(kind: &str, name: &str, problem: &str) -> String {
    let noun = if kind == "metadata" { kind } else { "tensor" };
    format!(
        "{noun} `{name}` {problem}: the file was damaged after it was written; use another copy of it"
    )
}
