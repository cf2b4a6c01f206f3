//! Documents of a stream in blocks of one length.
//!
//! Not here: the same by index (`token_blocks`, `first_fit`).

use std::collections::VecDeque;

use super::packed_documents::parts;
use super::prefetch::Prefetch;
use super::token_blocks::check_length;
use super::{Encoding, LongDocuments};
use fulmen_data::{Error, Fingerprint, Items, Result, Stream, StreamItem};

/// The documents of a stream of tokens in blocks of `length`: joined and cut anywhere ([`new`](PackedStream::new)), or
/// whole ones side by side ([`first_fit`](PackedStream::first_fit)).
///
/// The blocks follow from the documents, their order and the options alone, so that a loader that continues in the middle of
/// an epoch goes on with the very next one. A document that cannot be read is told of, and missing from the blocks. A document without tokens is left out. A block's origin is that of its
/// first document.
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
pub struct PackedStream<S> {
    documents: S,
    options: Options,
}

#[derive(Clone, Copy, Debug)]
struct Options {
    length: usize,
    separator: Option<u32>,
    keep_remainder: bool,
    /// Where whole documents stand side by side: how many blocks are open at once.
    open_blocks: Option<usize>,
    long: LongDocuments,
    threads: usize,
}

impl<S> PackedStream<S> {
    /// Documents joined and cut into blocks of `length`, as [`TokenBlocks`](super::TokenBlocks) does.
    ///
    /// # Errors
    /// Blocks of no tokens.
    pub fn new(documents: S, length: usize) -> Result<PackedStream<S>> {
        check_length(length)?;
        let long = LongDocuments::default();
        let options = Options { length, separator: None, keep_remainder: false, open_blocks: None, long, threads: 0 };
        Ok(PackedStream { documents, options })
    }

    /// Whole documents side by side in blocks of at most `length`, as [`PackedDocuments`](super::PackedDocuments) does, among
    /// `open_blocks` blocks at a time: a document that fits into none of them closes the oldest. A block that is full is
    /// closed at once.
    ///
    /// # Errors
    /// Blocks of no tokens; no open blocks.
    pub fn first_fit(documents: S, length: usize, open_blocks: usize) -> Result<PackedStream<S>> {
        if open_blocks == 0 {
            return Err(Error::usage("0 blocks open at once; take at least 1"));
        }
        let mut packed = PackedStream::new(documents, length)?;
        packed.options.open_blocks = Some(open_blocks);
        Ok(packed)
    }

    /// A token that is put after each document, such as `<|endoftext|>`. It counts as the document's last.
    pub fn separator(mut self, separator: u32) -> PackedStream<S> {
        self.options.separator = Some(separator);
        self
    }

    /// Whether joined tokens that fill no block at the end of an epoch are a last, shorter one; no unless said otherwise.
    pub fn keep_remainder(mut self, keep: bool) -> PackedStream<S> {
        self.options.keep_remainder = keep;
        self
    }

    /// How many threads tokenize documents ahead of the packing, as far as the stream leaves that for later
    /// ([`Stream::deferred`]); none unless said otherwise, where the thread that reads the stream does it all. It changes
    /// nothing about the blocks.
    pub fn threads(mut self, threads: usize) -> PackedStream<S> {
        self.options.threads = threads;
        self
    }

    /// What becomes of documents that are longer than a block, where they stand side by side.
    pub fn long_documents(mut self, long: LongDocuments) -> PackedStream<S> {
        self.options.long = long;
        self
    }
}

impl<S: Stream<Item: AsRef<[u32]>>> Stream for PackedStream<S> {
    type Item = Encoding;

    /// Unknown without reading the documents.
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
    /// All that the blocks depend on.
    fn describe(&self) -> String {
        let Options { length, separator, keep_remainder, open_blocks, long, threads: _ } = self;
        format!(
            "length {length}, separator {separator:?}, keep_remainder {keep_remainder}, open_blocks {open_blocks:?}, long \
             documents {long:?}"
        )
    }
}

/// The blocks of an epoch.
struct Blocks<T> {
    documents: Prefetch<T>,
    options: Options,
    /// Blocks with room, the oldest first; of joined documents there is at most one.
    open: VecDeque<Block>,
    closed: VecDeque<Block>,
    /// Of the next block.
    index: u64,
    /// The documents are at their end.
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
        let place = self.encoding.len();
        if begins && place > 0 {
            self.encoding.starts.push(place);
        }
        self.encoding.ids.extend_from_slice(tokens);
    }
}

impl<T: AsRef<[u32]> + Send + 'static> Iterator for Blocks<T> {
    type Item = Result<StreamItem<Encoding>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            // A joined block waits for the token after it, which is its last label.
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
                // Reading on gives blocks of the other documents.
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
                for (start, length) in parts(tokens.len() as u64, self.options.length, self.options.long) {
                    let start = start as usize;
                    self.place(origin, &tokens[start..start + length as usize], open);
                }
            }
        }
    }

    /// Goes on in the block that is open, and in new ones from where each is full.
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
            let (now, rest) = tokens.split_at(tokens.len().min(self.options.length - block.encoding.len()));
            block.push(now, begins);
            (tokens, begins) = (rest, false);
            let full = block.encoding.len() == self.options.length;
            if full { self.closed.push_back(block) } else { self.open.push_back(block) }
        }
    }

    /// Puts a document into the first block with room.
    fn place(&mut self, origin: &str, tokens: &[u32], open: usize) {
        let fits = |block: &Block| block.encoding.len() + tokens.len() <= self.options.length;
        let at = match self.open.iter().position(fits) {
            Some(at) => at,
            None => {
                if self.open.len() == open {
                    self.closed.extend(self.open.pop_front());
                }
                self.open.push_back(Block::new(origin));
                self.open.len() - 1
            }
        };
        self.open[at].push(tokens, true);
        if self.open[at].encoding.len() == self.options.length {
            self.closed.extend(self.open.remove(at));
        }
    }
}
