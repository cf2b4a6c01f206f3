//! The tokenizer of a model's folder, from `tokenizer.json`, a SentencePiece model or a file of
//! tiktoken.
//!
//! Out of scope: encoding (`pieces`, `tokenizer`), and chat templates (`chat_template`).

mod classes;
mod config;
mod copy;
mod marian;
mod ranks;

use std::path::Path;
use std::sync::Arc;

use fulmen_data::{Error, Fingerprint, Result};
use fulmen_files::Location;

use crate::pieces::{self, PieceModel, Pieces};
use crate::special_tokens::SpecialTokens;
use crate::tokenizer::Tokenizer;
use classes::Layout;
use config::FolderConfig;
use marian::Language;

const TOKENIZER: &str = "tokenizer.json";

/// The names of files with a SentencePiece model or the ranks of tiktoken.
const MODEL_FILES: [&str; 8] = [
    "tokenizer.model",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
    "qwen.tiktoken",
    "tiktoken.model",
    "original/tokenizer.model",
];

/// What a file is, by its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Json,
    /// Lines of a token in base64 and its rank.
    Ranks,
    SentencePiece,
}

impl Format {
    fn of(bytes: &[u8]) -> Format {
        let start = &bytes[..bytes.len().min(4096)];
        // Each piece of a SentencePiece model has such bytes.
        if start.iter().any(|byte| byte.is_ascii_control() && !byte.is_ascii_whitespace()) {
            return Format::SentencePiece;
        }
        let line = start.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let mut words = line.trim_ascii_end().split(|&byte| byte == b' ');
        let is_base64 = |word: &[u8]| {
            let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
            !word.is_empty() && word.iter().all(is_digit)
        };
        let is_number = |word: &[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_digit);
        match [words.next(), words.next(), words.next()] {
            [Some(token), Some(rank), None] if is_base64(token) && is_number(rank) => Format::Ranks,
            _ => Format::Json,
        }
    }
}

/// The limit on the size of a SentencePiece model or of ranks, ten times the largest ones.
const MAX_MODEL_BYTES: u64 = 64 << 20;

/// Loads the tokenizer of a folder, for translators that of a language.
fn load(folder: &Location, language: Language) -> Result<Tokenizer> {
    let file = folder.join(TOKENIZER);
    if file.exists()? {
        return Tokenizer::from_file(file);
    }
    for name in MODEL_FILES {
        let file = folder.join(name);
        if !file.exists()? {
            continue;
        }
        let config = FolderConfig::read(folder)?;
        let bytes = file.read_at_most(MAX_MODEL_BYTES)?;
        let tokenizer = match Format::of(&bytes) {
            Format::Json => Tokenizer::from_file(file.clone()),
            Format::Ranks => ranks::of_folder(&file, &bytes, &config),
            Format::SentencePiece => {
                let model =
                    PieceModel::parse(&bytes).map_err(|error| not_a_model(&file, &error))?;
                let layout = classes::layout(&model, &config)
                    .map_err(|error| Error::content(format!("{folder}: {error}")))?;
                of_layout(&file, &bytes, &model, &layout)
            }
        };
        return tokenizer;
    }
    if folder.join(language.file()).exists()? {
        return marian::load(folder, language);
    }
    Err(Error::missing(format!(
        "{folder}: the folder has no tokenizer: neither {TOKENIZER} nor one of {}, {}; let transformers write one: \
         AutoTokenizer.from_pretrained(folder).save_pretrained(folder)",
        MODEL_FILES.join(", "),
        language.file()
    )))
}

/// Reads a file that is not a `tokenizer.json`, without a folder that says more about it.
pub(crate) fn of_file(file: &Location, bytes: &[u8]) -> Result<Option<Tokenizer>> {
    let format = Format::of(bytes);
    if format != Format::Json && bytes.len() as u64 > MAX_MODEL_BYTES {
        let size = bytes.len();
        return Err(Error::content(format!(
            "{file}: the file has {size} bytes, expected at most {MAX_MODEL_BYTES} without a tokenizer.json"
        )));
    }
    match format {
        Format::Json => Ok(None),
        Format::Ranks => ranks::of_file(file, bytes).map(Some),
        Format::SentencePiece => {
            let model = PieceModel::parse(bytes).map_err(|error| not_a_model(file, &error))?;
            let mut vocabulary = classes::plain(&model);
            classes::add_special_pieces(&mut vocabulary, &model);
            let layout = Layout { vocabulary, special: SpecialTokens::around(None, None, 1) };
            of_layout(file, bytes, &model, &layout).map(Some)
        }
    }
}

fn not_a_model(file: &Location, error: &str) -> Error {
    Error::content(format!(
        "{file}: neither a tokenizer.json, nor ranks of tiktoken, nor a SentencePiece model that can be used: {error}"
    ))
}

/// The tokenizer of a SentencePiece model.
fn of_layout(
    file: &Location,
    bytes: &[u8],
    model: &PieceModel,
    layout: &Layout,
) -> Result<Tokenizer> {
    let name = file.to_string();
    let path = file.local().unwrap_or(Path::new(&name));
    let build = || -> std::result::Result<Tokenizer, String> {
        let vocabulary = &layout.vocabulary;
        let mut inner = pieces::tokenizer(model, vocabulary)?;
        inner.with_post_processor(Some(layout.special.processing(|token| vocabulary.id(token))?));
        let pieces = Pieces::new(model, vocabulary, &inner)?;
        let mut digest = Fingerprint::new();
        digest.add("model", bytes);
        digest.add("vocabulary", format!("{vocabulary:?}"));
        digest.add("special tokens", format!("{:?}", layout.special));
        Tokenizer::new(inner, Some(Arc::new(pieces)), digest.to_string(), Some(path.to_owned()))
    };
    build().map_err(|message| Error::file(path, message))
}

impl Tokenizer {
    /// Loads the tokenizer of a Hugging Face folder, local or in an object store: its
    /// `tokenizer.json`, or else a SentencePiece model (`tokenizer.model`, `spiece.model`,
    /// `spm.model`, `sentencepiece.bpe.model`) or a file of tiktoken (`tokenizer.model`,
    /// `original/tokenizer.model`, `qwen.tiktoken`).
    ///
    /// A SentencePiece model has the special tokens, added tokens and ids that
    /// `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json` say, for the classes
    /// `LlamaTokenizer`, `GemmaTokenizer`, `T5Tokenizer`, `XLMRobertaTokenizer`, and
    /// `PreTrainedTokenizerFast`. Fields that the folder lacks have the values of transformers 4:
    /// `legacy` is true, and Llama and Gemma begin a text with the token `bos_token`.
    ///
    /// Marian's translators have a model for each language, `source.spm` and `target.spm`, and ids in
    /// `vocab.json`. This is the tokenizer of the source language;
    /// [`load_target`](Tokenizer::load_target) has the other one.
    ///
    /// Between special tokens, the ids are those of the `sentencepiece` library for every text.
    /// [`save`](Tokenizer::save) writes a `tokenizer.json` as transformers does, whose ids differ for
    /// unusual texts: a ligature before a combining mark, `<0x41>` as a text, a user-defined piece
    /// that a rule of Unicode changes.
    ///
    /// ```
    /// use fulmen_text::{ByteLevelBpe, Tokenizer};
    ///
    /// let folder = tempfile::tempdir()?;
    /// ByteLevelBpe::new(260).train(["thunder"])?.save(folder.path().join("tokenizer.json"))?;
    /// let tokenizer = Tokenizer::load(folder.path())?;
    /// assert_eq!(tokenizer.decode(&tokenizer.encode("thunder")?.ids, true)?, "thunder");
    ///
    /// let copy = tempfile::tempdir()?;
    /// Tokenizer::copy_files(folder.path(), copy.path())?;
    /// assert_eq!(Tokenizer::load(copy.path())?.encode("under")?, tokenizer.encode("under")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A folder without such a file; files that are damaged or disagree; a class, an algorithm or a
    /// setting that is not supported, by its name.
    pub fn load(folder: impl Into<Location>) -> Result<Tokenizer> {
        load(&folder.into(), Language::Source)
    }

    /// Loads the tokenizer of a translator's target language: `target.spm` of a Marian folder. A
    /// folder of another kind has one tokenizer for both languages, that of
    /// [`load`](Tokenizer::load).
    ///
    /// # Errors
    /// Those of [`load`](Tokenizer::load).
    pub fn load_target(folder: impl Into<Location>) -> Result<Tokenizer> {
        load(&folder.into(), Language::Target)
    }

    /// Copies the files of a tokenizer and its chat templates from one folder to another, so that
    /// the folder of a trained model has the tokenizer that the model was trained with.
    ///
    /// # Errors
    /// A folder without a tokenizer; files that cannot be read or written.
    pub fn copy_files(from: impl Into<Location>, to: impl AsRef<Path>) -> Result<()> {
        copy::files(&from.into(), to.as_ref())
    }
}
