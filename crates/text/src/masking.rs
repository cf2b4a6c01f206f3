//! Masked language modeling: choosing and replacing tokens.
//!
//! Out of scope: the labels of a causal model, and padding (`token_collator`).

use std::sync::Arc;

use super::{Encoding, IGNORE_INDEX};
use fulmen_data::{Error, Result, SampleRng};

/// Masks tokens as in BERT's training, differently in each epoch. Each token is chosen with a
/// probability of 15 %. Of the chosen tokens, 80 % become the mask token, 10 % become a random
/// token, and the rest stays the same. The labels are the chosen tokens, and [`IGNORE_INDEX`] at
/// all other positions. See Devlin et al., arXiv:1810.04805, A.1; the probabilities are those of
/// `transformers`' `DataCollatorForLanguageModeling`.
///
/// Special tokens are never chosen. A random token is any token of the vocabulary, including
/// special ones, as in `transformers`.
///
/// ```
/// use fulmen_data::SampleRng;
/// use fulmen_text::{Encoding, IGNORE_INDEX, MaskedLanguageModel};
///
/// let mask = MaskedLanguageModel::new(4, 1000, [0, 1, 2, 3, 4]).probability(1.0).replacements(1.0, 0.0);
/// let mut encoding = Encoding::from_ids(vec![2, 70, 80, 3]);
/// let labels = mask.apply(&mut encoding, &mut SampleRng::new(0, 0, 0))?;
/// assert_eq!(encoding.ids, [2, 4, 4, 3]);
/// assert_eq!(labels, [IGNORE_INDEX, 70, 80, IGNORE_INDEX]);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct MaskedLanguageModel {
    mask_id: u32,
    vocab_size: usize,
    special_ids: Arc<[u32]>,
    probability: f64,
    mask_share: f64,
    random_share: f64,
    whole_words: bool,
}

impl MaskedLanguageModel {
    /// Masks tokens with `mask_id` or random tokens below `vocab_size`. The tokens in `special_ids`
    /// are never masked.
    pub fn new(
        mask_id: u32,
        vocab_size: usize,
        special_ids: impl IntoIterator<Item = u32>,
    ) -> MaskedLanguageModel {
        let mut special: Vec<u32> = special_ids.into_iter().chain([mask_id]).collect();
        special.sort_unstable();
        special.dedup();
        MaskedLanguageModel {
            mask_id,
            vocab_size,
            special_ids: special.into(),
            probability: 0.15,
            mask_share: 0.8,
            random_share: 0.1,
            whole_words: false,
        }
    }

    /// Uses the mask token, the vocabulary and the special tokens of a tokenizer.
    ///
    /// # Errors
    /// The tokenizer has no mask token, `[MASK]` or `<mask>`.
    pub fn for_tokenizer(tokenizer: &super::Tokenizer) -> Result<MaskedLanguageModel> {
        let mask_id = tokenizer.mask_id().ok_or_else(|| {
            Error::usage(format!(
                "{tokenizer:?} has neither [MASK] nor <mask>; pass the mask token to MaskedLanguageModel::new"
            ))
        })?;
        let special = tokenizer.special_ids().iter().copied();
        Ok(MaskedLanguageModel::new(mask_id, tokenizer.vocab_size(), special))
    }

    /// The probability of choosing a token.
    pub fn probability(mut self, probability: f64) -> MaskedLanguageModel {
        self.probability = probability;
        self
    }

    /// The fractions of the chosen tokens that become the mask token and a random token. The rest
    /// stays the same.
    pub fn replacements(mut self, mask: f64, random: f64) -> MaskedLanguageModel {
        (self.mask_share, self.random_share) = (mask, random);
        self
    }

    /// Whether to choose all tokens of a word together; off unless set. This needs
    /// [`Encoding::words`], the words of the tokenizer's pre-tokenizer, for which a comma is a
    /// separate word. The replacement of each token is drawn independently, as in BERT;
    /// `transformers` always uses the mask token.
    pub fn whole_words(mut self, whole_words: bool) -> MaskedLanguageModel {
        self.whole_words = whole_words;
        self
    }

    /// Checks the probabilities.
    pub(super) fn check(&self) -> Result<()> {
        let shares = [
            self.probability,
            self.mask_share,
            self.random_share,
            self.mask_share + self.random_share,
        ];
        // Because of rounding, the sum of the two fractions may exceed 1.
        let sound = shares.iter().all(|share| (0.0..=1.0 + 1e-9).contains(share));
        if !sound {
            return Err(Error::usage(format!(
                "masking with probability {}, of which {} become the mask token and {} a random one: each must be \
                 from 0 to 1, and the last two together at most 1",
                self.probability, self.mask_share, self.random_share
            )));
        }
        if (self.mask_id as usize) < self.vocab_size {
            Ok(())
        } else {
            Err(Error::usage(format!(
                "the mask token {} is not in the vocabulary of {}",
                self.mask_id, self.vocab_size
            )))
        }
    }

    /// Masks tokens of `encoding`, and returns a label for each token.
    ///
    /// # Errors
    /// Invalid probabilities; an encoding without words, if whole words are masked.
    pub fn apply(&self, encoding: &mut Encoding, random: &mut SampleRng) -> Result<Vec<i32>> {
        self.check()?;
        encoding.check()?;
        if self.whole_words && encoding.words.is_empty() && !encoding.is_empty() {
            return Err(Error::usage(
                "masking whole words needs the words of the encoding; turn them on in the tokenizer (Tokenizer::words)",
            ));
        }
        let mut labels = vec![IGNORE_INDEX; encoding.len()];
        // The word of the previous token, and whether this token was chosen.
        let mut last: (Option<u32>, bool) = (None, false);
        for (position, label) in labels.iter_mut().enumerate() {
            let id = encoding.ids[position];
            let added = encoding.special.get(position).copied().unwrap_or(false);
            if added || self.special_ids.binary_search(&id).is_ok() {
                last = (None, false);
                continue;
            }
            let word = if self.whole_words { encoding.words[position] } else { None };
            let chosen = if word.is_some() && last.0 == word {
                last.1
            } else {
                random.bernoulli(self.probability)
            };
            last = (word, chosen);
            if chosen {
                *label = token_label(id)?;
                let draw = random.uniform(0.0, 1.0);
                if draw < self.mask_share {
                    encoding.ids[position] = self.mask_id;
                } else if draw < self.mask_share + self.random_share {
                    encoding.ids[position] = random.below(self.vocab_size) as u32;
                }
            }
        }
        Ok(labels)
    }

    /// The options in one line.
    pub fn describe(&self) -> String {
        format!("{self:?}")
    }
}

/// A token id as an `i32`.
pub(super) fn token_label(id: u32) -> Result<i32> {
    i32::try_from(id).map_err(|_| Error::usage(format!("the token id {id} does not fit in an i32")))
}
