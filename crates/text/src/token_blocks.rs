//! Documents concatenated and cut into blocks of one length, by index.
//!
//! Out of scope: packing whole documents (`packed_documents`), and streams (`packed_stream`).

use super::token_store::{document_at, read_block};
use super::{Encoding, TokenStore};
use fulmen_data::{Error, Fingerprint, Result, Source};

/// Blocks of `length` tokens from all documents in sequence, as in GPT's training. A block starts
/// where the previous one ended, and may end in the middle of a document. Tokens at the end that do
/// not fill a block are left out, unless they are [kept](TokenBlocks::keep_remainder).
///
/// Each block has the token that follows it ([`Encoding::next`]) and the positions where documents
/// start in it ([`Encoding::starts`]).
///
/// ```
/// use fulmen_data::Source;
/// use fulmen_text::{TokenArray, TokenBlocks};
///
/// let mut tokens = TokenArray::new(100)?;
/// tokens.push([11, 12, 13])?;
/// tokens.push([21, 22])?;
/// let blocks = TokenBlocks::new(tokens, 2)?;
/// assert_eq!(blocks.len(), 2);
/// let second = blocks.get(1)?;
/// assert_eq!((second.ids, second.starts, second.next), (vec![13, 21], vec![1], Some(22)));
/// assert_eq!(blocks.keep_remainder(true).len(), 3);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct TokenBlocks<T> {
    tokens: T,
    length: usize,
    keep_remainder: bool,
}

impl<T: TokenStore> TokenBlocks<T> {
    /// Makes blocks of `length` tokens.
    ///
    /// # Errors
    /// A length of 0, or one larger than the number of tokens.
    pub fn new(tokens: T, length: usize) -> Result<TokenBlocks<T>> {
        check_length(length)?;
        if tokens.num_tokens() < length as u64 {
            return Err(Error::usage(format!(
                "there are only {} tokens, too few for a block of {length}; use shorter blocks or more documents",
                tokens.num_tokens()
            )));
        }
        Ok(TokenBlocks { tokens, length, keep_remainder: false })
    }

    /// Whether the tokens at the end that do not fill a block form a last, shorter block; off
    /// unless set.
    pub fn keep_remainder(mut self, keep: bool) -> TokenBlocks<T> {
        self.keep_remainder = keep;
        self
    }
}

/// Checks the length of blocks.
pub(super) fn check_length(length: usize) -> Result<()> {
    match length {
        0 => Err(Error::usage("blocks of 0 tokens; use at least 1")),
        _ if i32::try_from(length).is_err() => {
            Err(Error::usage(format!("blocks of {length} tokens are too long")))
        }
        _ => Ok(()),
    }
}

impl<T: TokenStore> Source for TokenBlocks<T> {
    type Item = Encoding;

    fn len(&self) -> usize {
        let tokens = self.tokens.num_tokens();
        let length = self.length as u64;
        let blocks = if self.keep_remainder { tokens.div_ceil(length) } else { tokens / length };
        usize::try_from(blocks).unwrap_or(usize::MAX)
    }

    fn get(&self, index: usize) -> Result<Encoding> {
        let Some(start) =
            (index as u64).checked_mul(self.length as u64).filter(|_| index < Source::len(self))
        else {
            return Err(Error::usage(format!(
                "there is no block {index}; there are {}",
                Source::len(self)
            )));
        };
        let length = (self.tokens.num_tokens() - start).min(self.length as u64) as usize;
        read_block(&self.tokens, start, length)
    }

    fn origin(&self, index: usize) -> String {
        let document = document_at(&self.tokens, (index as u64).saturating_mul(self.length as u64));
        format!("{}, block {index}", self.tokens.origin(document))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("blocks", format!("{} {}", self.length, self.keep_remainder));
        self.tokens.fingerprint(fingerprint)
    }
}
