//! [`Tiktoken`]: tokenizers from tiktoken's files of ranks, which lack the pattern of the words and
//! the special tokens.
//!
//! Out of scope: which encoding the file of a folder has (`tokenizer_folder`).

mod encodings;
mod ranks;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{AddedToken, PreTokenizerWrapper};

use fulmen_data::{Error, Fingerprint, Result};
use fulmen_files::Location;

use crate::special_tokens::SpecialTokens;
use crate::token_bytes::byte_characters;
use crate::tokenizer::{MAX_BYTES, Tokenizer};
use ranks::Ranks;

/// The largest id of a special token that is accepted, more than any vocabulary has.
const MAX_SPECIAL_ID: u32 = 1 << 20;

/// An encoding of tiktoken: the pattern that splits a text into words, and the special tokens. The
/// file of ranks has the rest.
///
/// ```no_run
/// use fulmen_text::Tiktoken;
///
/// let tokenizer = Tiktoken::named("cl100k_base")?.read("cl100k_base.tiktoken")?;
/// assert_eq!(tokenizer.special_id("<|endoftext|>")?, 100_257);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
///
/// With a pattern and special tokens of your own:
///
/// ```
/// use fulmen_text::Tiktoken;
///
/// # let file = tempfile::NamedTempFile::new()?;
/// # let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// # let base64 = |byte: usize| [digits[byte >> 2], digits[(byte & 3) << 4]].map(char::from).into_iter().collect::<String>();
/// # let mut lines: Vec<String> = (0..256).map(|byte| format!("{}== {byte}", base64(byte))).collect();
/// # lines.push("YWI= 256".to_owned());
/// # std::fs::write(file.path(), lines.join("\n"))?;
/// // The file has the 256 bytes, and "ab" as token 256.
/// let encoding = Tiktoken::new(r"\w+|\W+").special_token("<end>", 257).first_token("<end>");
/// let tokenizer = encoding.read(file.path())?;
/// assert_eq!(tokenizer.encode("abc ")?.ids, [257, 256, 99, 32]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Tiktoken {
    pattern: String,
    special: BTreeMap<u32, String>,
    /// Special tokens whose ids follow the ranks.
    following: Vec<String>,
    first: Option<String>,
    last: Option<String>,
    nfc: bool,
}

impl Tiktoken {
    /// An encoding by its name: `r50k_base`, `gpt2`, `p50k_base`, `p50k_edit`, `cl100k_base` or
    /// `o200k_base` of OpenAI, `llama3` of Meta, with the first release's names of its 256 special
    /// tokens, or `qwen`, of the first Qwen.
    ///
    /// # Errors
    /// A name that is not known.
    pub fn named(name: &str) -> Result<Tiktoken> {
        encodings::named(name).ok_or_else(|| {
            Error::usage(format!(
                "the encoding {name:?} is not known, only {}; for another one, give its pattern to Tiktoken::new",
                encodings::NAMES
            ))
        })
    }

    /// An encoding with this pattern of words, a regular expression such as `pat_str` of tiktoken.
    pub fn new(pattern: impl Into<String>) -> Tiktoken {
        Tiktoken {
            pattern: pattern.into(),
            special: BTreeMap::new(),
            following: Vec::new(),
            first: None,
            last: None,
            nfc: false,
        }
    }

    /// Adds a special token, or changes the name of the one with this id.
    pub fn special_token(mut self, token: impl Into<String>, id: u32) -> Tiktoken {
        self.special.insert(id, token.into());
        self
    }

    /// The special token in front of each text, if the tokenizer adds special tokens; none unless
    /// set, except with `llama3`.
    pub fn first_token(mut self, token: impl Into<String>) -> Tiktoken {
        self.first = Some(token.into());
        self
    }

    /// The special token after each text; none unless set.
    pub fn last_token(mut self, token: impl Into<String>) -> Tiktoken {
        self.last = Some(token.into());
        self
    }

    /// No special token in front of a text.
    pub(crate) fn without_first_token(mut self) -> Tiktoken {
        self.first = None;
        self
    }

    fn following_tokens(mut self, tokens: Vec<String>) -> Tiktoken {
        self.following = tokens;
        self
    }

    /// Composes characters before anything else.
    fn nfc(mut self) -> Tiktoken {
        self.nfc = true;
        self
    }

    /// Reads the file of ranks, local or in an object store. Each line has a token in base64 and its
    /// rank.
    ///
    /// An id between the last rank and a special token, which no token has, gets the name
    /// `<|reserved_token_ID|>`. No text has it.
    ///
    /// # Errors
    /// A file that cannot be read or is damaged: bad base64, two tokens with a rank, a rank without a
    /// token, a byte without a token. A pattern that is not a regular expression. Special tokens with
    /// the same name, with the id of another token, or which are not special.
    pub fn read(&self, file: impl Into<Location>) -> Result<Tokenizer> {
        let file = file.into();
        let bytes = file.read_at_most(MAX_BYTES)?;
        self.of_bytes(&file, &bytes)
    }

    pub(crate) fn of_bytes(&self, file: &Location, bytes: &[u8]) -> Result<Tokenizer> {
        let name = file.to_string();
        let path = file.local().unwrap_or(Path::new(&name));
        self.build(bytes, path).map_err(|message| Error::file(path, message))
    }

    fn build(&self, bytes: &[u8], path: &Path) -> std::result::Result<Tokenizer, String> {
        let is_reserved =
            |id: usize| u32::try_from(id).is_ok_and(|id| self.special.contains_key(&id));
        let ranks = if self.following.is_empty() {
            Ranks::parse(bytes, is_reserved)?
        } else {
            Ranks::parse(bytes, |_| false)?
        };
        let special = self.special_tokens(ranks.tokens.len())?;
        let mut inner = tokenizers::Tokenizer::new(model(&ranks, &special)?);
        if self.nfc {
            inner.with_normalizer(Some(NFC));
        }
        inner.with_pre_tokenizer(Some(self.words()?));
        inner.with_decoder(Some(ByteLevel::new(true, true, true)));
        let added = special.values().map(|token| AddedToken::from(token, true).normalized(false));
        inner.add_special_tokens(&added.collect::<Vec<_>>());
        inner.with_post_processor(Some(self.template(&special)?));
        let mut digest = Fingerprint::new();
        digest.add("ranks", bytes);
        digest.add("encoding", format!("{self:?}"));
        Tokenizer::new(inner, None, digest.to_string(), Some(path.to_owned()))
    }

    /// The special tokens by id.
    fn special_tokens(&self, ranks: usize) -> std::result::Result<BTreeMap<u32, String>, String> {
        let first = u32::try_from(ranks).map_err(|error| error.to_string())?;
        let mut special: BTreeMap<u32, String> =
            (first..).zip(self.following.iter().cloned()).collect();
        for (&id, token) in &self.special {
            if id > MAX_SPECIAL_ID {
                return Err(format!(
                    "the special token {token:?} has the id {id}, expected at most {MAX_SPECIAL_ID}"
                ));
            }
            if id < first && !self.following.is_empty() {
                return Err(format!(
                    "the id {id} of the special token {token:?} is that of another token"
                ));
            }
            special.insert(id, token.clone());
        }
        let mut ids: HashMap<&str, u32> = HashMap::new();
        for (&id, token) in &special {
            if token.is_empty() {
                return Err(format!("the special token {id} has no text"));
            }
            if let Some(other) = ids.insert(token, id) {
                return Err(format!("the special token {token:?} has the ids {other} and {id}"));
            }
        }
        Ok(special)
    }

    /// Splits by the pattern, and writes bytes as characters.
    fn words(&self) -> std::result::Result<Sequence, String> {
        let pattern = SplitPattern::Regex(self.pattern.clone());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
        let split = split.map_err(|error| {
            format!("the pattern {:?} is not a regular expression: {error}", self.pattern)
        })?;
        let parts: Vec<PreTokenizerWrapper> =
            vec![split.into(), ByteLevel::new(false, false, false).into()];
        Ok(Sequence::new(parts))
    }

    fn template(
        &self,
        special: &BTreeMap<u32, String>,
    ) -> std::result::Result<TemplateProcessing, String> {
        let id = |token: &str| special.iter().find(|(_, text)| *text == token).map(|(&id, _)| id);
        SpecialTokens::around(self.first.as_deref(), self.last.as_deref(), 1).processing(id)
    }
}

/// The model: each token made of characters that stand for its bytes.
fn model(ranks: &Ranks, special: &BTreeMap<u32, String>) -> std::result::Result<BPE, String> {
    let characters = byte_characters();
    let text = |bytes: &[u8]| -> String {
        bytes.iter().map(|&byte| characters[usize::from(byte)]).collect()
    };
    let mut vocabulary = Vocab::default();
    for (id, token) in (0..).zip(&ranks.tokens) {
        if let Some(token) = token {
            vocabulary.insert(text(token), id);
        }
    }
    for (&id, token) in special {
        if vocabulary.insert(token.clone(), id).is_some() {
            return Err(format!("the special token {token:?} is also a token of the file"));
        }
    }
    let last = special.keys().next_back().copied().unwrap_or(0);
    for id in (0..last).skip(ranks.tokens.len()).filter(|id| !special.contains_key(id)) {
        vocabulary.insert(format!("<|reserved_token_{id}|>"), id);
    }
    let merges = merges(ranks).into_iter().map(|(left, right)| (text(left), text(right)));
    let model =
        BPE::builder().vocab_and_merges(vocabulary, merges.collect()).ignore_merges(true).build();
    model.map_err(|error| error.to_string())
}

/// All pairs of tokens that make a token, by its rank.
fn merges(ranks: &Ranks) -> Vec<(&[u8], &[u8])> {
    let tokens = || ranks.tokens.iter().enumerate();
    let by_bytes: HashMap<&[u8], usize> =
        tokens().filter_map(|(rank, token)| Some((token.as_deref()?, rank))).collect();
    let mut merges = Vec::new();
    for token in ranks.tokens.iter().flatten() {
        let mut pairs = Vec::new();
        for middle in 1..token.len() {
            let (left, right) = token.split_at(middle);
            if let (Some(first), Some(second)) = (by_bytes.get(left), by_bytes.get(right)) {
                pairs.push((first, second, left, right));
            }
        }
        pairs.sort_unstable();
        merges.extend(pairs.into_iter().map(|(_, _, left, right)| (left, right)));
    }
    merges
}
