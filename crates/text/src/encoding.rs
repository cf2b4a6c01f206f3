//! The tokens of a text, and bringing them to a length.
//!
//! Not here: where they come from (`tokenizer`), and how they become a sample (`samples`).

use fulmen_data::{Error, Result};

/// The tokens of a text, of a pair of texts, or of a block into which documents were packed.
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
    /// The tokens' numbers.
    pub ids: Vec<u32>,
    /// For each token, which text of a pair it belongs to, by the tokenizer's count; empty where all are 0.
    pub type_ids: Vec<u32>,
    /// For each token, whether the tokenizer added it and it stands for no part of the text; empty where none does.
    pub special: Vec<bool>,
    /// For each token, the word it is a part of, and `None` for special tokens; empty where words were not asked for.
    pub words: Vec<Option<u32>>,
    /// Where a document begins, other than at 0: ascending, and empty where there is but one. The last place is the number
    /// of tokens where [`next`](Encoding::next) begins a document.
    pub starts: Vec<usize>,
    /// The token that follows the last one, where a longer text was cut: the label of the last position.
    pub next: Option<u32>,
}

impl Encoding {
    /// Tokens of one text, of which nothing more is known.
    pub fn from_ids(ids: Vec<u32>) -> Encoding {
        Encoding { ids, ..Encoding::default() }
    }

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Takes tokens away on one side until at most `length` are left. Special tokens go like any other; a
    /// `Tokenizer` with a maximal length keeps them.
    pub fn truncate(&mut self, length: usize, side: Side) {
        let excess = self.len().saturating_sub(length);
        if excess == 0 {
            return;
        }
        match side {
            Side::Right => {
                self.next = self.ids.get(length).copied();
                self.ids.truncate(length);
                self.type_ids.truncate(length);
                self.special.truncate(length);
                self.words.truncate(length);
                self.starts.retain(|&start| start <= length);
            }
            Side::Left => {
                self.ids.drain(..excess);
                self.type_ids.drain(..excess.min(self.type_ids.len()));
                self.special.drain(..excess.min(self.special.len()));
                self.words.drain(..excess.min(self.words.len()));
                self.starts.retain(|&start| start > excess);
                self.starts.iter_mut().for_each(|start| *start -= excess);
            }
        }
    }

    /// Whether what is known of each token is known of all of them: the fields are public.
    pub(super) fn check(&self) -> Result<()> {
        let lengths = [("type_ids", self.type_ids.len()), ("special", self.special.len()), ("words", self.words.len())];
        if let Some((name, length)) = lengths.iter().find(|(_, length)| *length != 0 && *length != self.len()) {
            return Err(Error::usage(format!(
                "an encoding has {} ids, but {length} {name}; give as many as there are ids, or none",
                self.len()
            )));
        }
        let ascending = self.starts.windows(2).all(|pair| pair[0] < pair[1]);
        let inside = self.starts.first().is_none_or(|&first| first > 0)
            && self.starts.last().is_none_or(|&last| last < self.len() + usize::from(self.next.is_some()));
        match ascending && inside {
            true => Ok(()),
            false => Err(Error::usage(format!(
                "an encoding of {} ids has documents that begin at {:?}; the places must ascend, from 1 on and within \
                 the ids, or right behind them where the next token is known",
                self.len(),
                self.starts
            ))),
        }
    }
}

impl AsRef<[u32]> for Encoding {
    fn as_ref(&self) -> &[u32] {
        &self.ids
    }
}

/// The side on which tokens are taken away or padding is added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Side {
    /// The text's beginning.
    Left,
    /// The text's end.
    #[default]
    Right,
}

/// Tokens with padding to a length, and the padding mask: true where there is a token.
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
pub fn pad_to(ids: &[u32], length: usize, pad_id: u32, side: Side) -> Result<(Vec<u32>, Vec<bool>)> {
    let first = place(ids.len(), length, side)?;
    let (mut padded, mut mask) = (vec![pad_id; length], vec![false; length]);
    padded[first..first + ids.len()].copy_from_slice(ids);
    mask[first..first + ids.len()].fill(true);
    Ok((padded, mask))
}

/// Where the first of `tokens` tokens stands in a sample of `length`, with the padding on one side.
pub(super) fn place(tokens: usize, length: usize, padding: Side) -> Result<usize> {
    let Some(rest) = length.checked_sub(tokens) else {
        return Err(Error::usage(format!(
            "a text has {tokens} tokens, more than the {length} of a sample; let the tokenizer cut it \
             (Tokenizer::max_length), cut it without regard to special tokens (TokenCollator::truncation), or take longer \
             samples"
        )));
    };
    Ok(match padding {
        Side::Left => rest,
        Side::Right => 0,
    })
}
