//! A part of a text that a piece stands for.

use std::ops::Range;

/// A piece at a place of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// The bytes of the text.
    pub(super) bytes: Range<usize>,
    /// The index of the piece.
    pub(super) piece: usize,
}
