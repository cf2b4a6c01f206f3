//! The tokens of documents in memory, in two bytes each where the vocabulary allows it.
//!
//! Not here: the same on disk (`token_file`).

use std::io::Read;
use std::path::Path;

use flate2::Crc;

use super::TokenStore;
use super::document_reader::in_order;
use super::token_format::{Head, number};
use fulmen_data::{Error, Fingerprint, Result, Source};
use fulmen_files::Location;

/// The tokens of documents in memory.
///
/// A token takes two bytes where the vocabulary has at most 65,536, and four otherwise. A document without tokens is left
/// out.
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
pub struct TokenArray {
    tokens: Tokens,
    ends: Vec<u64>,
    vocab_size: usize,
    separator: Option<u32>,
}

#[derive(Clone, Debug)]
enum Tokens {
    Narrow(Vec<u16>),
    Wide(Vec<u32>),
}

impl TokenArray {
    /// No documents yet, of tokens below `vocab_size`.
    ///
    /// # Errors
    /// A vocabulary of none, or more than an i32 can count.
    pub fn new(vocab_size: usize) -> Result<TokenArray> {
        let tokens = match width(vocab_size)? {
            2 => Tokens::Narrow(Vec::new()),
            _ => Tokens::Wide(Vec::new()),
        };
        Ok(TokenArray { tokens, ends: Vec::new(), vocab_size, separator: None })
    }

    /// A token that is put after each document, such as `<|endoftext|>`. It counts as the document's last.
    pub fn separator(mut self, separator: u32) -> TokenArray {
        self.separator = Some(separator);
        self
    }

    /// Reads a whole [`TokenFile`](super::TokenFile) into memory, from wherever it lies, and compares its checksum. A local
    /// file need not be read whole: open it.
    ///
    /// # Errors
    /// A file that cannot be read, is no token file, or is damaged.
    pub fn open(file: impl Into<Location>) -> Result<TokenArray> {
        let location = file.into();
        let name = location.to_string();
        let path = location.local().unwrap_or(Path::new(&name));
        let io = |source| Error::io(path, "cannot read the token file", source);
        let size = location.size()?;
        let mut file = location.open()?;
        let head = Head::read(&mut file, size, path)?;
        let mut array = TokenArray::new(usize::try_from(head.vocab_size).unwrap_or(usize::MAX))?;
        let (mut crc, mut bytes) = (Crc::new(), vec![0; 1 << 18]);
        // As long as bytes come, and not as many as the head says.
        let mut left = head.tokens * u64::from(head.width);
        while left > 0 {
            let chunk = &mut bytes[..left.min(1 << 18) as usize];
            file.read_exact(chunk).map_err(io)?;
            crc.update(chunk);
            left -= chunk.len() as u64;
            match &mut array.tokens {
                Tokens::Narrow(tokens) => tokens.extend(chunk.chunks_exact(2).map(|token| number(token) as u16)),
                Tokens::Wide(tokens) => tokens.extend(chunk.chunks_exact(4).map(|token| number(token) as u32)),
            }
        }
        let mut ends = Vec::new();
        file.read_to_end(&mut ends).map_err(io)?;
        crc.update(&ends);
        head.check(&crc, path)?;
        array.ends = head.ends(&ends, path)?;
        Ok(array)
    }

    /// Adds a document.
    ///
    /// # Errors
    /// A token outside the vocabulary; then nothing of the document is added.
    pub fn push(&mut self, document: impl AsRef<[u32]>) -> Result<()> {
        let document = document.as_ref();
        check_tokens(document, self.separator, self.vocab_size)?;
        if document.is_empty() {
            return Ok(());
        }
        let all = document.iter().copied().chain(self.separator);
        match &mut self.tokens {
            Tokens::Narrow(tokens) => tokens.extend(all.map(|token| token as u16)),
            Tokens::Wide(tokens) => tokens.extend(all),
        }
        self.ends.push(self.num_tokens());
        Ok(())
    }

    /// Adds the documents of a source, which `threads` threads read and tokenize. The order is the source's.
    ///
    /// # Errors
    /// The first document that cannot be read or has a token outside the vocabulary; those before it have been added.
    pub fn extend<S>(&mut self, documents: &S, threads: usize) -> Result<()>
    where
        S: Source<Item: AsRef<[u32]>>,
    {
        in_order(
            documents,
            threads,
            |document| document,
            |index, document| {
                self.push(document).map_err(|error| error.at_sample(index as u64, Some(documents.origin(index))))
            },
        )
    }
}

impl TokenStore for TokenArray {
    fn num_tokens(&self) -> u64 {
        match &self.tokens {
            Tokens::Narrow(tokens) => tokens.len() as u64,
            Tokens::Wide(tokens) => tokens.len() as u64,
        }
    }

    fn document_ends(&self) -> &[u64] {
        &self.ends
    }

    fn read(&self, start: u64, tokens: &mut [u32]) -> Result<()> {
        check_range(start, tokens.len(), self.num_tokens())?;
        let range = start as usize..start as usize + tokens.len();
        match &self.tokens {
            Tokens::Wide(all) => tokens.copy_from_slice(&all[range]),
            Tokens::Narrow(all) => {
                tokens.iter_mut().zip(&all[range]).for_each(|(place, &token)| *place = u32::from(token));
            }
        }
        Ok(())
    }

    fn origin(&self, document: usize) -> String {
        format!("document {document}")
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        match &self.tokens {
            Tokens::Narrow(tokens) => fingerprint.add("tokens of 2 bytes", bytemuck::cast_slice(tokens)),
            Tokens::Wide(tokens) => fingerprint.add("tokens of 4 bytes", bytemuck::cast_slice(tokens)),
        }
        fingerprint.add("ends", bytemuck::cast_slice(&self.ends));
        Ok(())
    }
}

/// Bytes a token takes.
pub(super) fn width(vocab_size: usize) -> Result<usize> {
    match vocab_size {
        1..=0x1_0000 => Ok(2),
        0 => Err(Error::usage("a vocabulary of no tokens; give Tokenizer::vocab_size")),
        _ if i32::try_from(vocab_size).is_ok() => Ok(4),
        _ => Err(Error::usage(format!("a vocabulary of {vocab_size} tokens; at most {} can be counted", i32::MAX))),
    }
}

/// Whether all tokens are of the vocabulary.
pub(super) fn check_tokens(document: &[u32], separator: Option<u32>, vocab_size: usize) -> Result<()> {
    let outside = document.iter().copied().chain(separator).find(|&token| token as usize >= vocab_size);
    match outside {
        None => Ok(()),
        Some(token) => Err(Error::usage(format!(
            "the token {token} is none of a vocabulary of {vocab_size}; give the vocabulary of the tokenizer that made \
             it (Tokenizer::vocab_size)"
        ))),
    }
}

/// Whether tokens are there.
pub(super) fn check_range(start: u64, count: usize, tokens: u64) -> Result<()> {
    match start.checked_add(count as u64).is_some_and(|end| end <= tokens) {
        true => Ok(()),
        false => Err(Error::usage(format!("there are no {count} tokens from {start} on; there are {tokens} in all"))),
    }
}
