//! Whole documents packed into blocks, by index. Only documents longer than a block are cut.
//!
//! Out of scope: concatenated documents (`token_blocks`), and packing a stream (`packed_stream`).

use super::token_blocks::check_length;
use super::{Encoding, TokenStore};
use fulmen_data::{Error, Fingerprint, Result, Source};

/// Blocks of at most `length` tokens that contain whole documents (first-fit packing). A document
/// goes into the first block with enough space, or into a new block.
///
/// `segment_ids` and `position_ids` distinguish the documents of a block
/// ([`TokenCollator::documents`](super::TokenCollator::documents)). Which documents share a block
/// depends only on their lengths and their order.
///
/// ```
/// use fulmen_data::Source;
/// use fulmen_text::{PackedDocuments, TokenArray};
///
/// let mut tokens = TokenArray::new(100)?;
/// for document in [&[11, 12, 13][..], &[21, 22, 23], &[31], &[41]] {
///     tokens.push(document)?;
/// }
/// let blocks = PackedDocuments::new(tokens, 4)?;
/// assert_eq!(blocks.len(), 2);
/// assert_eq!(blocks.get(0)?.ids, [11, 12, 13, 31]);
/// assert_eq!(blocks.get(0)?.starts, [3]);
/// assert_eq!(blocks.padding_share(), 0.0);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct PackedDocuments<T> {
    tokens: T,
    length: usize,
    decreasing: bool,
    long: LongDocuments,
    /// The pieces of all blocks, block by block.
    pieces: Vec<Piece>,
    /// The end of each block's pieces.
    ends: Vec<usize>,
}

/// What to do with documents longer than a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LongDocuments {
    /// Split them into pieces of a block's length. Each piece is a separate document.
    #[default]
    Split,
    /// Keep only the first tokens, up to a block's length.
    Truncate,
}

/// A document, or a part of one.
#[derive(Clone, Copy, Debug)]
struct Piece {
    start: u64,
    length: u32,
}

impl<T: TokenStore> PackedDocuments<T> {
    /// Packs documents into blocks of at most `length` tokens. Longer documents are split.
    ///
    /// # Errors
    /// A length of 0; no documents.
    pub fn new(tokens: T, length: usize) -> Result<PackedDocuments<T>> {
        check_length(length)?;
        if tokens.num_tokens() == 0 {
            return Err(Error::usage("there are no tokens to fill blocks with"));
        }
        let decreasing = false;
        let long = LongDocuments::default();
        Ok(PackedDocuments {
            tokens,
            length,
            decreasing,
            long,
            pieces: Vec::new(),
            ends: Vec::new(),
        }
        .pack())
    }

    /// Whether to pack longer documents before shorter ones, which leaves less padding (first-fit
    /// decreasing). The blocks with the longest documents then come first, so shuffle the blocks.
    /// Off unless set.
    pub fn decreasing(mut self, decreasing: bool) -> PackedDocuments<T> {
        self.decreasing = decreasing;
        self.pack()
    }

    /// What to do with documents longer than a block; [`LongDocuments::Split`] unless set.
    pub fn long_documents(mut self, long: LongDocuments) -> PackedDocuments<T> {
        self.long = long;
        self.pack()
    }

    /// The fraction of padding among all positions of the blocks.
    pub fn padding_share(&self) -> f64 {
        let tokens: u64 = self.pieces.iter().map(|piece| u64::from(piece.length)).sum();
        1.0 - tokens as f64 / (self.ends.len() as f64 * self.length as f64)
    }

    fn pack(mut self) -> PackedDocuments<T> {
        let mut pieces = Vec::with_capacity(self.tokens.document_ends().len());
        let mut start = 0;
        for &end in self.tokens.document_ends() {
            for part in parts(end - start, self.length, self.long) {
                pieces.push(Piece { start: start + part.0, length: part.1 });
            }
            start = end;
        }
        if self.decreasing {
            // The sort is stable: documents of equal length stay in their order.
            pieces.sort_by_key(|piece| std::cmp::Reverse(piece.length));
        }
        let mut room = FreeSpace::new(pieces.len(), self.length as u32);
        let blocks: Vec<usize> = pieces.iter().map(|piece| room.take(piece.length)).collect();
        // The counting sort keeps the order of the pieces in a block.
        let count = blocks.iter().max().map_or(0, |last| last + 1);
        let mut block_ends = vec![0; count + 1];
        blocks.iter().for_each(|&block| block_ends[block + 1] += 1);
        (0..count).for_each(|block| block_ends[block + 1] += block_ends[block]);
        self.ends = block_ends[1..].to_vec();
        self.pieces = vec![Piece { start: 0, length: 0 }; pieces.len()];
        for (piece, block) in pieces.into_iter().zip(blocks) {
            self.pieces[block_ends[block]] = piece;
            block_ends[block] += 1;
        }
        self
    }

    fn block(&self, index: usize) -> &[Piece] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.pieces[start..self.ends[index]]
    }
}

/// The parts of a document that go into blocks: the start and the length of each.
pub(super) fn parts(
    document: u64,
    length: usize,
    long: LongDocuments,
) -> impl Iterator<Item = (u64, u32)> {
    let tokens = match long {
        LongDocuments::Split => document,
        LongDocuments::Truncate => document.min(length as u64),
    };
    (0..tokens)
        .step_by(length)
        .map(move |start| (start, (tokens - start).min(length as u64) as u32))
}

/// The free space of blocks, as a tree of maxima. A leaf is the free space of a block, and an inner
/// node is the maximum of its children.
struct FreeSpace {
    leaf_count: usize,
    max_free: Vec<u32>,
}

impl FreeSpace {
    /// `blocks` empty blocks of `length`.
    fn new(blocks: usize, length: u32) -> FreeSpace {
        let leaf_count = blocks.next_power_of_two();
        FreeSpace { leaf_count, max_free: vec![length; 2 * leaf_count] }
    }

    /// Takes this much space from the first block that has it. There is always such a block,
    /// because there are as many blocks as pieces.
    fn take(&mut self, length: u32) -> usize {
        let mut node = 1;
        while node < self.leaf_count {
            node *= 2;
            if self.max_free[node] < length {
                node += 1;
            }
        }
        let block = node - self.leaf_count;
        self.max_free[node] -= length;
        while node > 1 {
            node /= 2;
            self.max_free[node] = self.max_free[2 * node].max(self.max_free[2 * node + 1]);
        }
        block
    }
}

impl<T: TokenStore> Source for PackedDocuments<T> {
    type Item = Encoding;

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, index: usize) -> Result<Encoding> {
        if index >= self.ends.len() {
            return Err(Error::usage(format!(
                "there is no block {index}; there are {}",
                self.ends.len()
            )));
        }
        let mut encoding = Encoding::default();
        for piece in self.block(index) {
            let start = encoding.ids.len();
            if start > 0 {
                encoding.starts.push(start);
            }
            encoding.ids.resize(start + piece.length as usize, 0);
            self.tokens.read(piece.start, &mut encoding.ids[start..])?;
            let targets = self.tokens.targets(piece.start, piece.length as usize)?;
            encoding.targets.extend(targets.unwrap_or_default());
        }
        Ok(encoding)
    }

    fn origin(&self, index: usize) -> String {
        let first = self.ends.get(index).and_then(|_| self.block(index).first());
        let document =
            first.map_or(0, |piece| super::token_store::document_at(&self.tokens, piece.start));
        format!("{}, block {index}", self.tokens.origin(document))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint
            .add("first fit", format!("{} {} {:?}", self.length, self.decreasing, self.long));
        self.tokens.fingerprint(fingerprint)
    }
}
