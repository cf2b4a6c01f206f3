//! The tokens of documents in memory, with two bytes each if the vocabulary allows it.
//!
//! Out of scope: tokens on disk (`token_file`).

use std::path::Path;

use super::TokenStore;
use super::document_reader::in_order;
use super::token_format::{Documents, Header, check_range};
use fulmen_data::{Fingerprint, Result, Source};
use fulmen_files::Location;

/// The tokens of documents in memory.
///
/// A token takes two bytes if the vocabulary has at most 65,536 tokens, otherwise four. Documents
/// without tokens are left out.
///
/// ```
/// use fulmen_text::{TokenArray, TokenStore};
///
/// let mut tokens = TokenArray::new(50_257)?.separator(50_256);
/// tokens.push([15496, 995])?;
/// tokens.push([])?;
/// assert_eq!((tokens.num_tokens(), tokens.document_ends()), (3, &[3][..]));
/// assert!(tokens.push([50_257]).is_err());
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct TokenArray {
    documents: Documents,
    /// The bytes of the tokens, as in a token file.
    bytes: Vec<u8>,
}

impl TokenArray {
    /// An empty array for token ids below `vocab_size`.
    ///
    /// # Errors
    /// A vocabulary that is empty or too large for an i32.
    pub fn new(vocab_size: usize) -> Result<TokenArray> {
        Ok(TokenArray { documents: Documents::new(vocab_size)?, bytes: Vec::new() })
    }

    /// A token appended to each document, such as `<|endoftext|>`. It counts as the document's last
    /// token.
    pub fn separator(mut self, separator: u32) -> TokenArray {
        self.documents.separator = Some(separator);
        self
    }

    /// Reads a whole [`TokenFile`](super::TokenFile) from any location into memory, and verifies
    /// its checksum. To use a local file without reading it into memory, open it as a
    /// [`TokenFile`](super::TokenFile).
    ///
    /// # Errors
    /// A file that cannot be read, is not a token file, or is damaged.
    pub fn open(file: impl Into<Location>) -> Result<TokenArray> {
        let location = file.into();
        let name = location.to_string();
        let path = location.local().unwrap_or(Path::new(&name));
        let mut file = location.open()?;
        let header = Header::read(&mut file, location.size()?, path)?;
        let mut tokens = Vec::new();
        let mut ends = Vec::new();
        header.read_all(&mut file, path, |tensor, bytes| match tensor {
            "tokens" => tokens.extend_from_slice(bytes),
            "ends" => ends.extend_from_slice(bytes),
            _ => {}
        })?;
        Ok(TokenArray { documents: header.documents(&ends, path)?, bytes: tokens })
    }

    /// Adds a document.
    ///
    /// # Errors
    /// A token outside the vocabulary; no token of the document is added in this case.
    pub fn push(&mut self, document: impl AsRef<[u32]>) -> Result<()> {
        self.documents.push(document.as_ref(), &mut self.bytes)
    }

    /// Adds the documents of a source in its order. `threads` threads read and tokenize them.
    ///
    /// # Errors
    /// The error of the first document that cannot be read or has a token outside the vocabulary.
    /// The documents before it have been added.
    pub fn extend<S>(&mut self, documents: &S, threads: usize) -> Result<()>
    where
        S: Source<Item: AsRef<[u32]>>,
    {
        in_order(
            documents,
            threads,
            |document| document,
            |index, document| {
                self.push(document)
                    .map_err(|error| error.at_sample(index as u64, Some(documents.origin(index))))
            },
        )
    }
}

impl TokenStore for TokenArray {
    fn num_tokens(&self) -> u64 {
        self.documents.num_tokens()
    }

    fn document_ends(&self) -> &[u64] {
        &self.documents.ends
    }

    fn read(&self, start: u64, tokens: &mut [u32]) -> Result<()> {
        check_range(start, tokens.len(), self.num_tokens())?;
        self.documents.decode(&self.bytes[start as usize * self.documents.width..], tokens);
        Ok(())
    }

    fn origin(&self, document: usize) -> String {
        format!("document {document}")
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add(&format!("tokens of {} bytes", self.documents.width), &self.bytes);
        fingerprint.add("ends", bytemuck::cast_slice(&self.documents.ends));
        Ok(())
    }
}
