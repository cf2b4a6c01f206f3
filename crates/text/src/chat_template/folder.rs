//! The files of a folder that have its chat template and its special tokens.
//!
//! Out of scope: rendering.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{ChatTemplate, DEFAULT};
use fulmen_data::{Error, Result};
use fulmen_files::Location;

const TEMPLATE: &str = "chat_template.jinja";
const FURTHER_TEMPLATES: &str = "additional_chat_templates";
const CONFIG: &str = "tokenizer_config.json";
const SPECIAL_TOKENS: &str = "special_tokens_map.json";

/// The names of the special tokens that templates see.
const TOKEN_NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The limit on the size of a file, ten times the largest ones.
const MAX_BYTES: u64 = 64 << 20;

pub(super) fn read(folder: &Path) -> Result<ChatTemplate> {
    let mut template = ChatTemplate::empty();
    let config_file = folder.join(CONFIG);
    let config = read_object(&config_file)?;
    for (name, token) in
        read_object(&folder.join(SPECIAL_TOKENS))?.into_iter().chain(config.clone())
    {
        if !TOKEN_NAMES.contains(&name.as_str()) || token.is_null() {
            continue;
        }
        // An `AddedToken` is an object.
        let content =
            token.as_str().or_else(|| token.get("content")?.as_str()).ok_or_else(|| {
                let message =
                    format!("`{name}` is {token}, expected a text or an object with `content`");
                Error::file(&config_file, message)
            })?;
        template.special_tokens.insert(name, content.to_owned());
    }
    add_files(&mut template, folder)?;
    if template.templates.is_empty() {
        add_of_config(&mut template, &config_file, config.get("chat_template"))?;
    }
    if template.templates.is_empty() {
        return Err(Error::file(
            folder,
            format!(
                "the folder has no chat template: neither a {TEMPLATE} nor `chat_template` in {CONFIG}; take that of \
                 the model's variant for conversations, or write a {TEMPLATE}"
            ),
        ));
    }
    Ok(template)
}

/// The templates that are files of their own.
fn add_files(template: &mut ChatTemplate, folder: &Path) -> Result<()> {
    if let Some(source) = read_text(&folder.join(TEMPLATE))? {
        template.add(DEFAULT, folder.join(TEMPLATE).display().to_string(), &source)?;
    }
    let further = folder.join(FURTHER_TEMPLATES);
    if !further.is_dir() {
        return Ok(());
    }
    let failed = |e| Error::io(&further, "cannot list the folder", e);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&further)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .map_err(failed)?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "jinja"));
    files.sort();
    for file in files {
        let Some(name) = file.file_stem().and_then(|name| name.to_str()) else { continue };
        if let Some(source) = read_text(&file)? {
            template.add(name, file.display().to_string(), &source)?;
        }
    }
    Ok(())
}

/// The templates in the tokenizer's configuration.
fn add_of_config(template: &mut ChatTemplate, file: &Path, value: Option<&Value>) -> Result<()> {
    let place = |name: &str| format!("`{name}` of {}", file.display());
    match value {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(source)) => template.add(DEFAULT, place("chat_template"), source),
        Some(Value::Array(list)) => {
            for (number, item) in list.iter().enumerate() {
                let (Some(name), Some(source)) = (item["name"].as_str(), item["template"].as_str())
                else {
                    let message =
                        format!("item {number} of `chat_template` has no `name` and `template`");
                    return Err(Error::file(file, message));
                };
                template.add(name, place(&format!("chat_template[{number}].template")), source)?;
            }
            Ok(())
        }
        Some(_) => Err(Error::file(
            file,
            "`chat_template` is neither a text nor a list of named templates",
        )),
    }
}

/// A file, or nothing if there is none.
fn read_text(file: &Path) -> Result<Option<String>> {
    if !file.exists() {
        return Ok(None);
    }
    let bytes = Location::from(file).read_at_most(MAX_BYTES)?;
    let text = String::from_utf8(bytes).map_err(|e| Error::file(file, e.to_string()))?;
    Ok(Some(text))
}

/// A JSON object in a file; empty if there is no file.
fn read_object(file: &Path) -> Result<Map<String, Value>> {
    let Some(text) = read_text(file)? else { return Ok(Map::new()) };
    serde_json::from_str(&text).map_err(|e| Error::file(file, format!("not a JSON object: {e}")))
}
