//! What SentencePiece does with a text before it is cut into pieces: rules of Unicode, extra spaces,
//! the space in front, and `▁` for spaces.

use tokenizers::{NormalizedString, Normalizer};

use super::charsmap::{Charsmap, Replacement};
use super::trie::Trie;

/// The character for a space.
pub(super) const SPACE: char = '▁';

/// Where a space is put in front of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DummyPrefix {
    Never,
    /// Only at the beginning, and not after a special token.
    First,
    /// Also after each special token.
    Always,
}

/// The normalization of a SentencePiece model.
#[derive(Clone, Debug)]
pub(super) struct PieceNormalizer {
    pub(super) charsmap: Option<Charsmap>,
    /// The pieces that users defined, which no rule changes.
    pub(super) user_defined: Trie,
    pub(super) remove_extra_whitespaces: bool,
    pub(super) dummy_prefix: DummyPrefix,
}

/// A character of the result, and how many characters of the text it stands for.
struct Written {
    character: char,
    consumed: usize,
}

/// The result, with the characters that were removed at its beginning.
#[derive(Default)]
struct Output {
    written: Vec<Written>,
    removed_first: usize,
}

impl Output {
    fn removed(&mut self, count: usize) {
        match self.written.last_mut() {
            Some(last) => last.consumed += count,
            None => self.removed_first += count,
        }
    }

    /// Removes the last character.
    fn pop(&mut self) {
        if let Some(last) = self.written.pop() {
            self.removed(last.consumed);
        }
    }

    /// Appends what stands for `consumed` characters.
    fn push(&mut self, text: &str, mut consumed: usize) {
        if text.is_empty() {
            self.removed(consumed);
        }
        for character in text.chars() {
            let character = if character == ' ' { SPACE } else { character };
            self.written.push(Written { character, consumed });
            consumed = 0;
        }
    }
}

impl PieceNormalizer {
    /// What replaces the beginning of a text that is not empty.
    fn first<'a>(&'a self, text: &'a str) -> Replacement<'a> {
        if let Some(user) = self.user_defined.prefixes(text.as_bytes()).last() {
            return Replacement { length: user.length, text: &text[..user.length] };
        }
        let rule = self.charsmap.as_ref().and_then(|rules| rules.longest(text.as_bytes()));
        // A damaged rule could end within a character.
        if let Some(rule) = rule.filter(|rule| text.is_char_boundary(rule.length)) {
            return rule;
        }
        let length = text.chars().next().map_or(0, char::len_utf8);
        Replacement { length, text: &text[..length] }
    }

    fn output(&self, text: &str, with_prefix: bool) -> Output {
        let mut output = Output::default();
        let mut rest = text;
        if self.remove_extra_whitespaces {
            while !rest.is_empty() {
                let next = self.first(rest);
                if next.text != " " {
                    break;
                }
                output.removed(rest[..next.length].chars().count());
                rest = &rest[next.length..];
            }
        }
        if rest.is_empty() {
            return output;
        }
        if with_prefix {
            output.push(" ", 0);
        }
        let mut after_space = self.remove_extra_whitespaces;
        while !rest.is_empty() {
            let next = self.first(rest);
            let replaced = &rest[..next.length];
            let kept = if after_space { next.text.trim_start_matches(' ') } else { next.text };
            output.push(kept, replaced.chars().count());
            if !kept.is_empty() {
                after_space = self.remove_extra_whitespaces && kept.ends_with(' ');
            }
            rest = &rest[next.length..];
        }
        if self.remove_extra_whitespaces {
            while output.written.last().is_some_and(|last| last.character == SPACE) {
                output.pop();
            }
        }
        output
    }
}

impl Normalizer for PieceNormalizer {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        let with_prefix = match self.dummy_prefix {
            DummyPrefix::Never => false,
            DummyPrefix::First => text.offsets_original().0 == 0,
            DummyPrefix::Always => true,
        };
        let mut output = self.output(text.get(), with_prefix);
        if let [prefix, next, ..] = &mut output.written[..]
            && prefix.consumed == 0
        {
            // The space in front stands for the first character, because there is none before it.
            std::mem::swap(&mut prefix.consumed, &mut next.consumed);
        }
        if output.written.is_empty() {
            text.clear();
            return Ok(());
        }
        let changes = output.written.iter().map(|written| {
            let change = 1 - isize::try_from(written.consumed).unwrap_or(isize::MAX);
            (written.character, change)
        });
        text.transform(changes, output.removed_first);
        Ok(())
    }
}
