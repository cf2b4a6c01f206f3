//! Hugging Face's tokenizers, loaded from a `tokenizer.json` or another file.
//!
//! Out of scope: which files a folder has (`tokenizer_folder`), padding and labels
//! (`token_collator`), and training (`bpe`).

use std::fmt;
use std::io::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokenizers::{
    ModelWrapper, OffsetType, PostProcessor, TruncationDirection, TruncationParams,
    TruncationStrategy,
};

use super::token_bytes::token_bytes;
use super::tokenized::Tokenized;
use super::{Encoding, Side};
use crate::pieces::Pieces;
use fulmen_data::internal::catch_quietly;
use fulmen_data::{Error, Fingerprint, Result};
use fulmen_files::Location;

/// A tokenizer of Hugging Face's libraries, stored in a `tokenizer.json` file; or one of
/// SentencePiece or tiktoken, which [`load`](Tokenizer::load) finds in a model's folder.
///
/// A tokenizer is cheap to clone, and any number of threads can use it. The file's settings for
/// padding and truncation are ignored, as in `transformers`: [`max_length`](Tokenizer::max_length)
/// truncates, and [`TokenCollator`](super::TokenCollator) pads.
///
/// ```
/// use fulmen_text::Tokenizer;
///
/// let tokenizer = Tokenizer::from_bytes(
///     br#"{
///         "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "decoder": null,
///         "added_tokens": [{"id": 0, "content": "[UNK]", "single_word": false, "lstrip": false, "rstrip": false,
///                           "normalized": false, "special": true}],
///         "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
///         "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "thunder": 1, "lightning": 2}, "unk_token": "[UNK]"}
///     }"#,
/// )?;
/// assert_eq!(tokenizer.encode("lightning and thunder")?.ids, [2, 0, 1]);
/// assert_eq!((tokenizer.vocab_size(), tokenizer.special_id("[UNK]")?), (3, 0));
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    /// What encodes texts instead of `inner`: a SentencePiece model.
    pieces: Option<Arc<Pieces>>,
    /// The file, for messages; `None` if the tokenizer was loaded from memory.
    path: Option<PathBuf>,
    /// The hash of the file's content, and of what its folder says about it.
    digest: String,
    vocab_size: usize,
    special_ids: Arc<[u32]>,
    special_tokens: bool,
    words: bool,
    max_length: Option<usize>,
    truncation: Truncation,
    truncation_side: Side,
}

/// Which text of a pair is truncated if both together are too long. With every variant except
/// [`OnlySecond`](Truncation::OnlySecond), a single text is truncated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Truncation {
    /// The longer text, until both have the same length.
    #[default]
    LongestFirst,
    /// The first text. It is an error if both together are still too long.
    OnlyFirst,
    /// The second text. It is an error if both together are still too long.
    OnlySecond,
}

/// What an encoding contains.
#[derive(Clone, Copy)]
struct EncodeSettings {
    special_tokens: bool,
    /// Whether to compute words and the places of tokens in the text.
    offsets: bool,
}

/// The limit on the size of a `tokenizer.json`, ten times the largest ones.
pub(crate) const MAX_BYTES: u64 = 512 << 20;

impl Tokenizer {
    /// Reads a `tokenizer.json`, local or from an object store. Also reads a SentencePiece model, and
    /// tiktoken's ranks if the name of the file tells the encoding: `cl100k_base.tiktoken`,
    /// `qwen.tiktoken`, Llama 3's `tokenizer.model`. What is in a file is recognized by its content.
    ///
    /// A SentencePiece model without its folder adds no special tokens to a text. Its control pieces
    /// are special tokens, and so found in texts. [`load`](Tokenizer::load) reads the folder's files
    /// too.
    ///
    /// # Errors
    /// A file that cannot be read or is not a tokenizer; a BPE model with dropout; a SentencePiece
    /// model of whole words or characters; ranks whose encoding the name does not tell, which
    /// [`Tiktoken`](super::Tiktoken) reads.
    pub fn from_file(file: impl Into<Location>) -> Result<Tokenizer> {
        let location = file.into();
        let name = location.to_string();
        let path = location.local().unwrap_or(Path::new(&name));
        let bytes = location.read_at_most(MAX_BYTES)?;
        if let Some(tokenizer) = crate::tokenizer_folder::of_file(&location, &bytes)? {
            return Ok(tokenizer);
        }
        Tokenizer::of_json(&bytes, Some(path.to_owned()))
            .map_err(|message| Error::file(path, message))
    }

    /// Reads the content of a `tokenizer.json`.
    ///
    /// # Errors
    /// Those of [`from_file`](Tokenizer::from_file).
    pub fn from_bytes(bytes: &[u8]) -> Result<Tokenizer> {
        Tokenizer::of_json(bytes, None).map_err(Error::new)
    }

    fn of_json(bytes: &[u8], path: Option<PathBuf>) -> Result<Tokenizer, String> {
        let inner = catch_quietly(|| tokenizers::Tokenizer::from_bytes(bytes))
            .unwrap_or_else(|message| {
                Err(format!("the tokenizers crate panicked: {message}").into())
            })
            .map_err(|error| {
            format!(
                "not a tokenizer.json of Hugging Face's tokenizers, version 0.22 or before: {error}"
            )
        })?;
        let mut digest = Fingerprint::new();
        digest.add("tokenizer", bytes);
        Tokenizer::new(inner, None, digest.to_string(), path)
    }

    /// `digest` is a hash of all that the tokens depend on.
    pub(crate) fn new(
        mut inner: tokenizers::Tokenizer,
        pieces: Option<Arc<Pieces>>,
        digest: String,
        path: Option<PathBuf>,
    ) -> Result<Tokenizer, String> {
        if let ModelWrapper::BPE(model) = inner.get_model()
            && let Some(dropout) = model.dropout.filter(|&dropout| dropout > 0.0)
        {
            return Err(format!(
                "the BPE model has a dropout of {dropout}, whose random numbers cannot be seeded, so a run could not \
                 be reproduced; set \"dropout\" to null in the file"
            ));
        }
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| error.to_string())?;
        let largest = inner.get_vocab(true).into_values().max();
        let vocab_size = largest.map_or(0, |id| id as usize + 1);
        if vocab_size > i32::MAX as usize {
            return Err(format!(
                "a token has the id {}, which does not fit in the i32 of a sample",
                vocab_size - 1
            ));
        }
        let mut special: Vec<u32> = inner
            .get_added_tokens_decoder()
            .iter()
            .filter(|(_, token)| token.special)
            .map(|(id, _)| *id)
            .collect();
        special.sort_unstable();
        Ok(Tokenizer {
            inner: Arc::new(inner),
            pieces,
            path,
            digest,
            vocab_size,
            special_ids: special.into(),
            special_tokens: true,
            words: false,
            max_length: None,
            truncation: Truncation::default(),
            truncation_side: Side::default(),
        })
    }

    /// Writes the tokenizer as a `tokenizer.json`, which `transformers` can read. It does not
    /// include the options set here.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn save(&self, file: impl AsRef<Path>) -> Result<()> {
        let mut plain = tokenizers::Tokenizer::clone(&self.inner);
        plain.with_truncation(None).map_err(Error::new)?;
        let file = file.as_ref();
        let json = plain.to_string(true).map_err(Error::new)?;
        fulmen_durable::write(file, Some(json.len() as u64), |out| out.write_all(json.as_bytes()))
            .map_err(|e| Error::io(file, "cannot write the tokenizer", e))
    }

    /// Whether [`encode`](Tokenizer::encode) adds the special tokens in the file, such as `[CLS]`
    /// and `[SEP]`; on unless set. Turn it off for documents that are packed, unless these tokens
    /// are meant to separate the documents.
    pub fn special_tokens(mut self, add: bool) -> Tokenizer {
        self.special_tokens = add;
        self
    }

    /// Whether to fill [`Encoding::words`], which takes longer; off unless set.
    pub fn words(mut self, words: bool) -> Tokenizer {
        self.words = words;
        self
    }

    /// Truncates texts to at most this many tokens, including special ones.
    ///
    /// # Errors
    /// A length that leaves no token for a pair of texts, next to its special tokens.
    pub fn max_length(mut self, length: usize) -> Result<Tokenizer> {
        let special =
            self.inner.get_post_processor().map_or(0, |processor| processor.added_tokens(true));
        if length <= special {
            return Err(Error::usage(format!(
                "{self:?}: the maximum length of {length} tokens leaves no space for a text: {special} special tokens \
                 are added to a pair; choose at least {}",
                special + 1
            )));
        }
        self.max_length = Some(length);
        self.update()
    }

    /// The side on which long texts are truncated; the end unless set.
    ///
    /// # Errors
    /// Currently, this method never fails.
    pub fn truncation_side(mut self, side: Side) -> Result<Tokenizer> {
        self.truncation_side = side;
        self.update()
    }

    /// Which text of a long pair is truncated; the longer one unless set.
    ///
    /// # Errors
    /// Currently, this method never fails.
    pub fn truncation(mut self, truncation: Truncation) -> Result<Tokenizer> {
        self.truncation = truncation;
        self.update()
    }

    fn update(mut self) -> Result<Tokenizer> {
        let params = self.max_length.map(|max_length| TruncationParams {
            direction: match self.truncation_side {
                Side::Left => TruncationDirection::Left,
                Side::Right => TruncationDirection::Right,
            },
            max_length,
            strategy: match self.truncation {
                Truncation::LongestFirst => TruncationStrategy::LongestFirst,
                Truncation::OnlyFirst => TruncationStrategy::OnlyFirst,
                Truncation::OnlySecond => TruncationStrategy::OnlySecond,
            },
            stride: 0,
        });
        Arc::make_mut(&mut self.inner).with_truncation(params).map_err(Error::new)?;
        Ok(self)
    }

    /// Tokenizes a text.
    ///
    /// # Errors
    /// A text that cannot be tokenized, for example with an unknown word if the file has no unknown
    /// token.
    pub fn encode(&self, text: &str) -> Result<Encoding> {
        self.encode_texts(text, None)
    }

    /// Tokenizes two texts as one sequence, such as a premise and a hypothesis, distinguished by
    /// [`Encoding::type_ids`].
    ///
    /// # Errors
    /// Those of [`encode`](Tokenizer::encode); texts that [`Truncation`] cannot make short enough.
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<Encoding> {
        self.encode_texts(first, Some(second))
    }

    /// Encodes with the given tokenizer, which may differ from the own one in its truncation.
    fn run(
        &self,
        inner: &tokenizers::Tokenizer,
        first: &str,
        second: Option<&str>,
        settings: EncodeSettings,
    ) -> Result<tokenizers::Encoding> {
        let EncodeSettings { special_tokens, offsets } = settings;
        let encode = || match (&self.pieces, second) {
            (Some(pieces), second) => {
                let kind = || if offsets { OffsetType::Byte } else { OffsetType::None };
                let encoding = pieces.encode(first, 0, kind())?;
                let second = second.map(|text| pieces.encode(text, 1, kind())).transpose()?;
                inner.post_process(encoding, second, special_tokens)
            }
            (None, Some(second)) if offsets => inner.encode((first, second), special_tokens),
            (None, Some(second)) => inner.encode_fast((first, second), special_tokens),
            (None, None) if offsets => inner.encode(first, special_tokens),
            (None, None) => inner.encode_fast(first, special_tokens),
        };
        catch_quietly(encode)
            .unwrap_or_else(|message| {
                Err(format!("the tokenizers crate panicked: {message}").into())
            })
            .map_err(|error| {
                Error::new(format!(
                    "{self:?} cannot encode the text {:?}: {error}",
                    TextStart(first)
                ))
            })
    }

    fn encode_texts(&self, first: &str, second: Option<&str>) -> Result<Encoding> {
        // Offsets into the text are needed only for the words.
        let settings = EncodeSettings { special_tokens: self.special_tokens, offsets: self.words };
        let encoding = self.run(&self.inner, first, second, settings)?;
        let types = encoding.get_type_ids();
        let special = encoding.get_special_tokens_mask();
        Ok(Encoding {
            ids: encoding.get_ids().to_vec(),
            type_ids: if types.iter().any(|&id| id != 0) { types.to_vec() } else { Vec::new() },
            special: if special.contains(&1) {
                special.iter().map(|&special| special != 0).collect()
            } else {
                Vec::new()
            },
            words: if self.words { encoding.get_word_ids().to_vec() } else { Vec::new() },
            ..Encoding::default()
        })
    }

    /// Tokenizes a text without adding special tokens, and without truncating it. Returns the tokens,
    /// and the range of bytes of the text that each stands for.
    pub(super) fn encode_with_ranges(&self, text: &str) -> Result<(Vec<u32>, Vec<Range<usize>>)> {
        let mut plain;
        let mut inner = &*self.inner;
        if self.max_length.is_some() {
            plain = inner.clone();
            plain.with_truncation(None).map_err(Error::new)?;
            inner = &plain;
        }
        let settings = EncodeSettings { special_tokens: false, offsets: true };
        let encoding = self.run(inner, text, None, settings)?;
        let ranges = encoding.get_offsets().iter().map(|&(start, end)| start..end);
        Ok((encoding.get_ids().to_vec(), ranges.collect()))
    }

    /// Decodes tokens to text. Leaves out special tokens if `skip_special_tokens` is set.
    ///
    /// # Errors
    /// Tokens that the file's decoder rejects.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        self.inner.decode(ids, skip_special_tokens).map_err(Error::new)
    }

    /// Tokenizes the texts of a [`Source`](fulmen_data::Source) or a
    /// [`Stream`](fulmen_data::Stream): `String`s, or pairs of them.
    pub fn tokenize<S>(&self, texts: S) -> Tokenized<S> {
        Tokenized::new(texts, self.clone())
    }

    /// The number of rows that a model's embedding needs: one more than the largest token id.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The id of a token, special or not.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The token with this id.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The bytes that each token adds to a text: those of the id 0, 1, … up to the last token; `None`
    /// for an id that no token has. They follow from the file's decoder, as in transformers'
    /// `StopStringCriteria`: the bytes of a character that byte-level tokens split, a space for `▁`,
    /// nothing for `##`.
    ///
    /// ```
    /// use fulmen_text::Tokenizer;
    ///
    /// let tokenizer = Tokenizer::from_bytes(
    ///     "{
    ///         \"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"normalizer\": null,
    ///         \"added_tokens\": [], \"pre_tokenizer\": null, \"post_processor\": null,
    ///         \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true},
    ///         \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"Ġb\": 1, \"Ã\": 3}, \"merges\": []}
    ///     }"
    ///     .as_bytes(),
    /// )?;
    /// let bytes = [Some(b"a".to_vec()), Some(b" b".to_vec()), None, Some(vec![0xc3])];
    /// assert_eq!(tokenizer.token_bytes()?, bytes);
    /// # Ok::<(), fulmen_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// A file without a decoder, or whose decoder changes what stands before a token.
    pub fn token_bytes(&self) -> Result<Vec<Option<Vec<u8>>>> {
        token_bytes(&self.inner, self.vocab_size)
            .map_err(|message| Error::new(format!("{self:?}: {message}")))
    }

    /// The id of a special token, such as `[MASK]` or `<|endoftext|>`.
    ///
    /// # Errors
    /// A token that does not exist or is not special; the message lists the special tokens.
    pub fn special_id(&self, token: &str) -> Result<u32> {
        self.token_id(token).filter(|id| self.special_ids.binary_search(id).is_ok()).ok_or_else(
            || {
                let names: Vec<String> =
                    self.special_ids.iter().filter_map(|&id| self.token(id)).collect();
                Error::usage(format!(
                    "{self:?} has no special token {token:?}; it has {}",
                    names.join(", ")
                ))
            },
        )
    }

    /// The ids of all special tokens, ascending.
    pub fn special_ids(&self) -> &[u32] {
        &self.special_ids
    }

    /// The id of the padding token: `[PAD]`, `<pad>` or `<|pad|>`, if it exists.
    pub fn pad_id(&self) -> Option<u32> {
        ["[PAD]", "<pad>", "<|pad|>"].iter().find_map(|token| self.token_id(token))
    }

    /// The id of the mask token: `[MASK]` or `<mask>`, if it exists.
    pub fn mask_id(&self) -> Option<u32> {
        ["[MASK]", "<mask>"].iter().find_map(|token| self.token_id(token))
    }

    /// Adds everything the tokens depend on: the file's content and the options.
    pub fn fingerprint(&self, fingerprint: &mut Fingerprint) {
        fingerprint.add("tokenizer", &self.digest);
        fingerprint.add("options", self.describe());
    }

    /// The tokenizer with its options in one line.
    pub fn describe(&self) -> String {
        let Tokenizer { special_tokens, words, max_length, truncation, truncation_side, .. } = self;
        format!(
            "Tokenizer({}, special_tokens {special_tokens}, words {words}, max_length {max_length:?}, truncation \
             {truncation:?} {truncation_side:?})",
            &self.digest[..16]
        )
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "the tokenizer {}", path.display()),
            None => f.write_str("the tokenizer"),
        }
    }
}

/// The start of a text, for messages.
struct TextStart<'a>(&'a str);

impl fmt::Debug for TextStart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(60) {
            Some((end, _)) => write!(f, "{:?}...", &self.0[..end]),
            None => write!(f, "{:?}", self.0),
        }
    }
}
