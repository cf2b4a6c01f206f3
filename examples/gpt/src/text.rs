//! Turns texts into tokens, and tokens into samples.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fulmen::cli::Result;
use fulmen::data::Dataset;
use fulmen::data::text::{
    CausalLabels, TokenArray, TokenBlocks, TokenCollator, TokenFile, TokenStore, Tokenizer,
};

/// The vocabulary: bytes, or the tokens of a tokenizer.
pub(crate) enum Vocabulary {
    /// Each byte is a token; 0 ends a text.
    Bytes,
    /// A tokenizer, and the id of its end-of-text token.
    Tokenizer(Box<Tokenizer>, u32),
}

impl Vocabulary {
    pub(crate) fn open(tokenizer: Option<&Path>, end_token: &str) -> Result<Vocabulary> {
        let Some(file) = tokenizer else { return Ok(Vocabulary::Bytes) };
        let tokenizer = Tokenizer::from_file(file)?.special_tokens(false);
        let end = tokenizer.special_id(end_token)?;
        Ok(Vocabulary::Tokenizer(Box::new(tokenizer), end))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Vocabulary::Bytes => 256,
            Vocabulary::Tokenizer(tokenizer, _) => tokenizer.vocab_size(),
        }
    }

    /// The token that ends a text.
    pub(crate) fn end(&self) -> u32 {
        match self {
            Vocabulary::Bytes => 0,
            Vocabulary::Tokenizer(_, end) => *end,
        }
    }

    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(match self {
            Vocabulary::Bytes => text.bytes().map(u32::from).collect(),
            Vocabulary::Tokenizer(tokenizer, _) => tokenizer.encode(text)?.ids,
        })
    }

    /// The text up to the end token.
    pub(crate) fn decode(&self, tokens: &[u32]) -> Result<String> {
        let length = tokens.iter().position(|&token| token == self.end()).unwrap_or(tokens.len());
        let tokens = &tokens[..length];
        Ok(match self {
            Vocabulary::Bytes => {
                let bytes: Vec<u8> =
                    tokens.iter().map(|&token| u8::try_from(token).unwrap_or(b'?')).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Vocabulary::Tokenizer(tokenizer, _) => tokenizer.decode(tokens, true)?,
        })
    }
}

/// A split of a text.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Split {
    Train,
    Validation,
    Test,
}

/// Blocks of `length` tokens. The last twentieth is for testing, the one before it for validation.
pub(crate) fn samples(
    text: &Path,
    vocabulary: &Vocabulary,
    length: usize,
    split: Split,
) -> Result<Box<dyn Dataset>> {
    let blocks = TokenBlocks::new(tokens(text, vocabulary)?, length)?;
    let data = TokenCollator::new(length, vocabulary.end())
        .causal(CausalLabels::Shifted)
        .dataset(blocks)?;
    let held_back = data.len().div_ceil(20);
    let train = data.len().saturating_sub(2 * held_back);
    if train == 0 {
        let message = format!(
            "{}: {} samples of {length} tokens; use a longer text",
            text.display(),
            data.len()
        );
        return Err(message.into());
    }
    Ok(match split {
        Split::Train => Box::new(data.take(train)),
        Split::Validation => Box::new(data.skip(train).take(held_back)),
        Split::Test => Box::new(data.skip(train + held_back)),
    })
}

fn tokens(text: &Path, vocabulary: &Vocabulary) -> Result<Arc<dyn TokenStore>> {
    if text.extension().is_some_and(|extension| extension == "tokens") {
        let tokens = TokenFile::open(text)?;
        if tokens.vocab_size() > vocabulary.len() {
            let file = text.display();
            let actual = tokens.vocab_size();
            let expected = vocabulary.len();
            let message = format!(
                "{file}: its vocabulary has {actual} tokens, not {expected}; pass its --tokenizer"
            );
            return Err(message.into());
        }
        return Ok(Arc::new(tokens));
    }
    let mut tokens = TokenArray::new(vocabulary.len())?.separator(vocabulary.end());
    for file in files(text)? {
        let content = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        tokens.push(vocabulary.encode(&content)?)?;
    }
    Ok(Arc::new(tokens))
}

/// The file itself, or the text files of a folder sorted by name.
fn files(text: &Path) -> Result<Vec<PathBuf>> {
    let failed = |e: std::io::Error| {
        format!("--text {}: {e}; pass a text or a folder, or --fake-data", text.display())
    };
    if !fs::metadata(text).map_err(failed)?.is_dir() {
        return Ok(vec![text.to_owned()]);
    }
    let mut files = fs::read_dir(text)
        .map_err(failed)?
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<Vec<_>>>()
        .map_err(failed)?;
    files.retain(|file| {
        file.extension().is_some_and(|extension| extension == "txt" || extension == "md")
    });
    files.sort();
    if files.is_empty() {
        return Err(format!("--text {}: the folder has no .txt or .md file", text.display()).into());
    }
    Ok(files)
}
