//! Tokens of many documents in sequence, with random access.
//!
//! Out of scope: the implementations (`token_array`, `token_file`), and blocks.

use std::sync::Arc;

use super::Encoding;
use fulmen_data::{Fingerprint, Result};

/// The tokens of documents in sequence.
pub trait TokenStore: Send + Sync + 'static {
    /// The number of tokens. It must not change.
    fn num_tokens(&self) -> u64;

    /// The end of each document, in ascending order. The last one is
    /// [`num_tokens`](TokenStore::num_tokens).
    fn document_ends(&self) -> &[u64];

    /// Fills `tokens` with the tokens from `start` on. Any thread may call this method.
    ///
    /// # Errors
    /// Tokens out of range; a file that cannot be read.
    fn read(&self, start: u64, tokens: &mut [u32]) -> Result<()>;

    /// For each of `length` tokens from `start` on, whether a causal language model learns to predict
    /// it; `None`, as unless this method is written, if it learns all.
    ///
    /// # Errors
    /// Tokens out of range.
    fn targets(&self, _start: u64, _length: usize) -> Result<Option<Vec<bool>>> {
        Ok(None)
    }

    /// Where a document comes from, for messages.
    fn origin(&self, document: usize) -> String;

    /// Adds everything the tokens depend on.
    ///
    /// # Errors
    /// A file that no longer exists.
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()>;
}

impl<T: TokenStore + ?Sized> TokenStore for Arc<T> {
    fn num_tokens(&self) -> u64 {
        (**self).num_tokens()
    }

    fn document_ends(&self) -> &[u64] {
        (**self).document_ends()
    }

    fn read(&self, start: u64, tokens: &mut [u32]) -> Result<()> {
        (**self).read(start, tokens)
    }

    fn targets(&self, start: u64, length: usize) -> Result<Option<Vec<bool>>> {
        (**self).targets(start, length)
    }

    fn origin(&self, document: usize) -> String {
        (**self).origin(document)
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        (**self).fingerprint(fingerprint)
    }
}

/// The document that contains a token.
pub(super) fn document_at(store: &impl TokenStore, token: u64) -> usize {
    store.document_ends().partition_point(|&end| end <= token)
}

/// Reads the tokens of a range, with the starts of documents and the next token.
pub(super) fn read_block(store: &impl TokenStore, start: u64, length: usize) -> Result<Encoding> {
    let end = start + length as u64;
    let more = usize::from(end < store.num_tokens());
    let mut ids = vec![0; length + more];
    store.read(start, &mut ids)?;
    let mut next = if more == 1 { ids.pop() } else { None };
    let mut targets = store.targets(start, length + more)?.unwrap_or_default();
    // The next token is there only as a label.
    if more == 1 && targets.pop() == Some(false) {
        next = None;
    }
    let more = usize::from(next.is_some());
    let ends = &store.document_ends()[document_at(store, start)..];
    // These include the start at the next token, which must not be a label if it starts a document.
    let starts = ends
        .iter()
        .take_while(|&&document| document < end + more as u64)
        .map(|document| (document - start) as usize)
        .collect();
    Ok(Encoding { starts, ids, next, targets, ..Encoding::default() })
}
