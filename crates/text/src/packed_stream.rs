//! Packs the documents of a stream into blocks of one length.
//!
//! Out of scope: packing documents by index (`token_blocks`, `packed_documents`).

use std::collections::VecDeque;

use super::packed_documents::parts;
use super::prefetch::Prefetch;
use super::token_blocks::check_length;
use super::{Encoding, LongDocuments};
use fulmen_data::{Error, Fingerprint, Items, Result, Stream, StreamItem};

/// Packs the documents of a stream of tokens into blocks of `length`. Documents are either
/// concatenated and cut ([`new`](PackedStream::new)), or packed whole
/// ([`first_fit`](PackedStream::first_fit)).
///
/// The blocks depend only on the documents, their order and the options, so a loader that resumes
/// in the middle of an epoch continues with the next block. A document that cannot be read is
/// reported as an error, and is missing from the blocks. Documents without tokens are left out. The
/// origin of a block is the origin of its first document.
///
/// ```
/// use fulmen_text::PackedStream;
/// use fulmen_data::{Fingerprint, Items, Result, Stream, StreamItem};
///
/// struct Documents;
///
/// impl Stream for Documents {
///     type Item = Vec<u32>;
///     fn len(&self) -> Option<usize> {
///         Some(3)
///     }
///     fn items(&self, _epoch: u64) -> Result<Items<Vec<u32>>> {
///         let documents = [vec![11, 12, 13], vec![21, 22, 23], vec![31]].into_iter().enumerate();
///         let item = |(i, item)| Ok(StreamItem { index: i as u64, origin: format!("document {i}"), item });
///         Ok(Box::new(documents.map(item)))
///     }
///     fn fingerprint(&self, _: &mut Fingerprint) -> Result<()> {
///         Ok(())
///     }
/// }
///
/// let ids = |stream: PackedStream<_>| -> Result<Vec<Vec<u32>>> {
///     stream.items(0)?.map(|block| Ok(block?.item.ids)).collect()
/// };
/// assert_eq!(ids(PackedStream::new(Documents, 4)?.separator(0))?, [[11, 12, 13, 0], [21, 22, 23, 0]]);
/// assert_eq!(ids(PackedStream::first_fit(Documents, 4, 8)?)?, [vec![11, 12, 13, 31], vec![21, 22, 23]]);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct PackedStream<S> {
    documents: S,
    options: Options,
}

#[derive(Clone, Copy, Debug)]
struct Options {
    length: usize,
    separator: Option<u32>,
    keep_remainder: bool,
    /// The number of open blocks, if whole documents are packed.
    open_blocks: Option<usize>,
    long: LongDocuments,
    threads: usize,
}

impl<S> PackedStream<S> {
    /// Concatenates the documents and cuts them into blocks of `length`, like
    /// [`TokenBlocks`](super::TokenBlocks).
    ///
    /// # Errors
    /// A length of 0.
    pub fn new(documents: S, length: usize) -> Result<PackedStream<S>> {
        check_length(length)?;
        let long = LongDocuments::default();
        let options = Options {
            length,
            separator: None,
            keep_remainder: false,
            open_blocks: None,
            long,
            threads: 0,
        };
        Ok(PackedStream { documents, options })
    }

    /// Packs whole documents into blocks of at most `length`, like
    /// [`PackedDocuments`](super::PackedDocuments), with `open_blocks` open blocks at a time. If a
    /// document fits into none of them, the oldest one is closed. A full block is closed
    /// immediately.
    ///
    /// # Errors
    /// A length of 0; 0 open blocks.
    pub fn first_fit(documents: S, length: usize, open_blocks: usize) -> Result<PackedStream<S>> {
        if open_blocks == 0 {
            return Err(Error::usage("0 open blocks; use at least 1"));
        }
        let mut packed = PackedStream::new(documents, length)?;
        packed.options.open_blocks = Some(open_blocks);
        Ok(packed)
    }

    /// A token appended to each document, such as `<|endoftext|>`. It counts as the document's last
    /// token.
    pub fn separator(mut self, separator: u32) -> PackedStream<S> {
        self.options.separator = Some(separator);
        self
    }

    /// Whether the concatenated tokens at the end of an epoch that do not fill a block form a last,
    /// shorter block; off unless set.
    pub fn keep_remainder(mut self, keep: bool) -> PackedStream<S> {
        self.options.keep_remainder = keep;
        self
    }

    /// The number of threads that tokenize documents ahead of the packing, if the stream defers
    /// this work ([`Stream::deferred`]). With 0, the default, the thread that reads the stream
    /// tokenizes them. The blocks do not depend on this number.
    pub fn threads(mut self, threads: usize) -> PackedStream<S> {
        self.options.threads = threads;
        self
    }

    /// What to do with documents longer than a block, if whole documents are packed;
    /// [`LongDocuments::Split`] unless set.
    pub fn long_documents(mut self, long: LongDocuments) -> PackedStream<S> {
        self.options.long = long;
        self
    }
}

impl<S: Stream<Item: AsRef<[u32]>>> Stream for PackedStream<S> {
    type Item = Encoding;

    /// `None`, because the number of blocks is unknown before the documents are read.
    fn len(&self) -> Option<usize> {
        None
    }

    fn items(&self, epoch: u64) -> Result<Items<Encoding>> {
        let documents = Prefetch::new(self.documents.deferred(epoch)?, self.options.threads)?;
        let blocks = Blocks {
            documents,
            options: self.options,
            open: VecDeque::new(),
            closed: VecDeque::new(),
            index: 0,
            ended: false,
        };
        Ok(Box::new(blocks))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("packed", self.options.describe());
        self.documents.fingerprint(fingerprint)
    }

    fn describe(&self) -> String {
        format!("{}, packed ({})", self.documents.describe(), self.options.describe())
    }
}

impl Options {
    /// Describes everything that the blocks depend on.
    fn describe(&self) -> String {
        let Options { length, separator, keep_remainder, open_blocks, long, threads: _ } = self;
        format!(
            "length {length}, separator {separator:?}, keep_remainder {keep_remainder}, open_blocks {open_blocks:?}, \
             long documents {long:?}"
        )
    }
}

/// The blocks of an epoch.
struct Blocks<T> {
    documents: Prefetch<T>,
    options: Options,
    /// Blocks with free space, the oldest first; at most one if documents are concatenated.
    open: VecDeque<Block>,
    closed: VecDeque<Block>,
    /// The index of the next block.
    index: u64,
    /// Whether the documents have ended.
    ended: bool,
}

struct Block {
    origin: String,
    encoding: Encoding,
}

impl Block {
    fn new(origin: &str) -> Block {
        Block { origin: origin.to_owned(), encoding: Encoding::default() }
    }

    /// Adds a document or a part of one.
    fn push(&mut self, tokens: &[u32], begins: bool) {
        let start = self.encoding.len();
        if begins && start > 0 {
            self.encoding.starts.push(start);
        }
        self.encoding.ids.extend_from_slice(tokens);
    }
}

impl<T: AsRef<[u32]> + Send + 'static> Iterator for Blocks<T> {
    type Item = Result<StreamItem<Encoding>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            // A full block of concatenated documents waits for the next token, which is the label
            // of its last position.
            let waits = self.options.open_blocks.is_none() && !self.ended;
            if self.closed.front().is_some_and(|block| !waits || block.encoding.next.is_some())
                && let Some(Block { origin, encoding }) = self.closed.pop_front()
            {
                let index = self.index;
                self.index += 1;
                return Some(Ok(StreamItem { index, origin, item: encoding }));
            }
            if self.ended && self.open.is_empty() {
                return None;
            }
            if self.ended {
                let keep = self.options.open_blocks.is_some() || self.options.keep_remainder;
                let rest = self.open.drain(..).filter(|_| keep);
                self.closed.extend(rest);
                continue;
            }
            match self.documents.next() {
                None => self.ended = true,
                Some(Ok(document)) => self.add(&document.origin, document.item.as_ref()),
                // If the caller continues, the blocks contain the other documents.
                Some(Err(error)) => return Some(Err(error)),
            }
        }
    }
}

impl<T> Blocks<T> {
    fn add(&mut self, origin: &str, document: &[u32]) {
        if document.is_empty() {
            return;
        }
        let mut tokens = document.to_vec();
        tokens.extend(self.options.separator);
        match self.options.open_blocks {
            None => self.join(origin, &tokens),
            Some(open) => {
                for (start, length) in
                    parts(tokens.len() as u64, self.options.length, self.options.long)
                {
                    let start = start as usize;
                    self.place_document(origin, &tokens[start..start + length as usize], open);
                }
            }
        }
    }

    /// Appends tokens to the open block, and opens a new block when it is full.
    fn join(&mut self, origin: &str, mut tokens: &[u32]) {
        let mut begins = true;
        while let Some(&first) = tokens.first() {
            let mut block = self.open.pop_front().unwrap_or_else(|| Block::new(origin));
            if block.encoding.is_empty()
                && let Some(Block { encoding: before, .. }) = self.closed.back_mut()
                && before.next.is_none()
            {
                before.next = Some(first);
                if begins {
                    before.starts.push(before.len());
                }
            }
            let (now, rest) =
                tokens.split_at(tokens.len().min(self.options.length - block.encoding.len()));
            block.push(now, begins);
            (tokens, begins) = (rest, false);
            let full = block.encoding.len() == self.options.length;
            if full { self.closed.push_back(block) } else { self.open.push_back(block) }
        }
    }

    /// Puts a document into the first block with enough space.
    fn place_document(&mut self, origin: &str, tokens: &[u32], open: usize) {
        let fits = |block: &Block| block.encoding.len() + tokens.len() <= self.options.length;
        let index = match self.open.iter().position(fits) {
            Some(index) => index,
            None => {
                if self.open.len() == open {
                    self.closed.extend(self.open.pop_front());
                }
                self.open.push_back(Block::new(origin));
                self.open.len() - 1
            }
        };
        self.open[index].push(tokens, true);
        if self.open[index].encoding.len() == self.options.length {
            self.closed.extend(self.open.remove(index));
        }
    }
}
