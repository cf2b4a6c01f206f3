//! Merging the characters of a text to pieces, the neighbors with the highest score first, as
//! SentencePiece's BPE does.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;

use super::model_proto::{Kind, PieceModel};
use super::span::Span;
use super::trie::Trie;

#[derive(Clone, Debug)]
pub(super) struct Merges {
    trie: Trie,
    user_defined: Trie,
    scores: Vec<f32>,
    unused: Vec<bool>,
    /// The pieces that no merge makes.
    reserved: HashMap<String, usize>,
    unknown: usize,
}

/// A part of the text, linked to its neighbors.
#[derive(Clone, Debug)]
struct Symbol {
    /// Empty once it is merged into another symbol.
    bytes: Range<usize>,
    previous: Option<usize>,
    next: Option<usize>,
    /// Whether the symbol is a user-defined piece, which is not merged.
    frozen: bool,
}

/// Two neighbors that could be merged.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    length: usize,
}

impl Ord for Candidate {
    /// The largest is merged first: the highest score, then the leftmost.
    fn cmp(&self, other: &Candidate) -> Ordering {
        let by_score = self.score.partial_cmp(&other.score).unwrap_or(Ordering::Equal);
        by_score.then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Candidate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Candidate) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

/// The state of one text.
struct Merging<'a> {
    merges: &'a Merges,
    text: &'a str,
    symbols: Vec<Symbol>,
    candidates: BinaryHeap<Candidate>,
    /// The parts of the unused pieces that were made.
    unused_parts: HashMap<&'a str, usize>,
}

impl Merges {
    pub(super) fn new(model: &PieceModel, trie: Trie, user_defined: Trie) -> Merges {
        let is_reserved = |kind: Kind| matches!(kind, Kind::Unknown | Kind::Control | Kind::Byte);
        let reserved = model.pieces.iter().enumerate().filter(|(_, piece)| is_reserved(piece.kind));
        Merges {
            trie,
            user_defined,
            scores: model.pieces.iter().map(|piece| piece.score).collect(),
            unused: model.pieces.iter().map(|piece| piece.kind == Kind::Unused).collect(),
            reserved: reserved.map(|(number, piece)| (piece.text.clone(), number)).collect(),
            unknown: model.unknown,
        }
    }

    pub(super) fn encode(&self, text: &str) -> Vec<Span> {
        let mut merging = Merging {
            merges: self,
            text,
            symbols: self.symbols(text),
            candidates: BinaryHeap::new(),
            unused_parts: HashMap::new(),
        };
        for right in 1..merging.symbols.len() {
            merging.add_candidate(right - 1, right);
        }
        while let Some(candidate) = merging.candidates.pop() {
            merging.merge(candidate);
        }
        let mut spans = Vec::with_capacity(merging.symbols.len());
        for symbol in merging.symbols.iter().filter(|symbol| !symbol.bytes.is_empty()) {
            merging.write(symbol.bytes.clone(), &mut spans);
        }
        spans
    }

    /// The characters and user-defined pieces of a text.
    fn symbols(&self, text: &str) -> Vec<Symbol> {
        let mut symbols: Vec<Symbol> = Vec::new();
        let mut start = 0;
        while let Some(character) = text[start..].chars().next() {
            let user = self.user_defined.prefixes(&text.as_bytes()[start..]).last();
            let end = start + user.map_or(character.len_utf8(), |user| user.length);
            let number = symbols.len();
            symbols.push(Symbol {
                bytes: start..end,
                previous: number.checked_sub(1),
                next: Some(number + 1).filter(|_| end < text.len()),
                frozen: user.is_some(),
            });
            start = end;
        }
        symbols
    }

    fn piece(&self, text: &str) -> Option<usize> {
        let reserved = self.reserved.get(text).copied();
        reserved.or_else(|| self.trie.get(text.as_bytes()).map(|piece| piece as usize))
    }
}

impl Merging<'_> {
    fn add_candidate(&mut self, left: usize, right: usize) {
        let first = &self.symbols[left];
        let second = &self.symbols[right];
        if first.frozen || second.frozen {
            return;
        }
        let text = &self.text[first.bytes.start..second.bytes.end];
        let Some(piece) = self.merges.trie.get(text.as_bytes()) else { return };
        let piece = piece as usize;
        if self.merges.unused[piece] {
            self.unused_parts.insert(text, first.bytes.len());
        }
        let score = self.merges.scores[piece];
        self.candidates.push(Candidate { score, left, right, length: text.len() });
    }

    fn merge(&mut self, candidate: Candidate) {
        let Candidate { left, right, length, .. } = candidate;
        let first = self.symbols[left].bytes.clone();
        let second = self.symbols[right].bytes.clone();
        if first.is_empty() || second.is_empty() || first.len() + second.len() != length {
            return;
        }
        let next = self.symbols[right].next;
        self.symbols[left].bytes = first.start..second.end;
        self.symbols[left].next = next;
        self.symbols[right].bytes = second.end..second.end;
        if let Some(next) = next {
            self.symbols[next].previous = Some(left);
            self.add_candidate(left, next);
        }
        if let Some(previous) = self.symbols[left].previous {
            self.add_candidate(previous, left);
        }
    }

    /// Appends the piece of a part of the text; for an unused piece, what it was merged from.
    fn write(&self, bytes: Range<usize>, spans: &mut Vec<Span>) {
        let mut parts = vec![bytes];
        while let Some(bytes) = parts.pop() {
            let text = &self.text[bytes.clone()];
            let piece = self.merges.piece(text);
            let unused = piece.is_some_and(|piece| self.merges.unused[piece]);
            match self.unused_parts.get(text).filter(|_| unused) {
                Some(&length) => {
                    let middle = bytes.start + length;
                    parts.push(middle..bytes.end);
                    parts.push(bytes.start..middle);
                }
                None => spans.push(Span { bytes, piece: piece.unwrap_or(self.merges.unknown) }),
            }
        }
    }
}
