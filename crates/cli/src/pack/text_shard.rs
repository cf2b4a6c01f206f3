//! Writes a shard of documents: their texts in a tar file, or their tokens in a token file.
//!
//! Out of scope: the assignment of documents to shards (`text`).

use std::path::Path;

use super::images::SampleFiles;
use super::manifest::ShardRecord;
use super::options::Pack;
use super::shard_file::{TarShard, sha256_of};
use fulmen_data::Error;
use fulmen_data::Result;
use fulmen_shards::size_in_tar;
use fulmen_text::{TokenFileWriter, TokenStore, Tokenizer};

/// The format in which documents are written.
pub(crate) enum OutputFormat {
    Texts,
    Tokens { tokenizer: Tokenizer, separator: Option<u32> },
}

/// An encoded document.
pub(crate) enum Document {
    Text(String),
    Tokens(Vec<u32>),
}

/// An open shard.
pub(crate) struct TextShard {
    documents: u64,
    /// The approximate final size.
    bytes: u64,
    writer: Writer,
}

enum Writer {
    Texts(TarShard),
    Tokens { writer: TokenFileWriter, name: String },
}

impl OutputFormat {
    pub(crate) fn new(options: &Pack) -> Result<OutputFormat> {
        if let Some(tokenizer) = &options.tokenizer {
            let separator = match &options.separator {
                None => None,
                Some(token) => Some(tokenizer.token_id(token).ok_or_else(|| {
                    Error::usage(format!(
                        "the tokenizer has no token {token:?} to put between documents"
                    ))
                })?),
            };
            return Ok(OutputFormat::Tokens { tokenizer: tokenizer.clone(), separator });
        }
        Ok(OutputFormat::Texts)
    }

    /// The extension of shards.
    pub(crate) fn extension(&self) -> &'static str {
        match self {
            OutputFormat::Texts => "tar",
            OutputFormat::Tokens { .. } => "tokens",
        }
    }

    /// Describes everything that the tokens depend on.
    pub(crate) fn describe(&self) -> String {
        match self {
            OutputFormat::Texts => "none".to_owned(),
            OutputFormat::Tokens { tokenizer, .. } => {
                let mut hash = fulmen_data::Fingerprint::new();
                tokenizer.fingerprint(&mut hash);
                hash.to_string()
            }
        }
    }

    pub(crate) fn document(&self, text: &str) -> Result<Document> {
        match self {
            OutputFormat::Texts => Ok(Document::Text(text.to_owned())),
            OutputFormat::Tokens { tokenizer, .. } => {
                Ok(Document::Tokens(tokenizer.encode(text)?.ids))
            }
        }
    }

    /// The number of bytes that a document adds to a shard.
    pub(crate) fn bytes(&self, document: &Document) -> u64 {
        match (self, document) {
            (OutputFormat::Tokens { tokenizer, separator }, Document::Tokens(ids)) => {
                let width = if tokenizer.vocab_size() <= 1 << 16 { 2 } else { 4 };
                // The file also stores the end of each document.
                8 + width * (ids.len() as u64 + u64::from(separator.is_some()))
            }
            (_, Document::Tokens(ids)) => 4 * ids.len() as u64,
            (_, Document::Text(text)) => size_in_tar(key(0).len() + 4, text.len() as u64),
        }
    }
}

impl TextShard {
    pub(crate) fn create(folder: &Path, name: &str, form: &OutputFormat) -> Result<TextShard> {
        let writer = match form {
            OutputFormat::Texts => Writer::Texts(TarShard::create(folder, name)?),
            OutputFormat::Tokens { tokenizer, separator } => {
                let writer = TokenFileWriter::create(folder.join(name), tokenizer.vocab_size())?;
                let writer = match separator {
                    Some(separator) => writer.separator(*separator),
                    None => writer,
                };
                Writer::Tokens { writer, name: name.to_owned() }
            }
        };
        Ok(TextShard { documents: 0, bytes: 4096, writer })
    }

    pub(crate) fn documents(&self) -> u64 {
        self.documents
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds document `number` of its split.
    pub(crate) fn add(&mut self, number: u64, document: Document, bytes: u64) -> Result<()> {
        match (&mut self.writer, document) {
            (Writer::Texts(tar), Document::Text(text)) => {
                let files = vec![("txt", text.into_bytes())];
                tar.add(&key(number), SampleFiles { files, warning: None })?;
            }
            (Writer::Tokens { writer, .. }, Document::Tokens(ids)) => writer.push(ids)?,
            _ => return Err(Error::new("a document in a different format than its shard")),
        }
        self.documents += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<ShardRecord> {
        match self.writer {
            Writer::Texts(tar) => tar.finish(),
            Writer::Tokens { writer, name } => {
                let file = writer.finish()?;
                let io = |source| Error::io(file.path(), "reading the shard", source);
                // Token files leave out documents without a token.
                let samples = file.document_ends().len() as u64;
                Ok(ShardRecord {
                    name,
                    samples,
                    documents: (samples < self.documents).then_some(self.documents),
                    tokens: Some(file.num_tokens()),
                    bytes: file.path().metadata().map_err(io)?.len(),
                    sha256: sha256_of(file.path(), |_| ()).map_err(io)?,
                    warnings: Vec::new(),
                })
            }
        }
    }
}

/// The key of a document, from its number in the split.
fn key(number: u64) -> String {
    format!("{number:012}")
}
