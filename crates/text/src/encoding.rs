//! The tokens of a text, and truncating or padding them.
//!
//! Out of scope: tokenizers (`tokenizer`), and samples (`token_collator`).

use fulmen_data::{Error, Result};

/// The tokens of a text, of a pair of texts, or of a block of packed documents.
///
/// ```
/// use fulmen_text::{Encoding, Side};
///
/// let mut encoding = Encoding::from_ids(vec![7, 8, 9]);
/// encoding.truncate(2, Side::Left);
/// assert_eq!(encoding.ids, [8, 9]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoding {
    /// The token ids.
    pub ids: Vec<u32>,
    /// For each token, the number of the text that it belongs to, as the tokenizer counts the texts
    /// of a pair; empty if all numbers are 0.
    pub type_ids: Vec<u32>,
    /// For each token, whether it is a special token added by the tokenizer; empty if there are
    /// none.
    pub special: Vec<bool>,
    /// For each token, the index of its word, and `None` for special tokens; empty if words were
    /// not requested.
    pub words: Vec<Option<u32>>,
    /// For each token, whether a causal language model learns to predict it; empty if it learns all.
    /// The others have the label [`IGNORE_INDEX`](super::IGNORE_INDEX).
    pub targets: Vec<bool>,
    /// The positions where documents start, except 0, in ascending order; empty if there is only
    /// one document. The last position is the number of tokens if [`next`](Encoding::next) starts a
    /// document.
    pub starts: Vec<usize>,
    /// The token after the last one, if the block was cut from a longer text. It is the label of
    /// the last position.
    pub next: Option<u32>,
}

impl Encoding {
    /// The tokens of one text, without further information.
    pub fn from_ids(ids: Vec<u32>) -> Encoding {
        Encoding { ids, ..Encoding::default() }
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Removes tokens on one side until at most `length` are left. Special tokens are removed like
    /// other tokens; a `Tokenizer` with a maximum length keeps them.
    pub fn truncate(&mut self, length: usize, side: Side) {
        let excess = self.len().saturating_sub(length);
        if excess == 0 {
            return;
        }
        match side {
            Side::Right => {
                let is_target = self.targets.get(length) != Some(&false);
                self.next = self.ids.get(length).copied().filter(|_| is_target);
                self.ids.truncate(length);
                self.type_ids.truncate(length);
                self.special.truncate(length);
                self.words.truncate(length);
                self.targets.truncate(length);
                let limit = length + usize::from(self.next.is_some());
                self.starts.retain(|&start| start < limit);
            }
            Side::Left => {
                self.ids.drain(..excess);
                self.type_ids.drain(..excess.min(self.type_ids.len()));
                self.special.drain(..excess.min(self.special.len()));
                self.words.drain(..excess.min(self.words.len()));
                self.targets.drain(..excess.min(self.targets.len()));
                self.starts.retain(|&start| start > excess);
                self.starts.iter_mut().for_each(|start| *start -= excess);
            }
        }
    }

    /// Checks that the lengths of the public fields are consistent.
    pub(super) fn check(&self) -> Result<()> {
        let lengths = [
            ("type_ids", self.type_ids.len()),
            ("special", self.special.len()),
            ("words", self.words.len()),
            ("targets", self.targets.len()),
        ];
        if let Some((name, length)) =
            lengths.iter().find(|(_, length)| *length != 0 && *length != self.len())
        {
            return Err(Error::usage(format!(
                "an encoding has {} ids, but {length} {name}; pass as many as there are ids, or none",
                self.len()
            )));
        }
        let ascending = self.starts.windows(2).all(|pair| pair[0] < pair[1]);
        let in_range = self.starts.first().is_none_or(|&first| first > 0)
            && self
                .starts
                .last()
                .is_none_or(|&last| last < self.len() + usize::from(self.next.is_some()));
        if ascending && in_range {
            Ok(())
        } else {
            Err(Error::usage(format!(
                "an encoding of {} ids has documents that begin at {:?}; the positions must ascend, start at 1 or \
                 later, and be less than the number of ids (or equal to it if the next token is known)",
                self.len(),
                self.starts
            )))
        }
    }
}

impl AsRef<[u32]> for Encoding {
    fn as_ref(&self) -> &[u32] {
        &self.ids
    }
}

/// The side on which to truncate or pad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Side {
    /// The start of the text.
    Left,
    /// The end of the text.
    #[default]
    Right,
}

/// Pads tokens to a length, and returns the padding mask, which is true for tokens.
///
/// ```
/// use fulmen_text::{Side, pad_to};
///
/// assert_eq!(pad_to(&[7, 8], 4, 0, Side::Left)?, (vec![0, 0, 7, 8], vec![false, false, true, true]));
/// assert!(pad_to(&[7, 8], 1, 0, Side::Left).is_err());
/// # Ok::<(), fulmen_data::Error>(())
/// ```
///
/// # Errors
/// More tokens than `length`.
pub fn pad_to(
    ids: &[u32],
    length: usize,
    pad_id: u32,
    side: Side,
) -> Result<(Vec<u32>, Vec<bool>)> {
    let first = first_position(ids.len(), length, side)?;
    let mut padded = vec![pad_id; length];
    let mut mask = vec![false; length];
    padded[first..first + ids.len()].copy_from_slice(ids);
    mask[first..first + ids.len()].fill(true);
    Ok((padded, mask))
}

/// The position of the first token in a sample of `length` positions with `tokens` tokens and the
/// padding on one side.
pub(super) fn first_position(tokens: usize, length: usize, padding: Side) -> Result<usize> {
    let Some(rest) = length.checked_sub(tokens) else {
        return Err(Error::usage(format!(
            "a text has {tokens} tokens, more than the {length} of a sample; let the tokenizer truncate it \
             (Tokenizer::max_length), truncate it without regard to special tokens (TokenCollator::truncation), or \
             use longer samples"
        )));
    };
    Ok(match padding {
        Side::Left => rest,
        Side::Right => 0,
    })
}
