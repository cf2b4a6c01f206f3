//! Which encoding of tiktoken the file of a folder has. The file has only the ranks.

use fulmen_data::{Error, Result};
use fulmen_files::Location;

use super::config::FolderConfig;
use crate::{Tiktoken, Tokenizer};

/// The number of tokens of Llama 3, without the special ones.
const LLAMA3_RANKS: usize = 128_000;

/// Reads the file of a folder, with the special tokens that the folder's files name.
pub(super) fn of_folder(file: &Location, bytes: &[u8], config: &FolderConfig) -> Result<Tokenizer> {
    let known = by_name(file);
    let encoding = match (known, config.class(), config.model_type.as_deref()) {
        (Some(known), ..) => known,
        (None, Some("QWenTokenizer"), _) | (None, None, Some("qwen")) => "qwen",
        (None, None | Some("PreTrainedTokenizer"), Some("llama")) => "llama3",
        (None, None | Some("PreTrainedTokenizer"), None) if is_llama3(bytes) => "llama3",
        (None, class, model_type) => {
            let class = class.or(model_type).unwrap_or("no class");
            return Err(unknown(file, &format!(" (a folder with {class})")));
        }
    };
    let mut encoding = Tiktoken::named(encoding)?;
    let of_folder = |message: String| Error::content(format!("{file}: {message}"));
    for (&id, token) in &config.added {
        if token.lstrip || token.rstrip || token.single_word {
            return Err(of_folder(format!(
                "the added token {:?} has lstrip, rstrip or single_word, which is not supported here",
                token.content
            )));
        }
        encoding = encoding.special_token(&token.content, id);
    }
    match config.flag("add_bos_token").map_err(of_folder)? {
        Some(false) => encoding = encoding.without_first_token(),
        Some(true) => {
            let bos = config.token("bos_token").map_err(of_folder)?;
            let missing = || of_folder("`add_bos_token` is set, but no `bos_token`".into());
            encoding = encoding.first_token(bos.ok_or_else(missing)?.content);
        }
        None => {}
    }
    if config.flag("add_eos_token").map_err(of_folder)? == Some(true) {
        let eos = config.token("eos_token").map_err(of_folder)?;
        let missing = || of_folder("`add_eos_token` is set, but no `eos_token`".into());
        encoding = encoding.last_token(eos.ok_or_else(missing)?.content);
    }
    encoding.of_bytes(file, bytes)
}

/// Reads a file by its name.
pub(super) fn of_file(file: &Location, bytes: &[u8]) -> Result<Tokenizer> {
    let encoding = match by_name(file) {
        Some(name) => name,
        None if is_llama3(bytes) && file.name() == "tokenizer.model" => "llama3",
        None => return Err(unknown(file, "")),
    };
    Tiktoken::named(encoding)?.of_bytes(file, bytes)
}

/// The encoding that the file is named after.
fn by_name(file: &Location) -> Option<&'static str> {
    let name = file.name();
    let stem = name.strip_suffix(".tiktoken").unwrap_or(&name);
    let names =
        ["r50k_base", "gpt2", "p50k_base", "p50k_edit", "cl100k_base", "o200k_base", "qwen"];
    names.into_iter().find(|known| *known == stem)
}

fn is_llama3(bytes: &[u8]) -> bool {
    bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).count() == LLAMA3_RANKS
}

fn unknown(file: &Location, what: &str) -> Error {
    Error::content(format!(
        "{file}: the file has tiktoken's ranks, but not the pattern that splits words, and its name{what} does not tell \
         the encoding; name it: Tiktoken::named(\"cl100k_base\")?.read(file), or give a pattern to Tiktoken::new"
    ))
}
