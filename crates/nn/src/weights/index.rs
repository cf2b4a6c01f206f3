//! The index of weights in several files, Hugging Face's `model.safetensors.index.json`: the file
//! of each name.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Component, Path};

use fulmen_durable::messages::size;
use serde_json::{Value as Json, json};

use super::file::{self, Value};
use crate::{Result, error};

/// What an error calls the format.
const FORMAT: &str = "index of weight files";

/// The size limit of an index; enough for a million names.
const MAX_BYTES: u64 = 200_000_000;

/// The key of the table of names.
const WEIGHT_MAP: &str = "weight_map";

/// The text of an index. `total_size` is in bytes.
pub(super) fn write(total_size: u64, files: &BTreeMap<String, String>) -> String {
    format!("{:#}\n", json!({ "metadata": { "total_size": total_size }, WEIGHT_MAP: files }))
}

/// The values of all files that an index names. Each file must have the values listed in the index;
/// other values are read too, so that they are reported.
pub(super) fn read(path: &Path) -> Result<BTreeMap<String, Value>> {
    let refuse = |message: String| error::format(path, FORMAT, message);
    let mut text = Vec::new();
    let file = fulmen_durable::open_regular(path).map_err(|e| error::io("read", path, e))?;
    file.take(MAX_BYTES + 1).read_to_end(&mut text).map_err(|e| error::io("read", path, e))?;
    if text.len() as u64 > MAX_BYTES {
        return Err(refuse(format!("it is larger than {}", size(MAX_BYTES))));
    }
    let json: Json = serde_json::from_slice(&text).map_err(|e| refuse(e.to_string()))?;
    let Some(map) = json.get(WEIGHT_MAP).and_then(Json::as_object) else {
        return Err(refuse(format!("it has no table `{WEIGHT_MAP}`, with the file of each name")));
    };
    let mut file_of: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, file) in map {
        let Some(file) = file.as_str() else {
            return Err(refuse(format!("the file of `{name}` is {file}, not a file name")));
        };
        // An index from elsewhere must not refer to files outside its folder.
        if !matches!(Path::new(file).components().collect::<Vec<_>>()[..], [Component::Normal(_)]) {
            return Err(refuse(format!(
                "`{name}` refers to `{file}`, which is not a file next to the index"
            )));
        }
        file_of.insert(name, file);
    }
    let mut values = BTreeMap::new();
    for shard in file_of.values().copied().collect::<BTreeSet<_>>() {
        let shard_path = path.with_file_name(shard);
        if !shard_path.is_file() {
            let message =
                format!("it names `{shard}`, which is not next to it; was every part downloaded?");
            return Err(refuse(message));
        }
        let mut shard_values = file::read_shard(&shard_path)?;
        if let Some((name, _)) = file_of
            .iter()
            .find(|(name, file)| **file == shard && !shard_values.contains_key(**name))
        {
            return Err(refuse(format!(
                "it lists `{name}` in `{shard}`, which does not contain it"
            )));
        }
        shard_values.retain(|name, _| file_of.get(name.as_str()).is_none_or(|file| *file == shard));
        values.append(&mut shard_values);
    }
    Ok(values)
}
