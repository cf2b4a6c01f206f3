//! Texts that end a generation: `stop_strings` of [`GenerationConfig`](crate::GenerationConfig).
//!
//! A text is found in the bytes of the tokens, also if it begins or ends within a token. The search
//! is an automaton (Aho and Corasick, 1975): its state is the longest end of a sequence with which a
//! stop string begins. A table has the next state after each token, so that a step looks up one
//! number for each sequence.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use fulmen_tensor::{DType, Tensor, scan};

use super::Prompt;

/// The bytes of each token of a tokenizer, with which [`generate`](crate::generate()) finds stop
/// strings.
///
/// `Tokenizer::token_bytes` of `fulmen-text` returns them.
///
/// ```
/// use fulmen_models::{GenerationConfig, TokenBytes};
///
/// let tokens = ["<s>", "sto", "p", "pped"].map(|text| Some(text.as_bytes().to_vec()));
/// let config = GenerationConfig {
///     stop_strings: vec!["stop".into()],
///     token_bytes: Some(TokenBytes::new(tokens)),
///     ..GenerationConfig::default()
/// };
/// assert_eq!(format!("{:?}", config.token_bytes), "Some(TokenBytes of 4 tokens)");
/// ```
#[derive(Clone)]
pub struct TokenBytes(Arc<[Option<Vec<u8>>]>);

impl TokenBytes {
    /// The bytes of the tokens 0, 1, …; `None` for a number that no token has.
    pub fn new(tokens: impl IntoIterator<Item = Option<Vec<u8>>>) -> TokenBytes {
        TokenBytes(tokens.into_iter().collect())
    }
}

impl fmt::Debug for TokenBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenBytes of {} tokens", self.0.len())
    }
}

/// What a token of a sequence does to the state of the search.
pub(super) struct StopStrings {
    /// The row of `next` of each token, i32 `[vocabulary]`. Many tokens have the same.
    row: Tensor,
    /// The state after the token, plus `states` if a stop string ends in it, i32 `[rows · states]`:
    /// one for each state before the token.
    next: Tensor,
    /// The number of states.
    states: usize,
}

impl StopStrings {
    /// The search for `strings` in sequences of a model with `vocabulary` tokens; `None` if there are
    /// no strings.
    ///
    /// # Errors
    /// No tokens, an empty string, or strings that the tokens never make.
    pub(super) fn new(
        strings: &[String],
        tokens: Option<&TokenBytes>,
        vocabulary: usize,
    ) -> Result<Option<StopStrings>, String> {
        if strings.is_empty() {
            return Ok(None);
        }
        if strings.iter().any(String::is_empty) {
            return Err("`stop_strings` has an empty string, which ends no text; remove it".into());
        }
        let Some(TokenBytes(tokens)) = tokens else {
            return Err("`stop_strings` are found in the texts of tokens, so the generation needs the model's \
                        tokenizer: set `token_bytes` to `TokenBytes::new(tokenizer.token_bytes()?)`"
                .into());
        };
        let automaton = Automaton::new(strings);
        let states = automaton.next.len();
        let mut numbers: HashMap<Vec<i32>, i32> = HashMap::new();
        let mut row = Vec::with_capacity(vocabulary);
        let mut next = Vec::new();
        let mut can_end = false;
        for id in 0..vocabulary {
            let after = automaton.after(tokens.get(id).and_then(Option::as_deref));
            can_end |= after.iter().any(|&state| state as usize >= states);
            let number = numbers.len() as i32;
            row.push(*numbers.entry(after).or_insert_with_key(|after| {
                next.extend_from_slice(after);
                number
            }));
        }
        if !can_end {
            return Err(format!(
                "no token has the last bytes of a stop string, so {strings:?} would end no text; give the `token_bytes` \
                 of the model's own tokenizer"
            ));
        }
        let table = |values: &[i32]| Tensor::from_slice(values, [values.len()]);
        Ok(Some(StopStrings { row: table(&row), next: table(&next), states }))
    }

    /// The states after prompts, i32 `[batch]`.
    pub(super) fn start(&self, prompt: &Prompt) -> Tensor {
        let ids = prompt.ids();
        let start = Tensor::zeros(DType::I32, [ids.size(0)]);
        let position = Tensor::arange(DType::I32, ids.size(1));
        let is_token = match prompt.padding() {
            Some(padding) => position.unsqueeze(-1).ge(padding),
            None => Tensor::ones(DType::Bool, [ids.size(1), ids.size(0)]),
        };
        let columns = (ids.transpose(0, 1), is_token);
        let (end, ()) = scan(start, columns, |state, (ids, is_token)| {
            let (next, _) = self.advance(&state, &ids);
            (is_token.select(&next, &state), ())
        });
        end
    }

    /// The states after one more token of each sequence, and whether a stop string ends in it. All
    /// have one shape.
    pub(super) fn advance(&self, state: &Tensor, token: &Tensor) -> (Tensor, Tensor) {
        let states = self.states as f64;
        let row = self.row.take(0, token);
        let next = self.next.take(0, row * states + state);
        let ends = next.ge(states);
        (ends.select(&(&next - states), &next), ends)
    }
}

/// The search in bytes.
struct Automaton {
    /// For each state, the state after each byte.
    next: Vec<[usize; 256]>,
    /// Whether a string ends in each state.
    is_end: Vec<bool>,
}

impl Automaton {
    fn new(strings: &[String]) -> Automaton {
        // A tree of the strings' beginnings. State 0 is the empty one.
        let mut next = vec![[0; 256]];
        let mut is_end = vec![false];
        for string in strings {
            let mut state = 0;
            for &byte in string.as_bytes() {
                let byte = usize::from(byte);
                if next[state][byte] == 0 {
                    next[state][byte] = next.len();
                    next.push([0; 256]);
                    is_end.push(false);
                }
                state = next[state][byte];
            }
            is_end[state] = true;
        }
        // Where a byte does not continue a beginning, it may continue the longest other one that the
        // text ends with. Shorter beginnings come first.
        let mut shorter = vec![0; next.len()];
        let mut queue: VecDeque<usize> = next[0].iter().copied().filter(|&s| s != 0).collect();
        while let Some(state) = queue.pop_front() {
            is_end[state] |= is_end[shorter[state]];
            let others = next[shorter[state]];
            for (after, other) in next[state].iter_mut().zip(others) {
                match *after {
                    0 => *after = other,
                    longer => {
                        shorter[longer] = other;
                        queue.push_back(longer);
                    }
                }
            }
        }
        Automaton { next, is_end }
    }

    /// For each state, the state after the bytes of a token, plus the number of states if a string
    /// ends in them. A token without bytes ends what was found.
    fn after(&self, token: Option<&[u8]>) -> Vec<i32> {
        let after = |start: usize| {
            let Some(token) = token else { return 0 };
            let mut state = start;
            let mut ends = false;
            for &byte in token {
                state = self.next[state][usize::from(byte)];
                ends |= self.is_end[state];
            }
            (state + if ends { self.next.len() } else { 0 }) as i32
        };
        (0..self.next.len()).map(after).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The token after which a stop string is found.
    fn found(strings: &[&str], tokens: &[&str]) -> Option<usize> {
        let strings: Vec<String> = strings.iter().map(ToString::to_string).collect();
        let automaton = Automaton::new(&strings);
        let states = automaton.next.len();
        let mut state = 0;
        tokens.iter().position(|token| {
            let next = automaton.after(Some(token.as_bytes()))[state] as usize;
            state = next % states;
            next >= states
        })
    }

    #[test]
    fn a_string_is_found_within_a_token_and_over_several() {
        for tokens in [
            &["st", "op"][..],
            &["stop"],
            &["st", "opera"],
            &["sto", "pper"],
            &["las", "topper"],
            &["s", "to", "pped"],
            &["", "s", "", "top"],
            &["sst", "sstop"],
        ] {
            assert_eq!(found(&["stop"], tokens), Some(tokens.len() - 1), "{tokens:?}");
        }
        assert_eq!(found(&["stop"], &["sto", "s", "p", "st", "o"]), None);
        // What could continue, but does not, may contain another beginning or another string.
        assert_eq!(found(&["aab"], &["a", "a", "a", "b"]), Some(3));
        assert_eq!(found(&["abcd", "bc"], &["a", "b", "c", "d"]), Some(2));
        assert_eq!(found(&["abab", "ba"], &["abx", "ab", "a"]), Some(2));
        // Parts of a character.
        assert_eq!(found(&["é"], &["e", "é"]), Some(1));
    }

    #[test]
    fn strings_that_cannot_be_found_are_refused() {
        let tokens = TokenBytes::new([Some(b"a".to_vec()), None, Some(b"b".to_vec())]);
        let refused = |strings: &[&str], tokens| {
            let strings: Vec<String> = strings.iter().map(ToString::to_string).collect();
            StopStrings::new(&strings, tokens, 3).err().unwrap_or_default()
        };
        assert!(refused(&["a"], None).contains("needs the model's tokenizer: set `token_bytes`"));
        assert!(refused(&["a", ""], Some(&tokens)).contains("has an empty string"));
        assert!(refused(&["c"], Some(&tokens)).contains("[\"c\"] would end no text"));
        assert_eq!(refused(&["c", "ab"], Some(&tokens)), "");
        assert_eq!(refused(&[], None), "");
    }
}
