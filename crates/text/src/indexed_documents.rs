//! Documents that are tokenized each time they are read; only their token counts are stored.
//!
//! Out of scope: stored tokens (`token_array`, `token_file`), which are read many times faster.

use super::token_format::check_range;
use super::token_store::document_at;
use super::{TokenStore, token_lengths};
use fulmen_data::{Error, Fingerprint, Result, Source};

/// The tokens of a source's documents, computed each time they are read.
///
/// To make a block, all documents that overlap it are tokenized. Use this for short documents, for
/// a tokenizer that changes, or if token files would not fit on the disk. Documents without tokens
/// are left out.
///
/// ```
/// # use fulmen_data::{Fingerprint, Result};
/// use fulmen_data::Source;
/// use fulmen_text::{IndexedDocuments, TokenBlocks};
///
/// # struct Documents;
/// # impl Source for Documents {
/// #     type Item = Vec<u32>;
/// #     fn len(&self) -> usize {
/// #         3
/// #     }
/// #     fn get(&self, index: usize) -> Result<Vec<u32>> {
/// #         Ok([vec![11, 12, 13], Vec::new(), vec![31]][index].clone())
/// #     }
/// #     fn origin(&self, index: usize) -> String {
/// #         format!("document {index}")
/// #     }
/// #     fn fingerprint(&self, _: &mut Fingerprint) -> Result<()> {
/// #         Ok(())
/// #     }
/// # }
/// // Documents: [11, 12, 13], [] and [31].
/// let tokens = IndexedDocuments::new(Documents, Some(0), 2)?;
/// let blocks = TokenBlocks::new(tokens, 3)?;
/// assert_eq!((blocks.get(0)?.ids, blocks.get(1)?.ids), (vec![11, 12, 13], vec![0, 31, 0]));
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct IndexedDocuments<S> {
    source: S,
    separator: Option<u32>,
    ends: Vec<u64>,
    /// The index in the source of each document with tokens.
    indices: Vec<usize>,
}

impl<S: Source<Item: AsRef<[u32]>>> IndexedDocuments<S> {
    /// Counts the tokens of all documents with `threads` threads. `separator` is appended to each
    /// document and counts as its last token.
    ///
    /// # Errors
    /// The error of the first document that cannot be read.
    pub fn new(source: S, separator: Option<u32>, threads: usize) -> Result<IndexedDocuments<S>> {
        let lengths = token_lengths(&source, threads)?;
        let mut ends = Vec::new();
        let mut indices = Vec::new();
        let mut end = 0;
        for (index, &length) in lengths.iter().enumerate().filter(|(_, length)| **length > 0) {
            end += length as u64 + u64::from(separator.is_some());
            ends.push(end);
            indices.push(index);
        }
        Ok(IndexedDocuments { source, separator, ends, indices })
    }

    /// The tokens of a document, checked against the stored count.
    fn document(&self, document: usize) -> Result<Vec<u32>> {
        let index = self.indices[document];
        let item = self.source.get(index)?;
        let mut tokens = item.as_ref().to_vec();
        tokens.extend(self.separator);
        let start = document.checked_sub(1).map_or(0, |before| self.ends[before]);
        let counted = self.ends[document] - start;
        if tokens.len() as u64 == counted {
            Ok(tokens)
        } else {
            Err(Error::new(format!(
                "{}: {} tokens, but {counted} when they were counted; the same document must give the same tokens each \
                 time",
                self.source.origin(index),
                tokens.len()
            )))
        }
    }
}

impl<S: Source<Item: AsRef<[u32]>>> TokenStore for IndexedDocuments<S> {
    fn num_tokens(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    fn document_ends(&self) -> &[u64] {
        &self.ends
    }

    fn read(&self, start: u64, mut tokens: &mut [u32]) -> Result<()> {
        check_range(start, tokens.len(), self.num_tokens())?;
        let mut document = document_at(self, start);
        let mut skip =
            (start - document.checked_sub(1).map_or(0, |before| self.ends[before])) as usize;
        while !tokens.is_empty() {
            let all = self.document(document)?;
            let part = &all[skip..all.len().min(skip + tokens.len())];
            let (now, rest) = tokens.split_at_mut(part.len());
            now.copy_from_slice(part);
            (tokens, document, skip) = (rest, document + 1, 0);
        }
        Ok(())
    }

    fn origin(&self, document: usize) -> String {
        self.indices
            .get(document)
            .map_or_else(|| format!("document {document}"), |&index| self.source.origin(index))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("indexed documents", format!("separator {:?}", self.separator));
        self.source.fingerprint(fingerprint)
    }
}
