//! What holds the tokens of many documents, one after another, and can be read anywhere.
//!
//! Not here: the places where they are held (`token_array`, `token_file`), and blocks of them.

use std::sync::Arc;

use super::Encoding;
use fulmen_data::{Fingerprint, Result};

/// The tokens of documents, one after another.
pub trait TokenStore: Send + Sync + 'static {
    /// How many tokens there are. It does not change.
    fn num_tokens(&self) -> u64;

    /// Where each document ends, ascending: the last one at [`num_tokens`](TokenStore::num_tokens).
    fn document_ends(&self) -> &[u64];

    /// Reads the tokens from `start` on, as many as `tokens` has room for, from any thread.
    ///
    /// # Errors
    /// Tokens beyond the last, and a file that cannot be read.
    fn read(&self, start: u64, tokens: &mut [u32]) -> Result<()>;

    /// Where a document comes from, for messages.
    fn origin(&self, document: usize) -> String;

    /// Adds all that the tokens depend on.
    ///
    /// # Errors
    /// A file that is no longer there.
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

    fn origin(&self, document: usize) -> String {
        (**self).origin(document)
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        (**self).fingerprint(fingerprint)
    }
}

/// The document that holds a token.
pub(super) fn document_at(store: &impl TokenStore, token: u64) -> usize {
    store.document_ends().partition_point(|&end| end <= token)
}

/// The tokens of a range, with the places where documents begin and the token that follows.
pub(super) fn read_block(store: &impl TokenStore, start: u64, length: usize) -> Result<Encoding> {
    let end = start + length as u64;
    let more = usize::from(end < store.num_tokens());
    let mut ids = vec![0; length + more];
    store.read(start, &mut ids)?;
    let next = if more == 1 { ids.pop() } else { None };
    let ends = &store.document_ends()[document_at(store, start)..];
    // The token that follows counts too: whether it begins a document decides whether it may be a label.
    let starts = ends.iter().take_while(|&&document| document < end + more as u64);
    let starts = starts.map(|document| (document - start) as usize);
    Ok(Encoding { starts: starts.collect(), ids, next, ..Encoding::default() })
}
