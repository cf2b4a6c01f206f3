//! What the JSON files of a tokenizer's folder say: its class, its flags and its added tokens.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use fulmen_data::{Error, Result};
use fulmen_files::Location;

const CONFIG: &str = "tokenizer_config.json";
const SPECIAL_TOKENS: &str = "special_tokens_map.json";
const ADDED_TOKENS: &str = "added_tokens.json";
const MODEL_CONFIG: &str = "config.json";

/// The names of the fields with special tokens, in the order in which transformers adds those that
/// the vocabulary lacks.
const TOKEN_NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The limit on the size of a file, ten times the largest ones.
const MAX_BYTES: u64 = 64 << 20;

/// The content of the files.
#[derive(Debug, Default)]
pub(super) struct FolderConfig {
    values: Map<String, Value>,
    /// The tokens whose ids the files name.
    pub(super) added: BTreeMap<u32, AddedToken>,
    /// The kind of the model in `config.json`.
    pub(super) model_type: Option<String>,
}

impl FolderConfig {
    pub(super) fn read(folder: &Location) -> Result<FolderConfig> {
        let mut values = read_object(&folder.join(SPECIAL_TOKENS))?;
        values.extend(read_object(&folder.join(CONFIG))?);
        let model = read_object(&folder.join(MODEL_CONFIG))?;
        let added_tokens = read_object(&folder.join(ADDED_TOKENS))?;
        let model_type = model.get("model_type").and_then(Value::as_str).map(str::to_owned);
        let mut config = FolderConfig { values, added: BTreeMap::new(), model_type };
        let of_file = |name: &str| {
            let file = folder.join(name).to_string();
            move |message: String| Error::content(format!("{file}: {message}"))
        };
        config.add_added_tokens(added_tokens).map_err(of_file(ADDED_TOKENS))?;
        config.add_decoder().map_err(of_file(CONFIG))?;
        Ok(config)
    }

    /// The tokens of `added_tokens.json`: their ids by content.
    fn add_added_tokens(&mut self, tokens: Map<String, Value>) -> std::result::Result<(), String> {
        for (content, id) in tokens {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
            let id = id.ok_or_else(|| format!("the token {content:?} has no id"))?;
            if let Some(other) = self.added.insert(id, AddedToken::from(&content, false)) {
                return Err(format!("{content:?} and {:?} have the id {id}", other.content));
            }
        }
        Ok(())
    }

    /// The tokens of `added_tokens_decoder`: their settings by id.
    fn add_decoder(&mut self) -> std::result::Result<(), String> {
        let Some(decoder) = self.values.get("added_tokens_decoder") else { return Ok(()) };
        let decoder = decoder.as_object().ok_or("`added_tokens_decoder` is not an object")?;
        for (id, token) in decoder {
            let place = format!("`added_tokens_decoder`: {id}");
            let id: u32 = id.parse().map_err(|_| format!("{place}: expected an id"))?;
            let token = added_token(token).map_err(|error| format!("{place}: {error}"))?;
            self.added.insert(id, token);
        }
        Ok(())
    }

    /// The class of the tokenizer, without `Fast`.
    pub(super) fn class(&self) -> Option<&str> {
        let class = self.values.get("tokenizer_class")?.as_str()?;
        Some(class.strip_suffix("Fast").unwrap_or(class))
    }

    /// A special token, such as that of `bos_token`.
    pub(super) fn token(&self, name: &str) -> std::result::Result<Option<AddedToken>, String> {
        match self.values.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(token) => {
                let token = added_token(token).map_err(|error| format!("`{name}`: {error}"))?;
                Ok(Some(token.special(true)))
            }
        }
    }

    /// All special tokens that the files name.
    pub(super) fn special_tokens(&self) -> std::result::Result<Vec<AddedToken>, String> {
        let mut tokens = Vec::new();
        for name in TOKEN_NAMES {
            tokens.extend(self.token(name)?);
        }
        for name in ["additional_special_tokens", "extra_special_tokens"] {
            let list = match self.values.get(name) {
                Some(Value::Array(list)) => list.iter().collect(),
                Some(Value::Object(named)) => named.values().collect(),
                _ => Vec::new(),
            };
            for token in list {
                let token = added_token(token).map_err(|error| format!("`{name}`: {error}"))?;
                tokens.push(token.special(true));
            }
        }
        Ok(tokens)
    }

    pub(super) fn flag(&self, name: &str) -> std::result::Result<Option<bool>, String> {
        match self.values.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(format!("`{name}` is {other}, expected true or false")),
        }
    }

    pub(super) fn count(&self, name: &str) -> std::result::Result<Option<usize>, String> {
        match self.values.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
                count.map(Some).ok_or_else(|| format!("`{name}` is {value}, expected a count"))
            }
        }
    }
}

/// A token: its text, or an object with `content` and settings. It is found in texts before they are
/// normalized.
fn added_token(value: &Value) -> std::result::Result<AddedToken, String> {
    let content = value.as_str().or_else(|| value.get("content")?.as_str());
    let content = content
        .filter(|content| !content.is_empty())
        .ok_or_else(|| format!("{value} is neither a text nor an object with `content`"))?;
    let flag = |name: &str| value.get(name).and_then(Value::as_bool).unwrap_or(false);
    Ok(AddedToken::from(content, flag("special"))
        .single_word(flag("single_word"))
        .lstrip(flag("lstrip"))
        .rstrip(flag("rstrip"))
        .normalized(false))
}

/// A JSON object in a file; empty if there is no file.
pub(super) fn read_object(file: &Location) -> Result<Map<String, Value>> {
    if !file.exists()? {
        return Ok(Map::new());
    }
    let bytes = file.read_at_most(MAX_BYTES)?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Error::content(format!("{file}: not a JSON object: {error}")))
}
