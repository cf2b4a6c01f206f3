//! Copying the files of a tokenizer.

use std::io::Write as _;
use std::path::Path;

use fulmen_data::{Error, Result};
use fulmen_files::Location;

use super::marian::Language;
use super::{MODEL_FILES, TOKENIZER};
use crate::tokenizer::MAX_BYTES;

/// The files that say more about a tokenizer.
const FURTHER_FILES: [&str; 8] = [
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "target_vocab.json",
    "merges.txt",
    "vocab.txt",
];

const FURTHER_TEMPLATES: &str = "additional_chat_templates";

pub(super) fn files(from: &Location, to: &Path) -> Result<()> {
    let mut copied = 0;
    let of_translators = [Language::Source, Language::Target].map(Language::file);
    for name in [TOKENIZER].iter().chain(&MODEL_FILES).chain(&of_translators) {
        copied += usize::from(file(&from.join(name), &to.join(name))?);
    }
    if copied == 0 {
        return Err(Error::missing(format!(
            "{from}: the folder has no tokenizer to copy: neither {TOKENIZER} nor one of {}",
            MODEL_FILES.join(", ")
        )));
    }
    for name in FURTHER_FILES {
        file(&from.join(name), &to.join(name))?;
    }
    let templates = from.local().map(|folder| folder.join(FURTHER_TEMPLATES));
    if let Some(folder) = templates.filter(|folder| folder.is_dir()) {
        for template in Location::from(folder).list()? {
            file(&template, &to.join(FURTHER_TEMPLATES).join(template.name()))?;
        }
    }
    Ok(())
}

/// Copies a file, if there is one.
fn file(from: &Location, to: &Path) -> Result<bool> {
    if !from.exists()? {
        return Ok(false);
    }
    let bytes = from.read_at_most(MAX_BYTES)?;
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder)
            .map_err(|error| Error::io(folder, "cannot create the folder", error))?;
    }
    fulmen_durable::write(to, Some(bytes.len() as u64), |out| out.write_all(&bytes))
        .map_err(|error| Error::io(to, "cannot write the file", error))?;
    Ok(true)
}
