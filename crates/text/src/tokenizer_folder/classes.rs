//! What transformers' classes of tokenizers add to a SentencePiece model: the ids of its pieces,
//! further tokens, and special tokens around a text.
//!
//! A field that a folder lacks has the value of transformers 4, which wrote folders without
//! `tokenizer.json`.

use tokenizers::AddedToken;

use super::config::FolderConfig;
use crate::pieces::{DummyPrefix, Kind, PieceModel, Vocabulary};
use crate::special_tokens::{Part, SpecialTokens};

/// The classes that this crate knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Llama,
    Gemma,
    T5,
    XlmRoberta,
    /// The pieces and nothing else, with the tokens that the files name.
    Plain,
}

const KNOWN: &str = "LlamaTokenizer, GemmaTokenizer, T5Tokenizer, XLMRobertaTokenizer and \
                     PreTrainedTokenizerFast";

/// T5's tokens for gaps, unless the folder says how many there are.
const EXTRA_IDS: usize = 100;

/// More than any vocabulary has.
const MAX_EXTRA_IDS: usize = 1 << 20;

impl Class {
    /// The class that the folder names; without it, that of the model's kind.
    pub(super) fn of(config: &FolderConfig) -> Result<Class, String> {
        if let Some(class) = config.class() {
            return match class {
                "LlamaTokenizer" => Ok(Class::Llama),
                "GemmaTokenizer" => Ok(Class::Gemma),
                "T5Tokenizer" => Ok(Class::T5),
                "XLMRobertaTokenizer" => Ok(Class::XlmRoberta),
                "PreTrainedTokenizer" | "TokenizersBackend" => Ok(Class::Plain),
                other => Err(format!(
                    "the `tokenizer_class` {other} is not supported for a SentencePiece model, only {KNOWN}; save the \
                     tokenizer as a tokenizer.json with transformers: \
                     AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
                )),
            };
        }
        match config.model_type.as_deref() {
            None => Ok(Class::Plain),
            Some("llama" | "mistral" | "mixtral") => Ok(Class::Llama),
            Some("gemma" | "gemma2") => Ok(Class::Gemma),
            Some("t5" | "mt5") => Ok(Class::T5),
            Some("xlm-roberta") => Ok(Class::XlmRoberta),
            Some(other) => Err(format!(
                "the folder has no `tokenizer_class`, and that of a model of the type {other} is not known; write \
                 {{\"tokenizer_class\": …}} into tokenizer_config.json, with one of {KNOWN}"
            )),
        }
    }

    /// A special token that the class has without being told.
    fn default_token(self, name: &str) -> Option<&'static str> {
        match (self, name) {
            (Class::Llama | Class::XlmRoberta, "bos_token") => Some("<s>"),
            (Class::Llama | Class::T5 | Class::XlmRoberta, "eos_token") => Some("</s>"),
            (Class::Gemma, "bos_token") => Some("<bos>"),
            (Class::Gemma, "eos_token") => Some("<eos>"),
            (Class::XlmRoberta, "cls_token") => Some("<s>"),
            (Class::XlmRoberta, "sep_token") => Some("</s>"),
            _ => None,
        }
    }
}

/// The tokens of a folder.
pub(super) struct Layout {
    pub(super) vocabulary: Vocabulary,
    pub(super) special: SpecialTokens,
}

pub(super) fn layout(model: &PieceModel, config: &FolderConfig) -> Result<Layout, String> {
    let class = Class::of(config)?;
    let mut vocabulary = match class {
        Class::T5 => with_extra_ids(model, config)?,
        Class::XlmRoberta => xlm_roberta(model)?,
        Class::Llama | Class::Gemma | Class::Plain => plain(model),
    };
    vocabulary.dummy_prefix = dummy_prefix(class, model, config)?;
    add_special_pieces(&mut vocabulary, model);
    add_named_tokens(&mut vocabulary, model, config)?;
    let special = special_tokens(class, config)?;
    Ok(Layout { vocabulary, special })
}

/// The pieces, with their own ids.
pub(super) fn plain(model: &PieceModel) -> Vocabulary {
    Vocabulary {
        tokens: model.pieces.iter().map(|piece| (piece.text.clone(), piece.score)).collect(),
        ids: (0..).take(model.pieces.len()).collect(),
        added: Vec::new(),
        dummy_prefix: prefix_of(model),
        unknown_by_text: false,
    }
}

fn prefix_of(model: &PieceModel) -> DummyPrefix {
    if model.add_dummy_prefix { DummyPrefix::Always } else { DummyPrefix::Never }
}

/// Adds the pieces that sentencepiece never finds in a text.
pub(super) fn add_special_pieces(vocabulary: &mut Vocabulary, model: &PieceModel) {
    for (piece, &id) in model.pieces.iter().zip(&vocabulary.ids) {
        if matches!(piece.kind, Kind::Control | Kind::Unknown) {
            let token = &vocabulary.tokens[id as usize].0;
            vocabulary.added.push(AddedToken::from(token, true).normalized(false));
        }
    }
}

/// T5: the tokens for gaps follow, the last one first.
fn with_extra_ids(model: &PieceModel, config: &FolderConfig) -> Result<Vocabulary, String> {
    let count = config.count("extra_ids")?.unwrap_or(EXTRA_IDS);
    if count > MAX_EXTRA_IDS {
        return Err(format!("`extra_ids` is {count}, expected at most {MAX_EXTRA_IDS}"));
    }
    let mut vocabulary = plain(model);
    for number in (0..count).rev() {
        let token = format!("<extra_id_{number}>");
        vocabulary.added.push(AddedToken::from(&token, true).normalized(false));
        vocabulary.tokens.push((token, 0.0));
    }
    Ok(vocabulary)
}

/// XLM-RoBERTa: fairseq's special tokens come first, and `<mask>` last.
fn xlm_roberta(model: &PieceModel) -> Result<Vocabulary, String> {
    let first: Vec<&str> = model.pieces.iter().take(3).map(|piece| piece.text.as_str()).collect();
    if first != ["<unk>", "<s>", "</s>"] {
        return Err(format!(
            "the pieces of an XLMRobertaTokenizer begin with <unk>, <s> and </s>, but those of the model with {}",
            first.join(", ")
        ));
    }
    let mut vocabulary = plain(model);
    let special = ["<s>", "<pad>", "</s>", "<unk>"].map(|token| (token.to_owned(), 0.0));
    vocabulary.tokens.splice(..3, special);
    vocabulary.tokens.push(("<mask>".to_owned(), 0.0));
    vocabulary.ids = [3, 0, 2].into_iter().chain(4..).take(model.pieces.len()).collect();
    let pad = AddedToken::from("<pad>", true).normalized(false);
    let mask = AddedToken::from("<mask>", true).normalized(false).lstrip(true);
    vocabulary.added.extend([pad, mask]);
    Ok(vocabulary)
}

fn dummy_prefix(
    class: Class,
    model: &PieceModel,
    config: &FolderConfig,
) -> Result<DummyPrefix, String> {
    let legacy = config.flag("legacy")?.unwrap_or(true);
    match config.flag("add_prefix_space")? {
        Some(false) => return Ok(DummyPrefix::Never),
        Some(true) if !model.add_dummy_prefix => {
            return Err("`add_prefix_space` is true, but the SentencePiece model has add_dummy_prefix=false".into());
        }
        _ => {}
    }
    Ok(match (prefix_of(model), class) {
        (DummyPrefix::Always, Class::Llama | Class::T5 | Class::Plain) if !legacy => {
            DummyPrefix::First
        }
        (prefix, _) => prefix,
    })
}

/// Adds the tokens that the folder's files name.
fn add_named_tokens(
    vocabulary: &mut Vocabulary,
    model: &PieceModel,
    config: &FolderConfig,
) -> Result<(), String> {
    for (&id, token) in &config.added {
        let place = id as usize;
        if place == vocabulary.tokens.len() {
            vocabulary.tokens.push((token.content.clone(), 0.0));
        } else if place > vocabulary.tokens.len() {
            return Err(format!(
                "the added token {:?} has the id {id}, but the tokens before it end at {}; name those between",
                token.content,
                vocabulary.tokens.len() - 1
            ));
        } else if vocabulary.tokens[place].0 != token.content {
            rename(vocabulary, model, id, &token.content)?;
        }
        let piece = model.pieces.iter().find(|piece| piece.text == token.content);
        // sentencepiece finds its own user-defined pieces.
        if token.special || piece.is_none_or(|piece| piece.kind != Kind::UserDefined) {
            add(vocabulary, token.clone());
        }
    }
    for token in config.special_tokens()? {
        if vocabulary.id(&token.content).is_none() {
            vocabulary.tokens.push((token.content.clone(), 0.0));
        }
        // What `added_tokens_decoder` says of the token is more exact.
        if !config.added.values().any(|added| added.content == token.content && added.special) {
            add(vocabulary, token);
        }
    }
    let mut texts = std::collections::HashSet::new();
    match vocabulary.tokens.iter().find(|(text, _)| !texts.insert(text)) {
        Some((text, _)) => Err(format!("the token {text:?} has two ids")),
        None => Ok(()),
    }
}

/// Adds a token, or changes its settings.
fn add(vocabulary: &mut Vocabulary, token: AddedToken) {
    let token = token.normalized(false);
    match vocabulary.added.iter_mut().find(|added| added.content == token.content) {
        // A `<mask>` without settings keeps those of its class.
        Some(added) => {
            let lstrip = token.lstrip || added.lstrip;
            let special = token.special || added.special;
            *added = AddedToken { special, lstrip, ..token };
        }
        None => vocabulary.added.push(token),
    }
}

/// Gives a piece that stands for no text another name.
fn rename(
    vocabulary: &mut Vocabulary,
    model: &PieceModel,
    id: u32,
    name: &str,
) -> Result<(), String> {
    let place = vocabulary.ids.iter().position(|&other| other == id);
    let kind = place.map(|place| model.pieces[place].kind);
    let token = &mut vocabulary.tokens[id as usize].0;
    if !matches!(kind, Some(Kind::Control | Kind::Unknown | Kind::UserDefined | Kind::Unused)) {
        return Err(format!(
            "the files of the folder disagree: the token {id} is {token:?} in the SentencePiece model, and {name:?} in \
             added_tokens_decoder or added_tokens.json"
        ));
    }
    vocabulary.added.retain(|added| &added.content != token);
    name.clone_into(token);
    Ok(())
}

/// The special tokens around a text.
fn special_tokens(class: Class, config: &FolderConfig) -> Result<SpecialTokens, String> {
    let name = |field: &str| -> Result<Option<String>, String> {
        let named = config.token(field)?.map(|token| token.content);
        Ok(named.or_else(|| class.default_token(field).map(str::to_owned)))
    };
    let around = |add: bool, field: &str| -> Result<Option<String>, String> {
        if !add {
            return Ok(None);
        }
        let missing = || format!("`add_{field}` is set, but the folder names no `{field}`");
        Ok(Some(name(field)?.ok_or_else(missing)?))
    };
    match class {
        Class::Llama | Class::Gemma | Class::Plain => {
            let has_bos = class != Class::Plain;
            let bos = around(config.flag("add_bos_token")?.unwrap_or(has_bos), "bos_token")?;
            let eos = around(config.flag("add_eos_token")?.unwrap_or(false), "eos_token")?;
            Ok(SpecialTokens::around(bos.as_deref(), eos.as_deref(), 1))
        }
        Class::T5 => Ok(SpecialTokens::around(None, name("eos_token")?.as_deref(), 0)),
        Class::XlmRoberta => {
            let cls = name("cls_token")?;
            let sep = name("sep_token")?;
            let mut special = SpecialTokens::around(cls.as_deref(), sep.as_deref(), 0);
            // The second text begins with the separator, too.
            for part in special.pair.iter_mut().skip(special.single.len()).take(1) {
                *part = Part::Token(sep.clone().unwrap_or_default(), 0);
            }
            Ok(special)
        }
    }
}
