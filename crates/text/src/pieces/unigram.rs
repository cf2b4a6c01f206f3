//! The pieces of a text with the highest sum of scores, found as SentencePiece finds them: sums in
//! single precision, and the first of equal ones.

use super::model_proto::{Kind, PieceModel};
use super::span::Span;
use super::trie::Trie;

/// How much worse an unknown character is than the worst piece.
const UNKNOWN_PENALTY: f32 = 10.0;

/// What a user-defined piece costs, so that it wins over all others.
const USER_DEFINED_COST: f64 = 0.1;

#[derive(Clone, Debug)]
pub(super) struct Unigram {
    trie: Trie,
    scores: Vec<Score>,
    unknown: usize,
    unknown_score: f32,
    max_score: f32,
}

#[derive(Clone, Copy, Debug)]
enum Score {
    Piece(f32),
    UserDefined,
    Unused,
}

/// The best way to the end of a part of the text.
#[derive(Clone, Copy, Debug)]
struct Best {
    score: f32,
    /// Where its last piece starts, and which one it is; `None` before anything ends here.
    last: Option<(usize, usize)>,
}

impl Best {
    /// Takes another way if it is better.
    fn offer(&mut self, score: f32, start: usize, piece: usize) {
        if self.last.is_none() || score > self.score {
            self.score = score;
            self.last = Some((start, piece));
        }
    }
}

impl Unigram {
    pub(super) fn new(model: &PieceModel, trie: Trie) -> Unigram {
        let normal = || model.pieces.iter().filter(|piece| piece.kind == Kind::Normal);
        let min_score = normal().map(|piece| piece.score).fold(f32::MAX, f32::min);
        let max_score = normal().map(|piece| piece.score).fold(f32::MIN_POSITIVE, f32::max);
        let score = |piece: &super::model_proto::Piece| match piece.kind {
            Kind::UserDefined => Score::UserDefined,
            Kind::Unused => Score::Unused,
            _ => Score::Piece(piece.score),
        };
        Unigram {
            trie,
            scores: model.pieces.iter().map(score).collect(),
            unknown: model.unknown,
            unknown_score: min_score - UNKNOWN_PENALTY,
            max_score,
        }
    }

    pub(super) fn encode(&self, text: &str) -> Vec<Span> {
        let mut best = vec![Best { score: 0.0, last: None }; text.len() + 1];
        for (start, character) in text.char_indices() {
            let before = best[start].score;
            let mut has_character = false;
            for prefix in self.trie.prefixes(&text.as_bytes()[start..]) {
                let piece = prefix.number as usize;
                let score = match self.scores[piece] {
                    Score::Unused => continue,
                    Score::UserDefined => {
                        let bonus = prefix.length as f32 * self.max_score;
                        (f64::from(bonus) - USER_DEFINED_COST) as f32
                    }
                    Score::Piece(score) => score,
                };
                best[start + prefix.length].offer(score + before, start, piece);
                has_character |= prefix.length == character.len_utf8();
            }
            if !has_character {
                let score = self.unknown_score + before;
                best[start + character.len_utf8()].offer(score, start, self.unknown);
            }
        }
        let mut spans = Vec::new();
        let mut end = text.len();
        while let Some((start, piece)) = best[end].last {
            spans.push(Span { bytes: start..end, piece });
            end = start;
        }
        spans.reverse();
        spans
    }
}
