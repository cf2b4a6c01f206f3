//! [`ByteLevelBpe`]: trains a tokenizer on your own texts.
//!
//! Out of scope: the tokenizer itself, and training other kinds of tokenizers, which Hugging Face's
//! libraries can do.

use tokenizers::AddedToken;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::processors::template::TemplateProcessing;

use super::Tokenizer;
use fulmen_data::{Error, Result};

/// Trains a byte-level BPE tokenizer, as used by GPT-2 and RoBERTa. Training starts with the 256
/// bytes and merges the most frequent pairs within words until the vocabulary is full. Since every
/// byte has a token, no text has an unknown token.
///
/// The result does not depend on the order of the texts, and equals the result of Hugging Face's
/// `tokenizers`.
///
/// ```
/// use fulmen_text::ByteLevelBpe;
///
/// let texts = ["thunder rolls", "thunder and lightning", "it thunders"];
/// let bpe = ByteLevelBpe::new(280).special_tokens(["<pad>", "</s>"]).template("$A </s>");
/// let tokenizer = bpe.train(texts)?;
/// let ids = tokenizer.encode("thunder")?.ids;
/// assert_eq!((ids.len(), ids[1]), (2, 1)); // one token for the word, then </s>
/// assert_eq!(tokenizer.decode(&ids, true)?, "thunder");
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ByteLevelBpe {
    vocab_size: usize,
    min_frequency: u64,
    special_tokens: Vec<String>,
    template: Option<String>,
    single_digits: bool,
}

impl ByteLevelBpe {
    /// The maximum size of the vocabulary in tokens, including bytes and special tokens.
    pub fn new(vocab_size: usize) -> ByteLevelBpe {
        ByteLevelBpe {
            vocab_size,
            min_frequency: 0,
            special_tokens: Vec::new(),
            template: None,
            single_digits: false,
        }
    }

    /// Special tokens, numbered from 0 in this order.
    pub fn special_tokens<T: Into<String>>(
        mut self,
        tokens: impl IntoIterator<Item = T>,
    ) -> ByteLevelBpe {
        self.special_tokens = tokens.into_iter().map(Into::into).collect();
        self
    }

    /// The template that adds special tokens to a text, `$A`: `"<s> $A </s>"`. By default, no
    /// special tokens are added.
    pub fn template(mut self, template: impl Into<String>) -> ByteLevelBpe {
        self.template = Some(template.into());
        self
    }

    /// The minimum frequency of a pair to be merged; 1 unless set.
    pub fn min_frequency(mut self, times: u64) -> ByteLevelBpe {
        self.min_frequency = times;
        self
    }

    /// Whether each digit is a separate token, so that numbers are spelled out; off unless set.
    pub fn single_digits(mut self, single: bool) -> ByteLevelBpe {
        self.single_digits = single;
        self
    }

    /// Trains the tokenizer on these texts.
    ///
    /// # Errors
    /// A vocabulary too small for the bytes and the special tokens; a template with a token that is
    /// not among these special tokens.
    pub fn train<I>(&self, texts: I) -> Result<Tokenizer>
    where
        I: IntoIterator<Item: AsRef<str> + Send, IntoIter: Send>,
    {
        let minimum = 256 + self.special_tokens.len();
        if self.vocab_size < minimum {
            return Err(Error::usage(format!(
                "a vocabulary of {} tokens is too small for 256 bytes and {} special tokens; use at least {minimum}",
                self.vocab_size,
                self.special_tokens.len()
            )));
        }
        let bytes = ByteLevel::new(false, true, true);
        let mut tokenizer = tokenizers::Tokenizer::new(BPE::default());
        tokenizer.with_decoder(Some(bytes));
        if self.single_digits {
            tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![
                Digits::new(true).into(),
                bytes.into(),
            ])))
        } else {
            tokenizer.with_pre_tokenizer(Some(bytes))
        };
        let special: Vec<AddedToken> =
            self.special_tokens.iter().map(|token| AddedToken::from(token, true)).collect();
        let trainer = BpeTrainer::builder()
            .vocab_size(self.vocab_size)
            .min_frequency(self.min_frequency)
            .special_tokens(special)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .show_progress(false)
            .build();
        let mut trainer = TrainerWrapper::from(trainer);
        tokenizer.train(&mut trainer, texts.into_iter()).map_err(Error::new)?;
        if let Some(template) = &self.template {
            let ids = (0..).zip(&self.special_tokens).map(|(id, token)| (token.clone(), id));
            let mut builder = TemplateProcessing::builder();
            builder.try_single(template.as_str()).map_err(|error| {
                Error::usage(format!(
                    "{template:?} is not a template such as \"<s> $A </s>\": {error}"
                ))
            })?;
            let processing = builder
                .special_tokens(ids.collect::<Vec<(String, u32)>>())
                .build()
                .map_err(|error| Error::usage(format!("the template {template:?}: {error}")))?;
            tokenizer.with_post_processor(Some(processing));
        }
        Tokenizer::from_bytes(tokenizer.to_string(false).map_err(Error::new)?.as_bytes())
    }
}
