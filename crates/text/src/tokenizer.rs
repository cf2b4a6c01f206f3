//! Hugging Face's tokenizers: from a `tokenizer.json` to tokens.
//!
//! Not here: padding and labels (`samples`), and training one (`bpe`).

use std::fmt;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokenizers::{EncodeInput, ModelWrapper, PostProcessor, TruncationDirection, TruncationParams, TruncationStrategy};

use super::tokenized::Tokenized;
use super::{Encoding, Side};
use fulmen_data::internal::catch_quietly;
use fulmen_data::{Error, Fingerprint, Result};
use fulmen_files::Location;

/// A tokenizer as Hugging Face's libraries keep it, in a `tokenizer.json`.
///
/// Cheap to clone, and used by any number of threads at once. What the file says of padding and of truncation is not
/// followed, as in `transformers`: a text is cut where [`max_length`](Tokenizer::max_length) says so, and padded by
/// [`TokenCollator`](super::TokenCollator).
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
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    /// The file, for messages; none where it came from memory.
    path: Option<PathBuf>,
    /// Of the file's content.
    digest: String,
    vocab_size: usize,
    /// Ascending.
    special_ids: Arc<[u32]>,
    special_tokens: bool,
    words: bool,
    max_length: Option<usize>,
    truncation: Truncation,
    truncation_side: Side,
}

/// Which text of a pair loses tokens when both together are too long. A single text is cut by each of them but
/// [`OnlySecond`](Truncation::OnlySecond).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Truncation {
    /// The longer one, until both are of a length.
    #[default]
    LongestFirst,
    /// The first one. It is an error if that does not suffice.
    OnlyFirst,
    /// The second one. It is an error if that does not suffice.
    OnlySecond,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`, local or in an object store.
    ///
    /// # Errors
    /// A file that cannot be read or is no such file; a BPE model with dropout.
    pub fn from_file(file: impl Into<Location>) -> Result<Tokenizer> {
        let location = file.into();
        let name = location.to_string();
        let path = location.local().unwrap_or(Path::new(&name));
        Tokenizer::new(&location.read()?, Some(path.to_owned())).map_err(|message| Error::file(path, message))
    }

    /// The same, from the file's content.
    ///
    /// # Errors
    /// As [`from_file`](Tokenizer::from_file).
    pub fn from_bytes(bytes: &[u8]) -> Result<Tokenizer> {
        Tokenizer::new(bytes, None).map_err(Error::new)
    }

    fn new(bytes: &[u8], path: Option<PathBuf>) -> Result<Tokenizer, String> {
        let inner = catch_quietly(|| tokenizers::Tokenizer::from_bytes(bytes))
            .unwrap_or_else(|message| Err(format!("the tokenizers crate panicked: {message}").into()));
        let mut inner = inner.map_err(|why| {
            format!("this is no tokenizer.json of Hugging Face's tokenizers, version 0.22 or before: {why}")
        })?;
        if let ModelWrapper::BPE(model) = inner.get_model()
            && let Some(dropout) = model.dropout.filter(|&dropout| dropout > 0.0)
        {
            return Err(format!(
                "the BPE model has a dropout of {dropout}, whose random numbers cannot be seeded, so that a run could \
                 not be repeated; set \"dropout\" to null in the file"
            ));
        }
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|why| why.to_string())?;
        let largest = inner.get_vocab(true).into_values().max();
        let vocab_size = largest.map_or(0, |id| id as usize + 1);
        if vocab_size > i32::MAX as usize {
            return Err(format!("a token has the number {}, but samples hold them as i32", vocab_size - 1));
        }
        let special = inner.get_added_tokens_decoder();
        let mut special: Vec<u32> = special.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect();
        special.sort_unstable();
        let mut digest = Fingerprint::new();
        digest.add("tokenizer", bytes);
        Ok(Tokenizer {
            inner: Arc::new(inner),
            path,
            digest: digest.to_string(),
            vocab_size,
            special_ids: special.into(),
            special_tokens: true,
            words: false,
            max_length: None,
            truncation: Truncation::default(),
            truncation_side: Side::default(),
        })
    }

    /// Writes the tokenizer as a `tokenizer.json`, which `transformers` reads too. The options set here are not in it.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn save(&self, file: impl AsRef<Path>) -> Result<()> {
        let mut plain = tokenizers::Tokenizer::clone(&self.inner);
        plain.with_truncation(None).map_err(Error::new)?;
        let (file, json) = (file.as_ref(), plain.to_string(true).map_err(Error::new)?);
        fulmen_durable::write(file, Some(json.len() as u64), |out| out.write_all(json.as_bytes()))
            .map_err(|e| Error::io(file, "cannot write the tokenizer", e))
    }

    /// Whether [`encode`](Tokenizer::encode) adds the special tokens that the file names, such as `[CLS]` and `[SEP]`.
    /// Yes unless said otherwise; no is right for documents that are packed, unless the file's own tokens separate them.
    pub fn special_tokens(mut self, add: bool) -> Tokenizer {
        self.special_tokens = add;
        self
    }

    /// Whether [`Encoding::words`] is filled, which takes longer. No unless said otherwise.
    pub fn words(mut self, words: bool) -> Tokenizer {
        self.words = words;
        self
    }

    /// Cuts texts so that at most this many tokens are left, the special ones included.
    ///
    /// # Errors
    /// A length that the special tokens of a pair alone would fill.
    pub fn max_length(mut self, length: usize) -> Result<Tokenizer> {
        let special = self.inner.get_post_processor().map_or(0, |processor| processor.added_tokens(true));
        if length <= special {
            return Err(Error::usage(format!(
                "{self:?}: a maximal length of {length} tokens leaves no room for a text: {special} special tokens are \
                 added to a pair; choose {} or more",
                special + 1
            )));
        }
        self.max_length = Some(length);
        self.update()
    }

    /// Where a text that is too long loses its tokens; at its end unless said otherwise.
    ///
    /// # Errors
    /// None that can be foreseen.
    pub fn truncation_side(mut self, side: Side) -> Result<Tokenizer> {
        self.truncation_side = side;
        self.update()
    }

    /// Which text of a pair that is too long loses tokens; the longer one unless said otherwise.
    ///
    /// # Errors
    /// None that can be foreseen.
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

    /// The tokens of a text.
    ///
    /// # Errors
    /// A text that the tokenizer cannot take, such as one with an unknown word where the file names no unknown token.
    pub fn encode(&self, text: &str) -> Result<Encoding> {
        self.encode_input(text.into(), text)
    }

    /// The tokens of two texts as one sequence, such as a premise and a hypothesis, told apart by
    /// [`Encoding::type_ids`].
    ///
    /// # Errors
    /// As [`encode`](Tokenizer::encode), and where [`Truncation`] cannot make them short enough.
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<Encoding> {
        self.encode_input((first, second).into(), first)
    }

    fn encode_input(&self, input: EncodeInput<'_>, text: &str) -> Result<Encoding> {
        let encode = || match self.words {
            true => self.inner.encode(input, self.special_tokens),
            // Without offsets into the text, which are not needed.
            false => self.inner.encode_fast(input, self.special_tokens),
        };
        let encoding = catch_quietly(encode)
            .unwrap_or_else(|message| Err(format!("the tokenizers crate panicked: {message}").into()))
            .map_err(|why| Error::new(format!("{self:?} cannot encode the text {:?}: {why}", Shortened(text))))?;
        let (types, special) = (encoding.get_type_ids(), encoding.get_special_tokens_mask());
        Ok(Encoding {
            ids: encoding.get_ids().to_vec(),
            type_ids: if types.iter().any(|&id| id != 0) { types.to_vec() } else { Vec::new() },
            special: match special.contains(&1) {
                true => special.iter().map(|&special| special != 0).collect(),
                false => Vec::new(),
            },
            words: if self.words { encoding.get_word_ids().to_vec() } else { Vec::new() },
            ..Encoding::default()
        })
    }

    /// The text of some tokens. Special tokens are left out if `skip_special_tokens`.
    ///
    /// # Errors
    /// Tokens that the file's decoder cannot put together.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String> {
        self.inner.decode(ids, skip_special_tokens).map_err(Error::new)
    }

    /// The texts of a [`Source`](fulmen_data::Source) or a [`Stream`](fulmen_data::Stream) as tokens: of `String`s, or of pairs of
    /// them.
    pub fn tokenize<S>(&self, texts: S) -> Tokenized<S> {
        Tokenized::new(texts, self.clone())
    }

    /// How many rows a model's table of tokens needs: one more than the largest token's number.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The number of a token, special or not.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The token with this number.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The number of a special token, such as `[MASK]` or `<|endoftext|>`.
    ///
    /// # Errors
    /// A token that is not there or not special; the message lists those that are.
    pub fn special_id(&self, token: &str) -> Result<u32> {
        self.token_id(token).filter(|id| self.special_ids.binary_search(id).is_ok()).ok_or_else(|| {
            let names: Vec<String> = self.special_ids.iter().filter_map(|&id| self.token(id)).collect();
            Error::usage(format!("{self:?} has no special token {token:?}; it has {}", names.join(", ")))
        })
    }

    /// The numbers of all special tokens, ascending.
    pub fn special_ids(&self) -> &[u32] {
        &self.special_ids
    }

    /// The number of the token that pads: `[PAD]`, `<pad>` or `<|pad|>`, if one of them is there.
    pub fn pad_id(&self) -> Option<u32> {
        ["[PAD]", "<pad>", "<|pad|>"].iter().find_map(|token| self.token_id(token))
    }

    /// The number of the token that hides another: `[MASK]` or `<mask>`, if one of them is there.
    pub fn mask_id(&self) -> Option<u32> {
        ["[MASK]", "<mask>"].iter().find_map(|token| self.token_id(token))
    }

    /// Adds all that its tokens depend on: the file's content and the options.
    pub fn fingerprint(&self, fingerprint: &mut Fingerprint) {
        fingerprint.add("tokenizer", &self.digest);
        fingerprint.add("options", self.describe());
    }

    /// The tokenizer in a line, with its options.
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

/// The beginning of a text, for messages.
struct Shortened<'a>(&'a str);

impl fmt::Debug for Shortened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(60) {
            Some((end, _)) => write!(f, "{:?}...", &self.0[..end]),
            None => write!(f, "{:?}", self.0),
        }
    }
}
