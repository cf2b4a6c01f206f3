//! Marian's translators: a SentencePiece model for each language, and the ids of all pieces in
//! `vocab.json`.

use std::collections::BTreeMap;

use fulmen_data::{Error, Result};
use fulmen_files::Location;
use tokenizers::AddedToken;

use super::classes::{self, Layout};
use super::config::{FolderConfig, read_object};
use super::{MAX_MODEL_BYTES, not_a_model, of_layout};
use crate::Tokenizer;
use crate::pieces::{Algorithm, PieceModel, Vocabulary};
use crate::special_tokens::{Part, SpecialTokens};

const VOCABULARY: &str = "vocab.json";
const TARGET_VOCABULARY: &str = "target_vocab.json";

/// How much worse the pieces of the other language are than the worst own one.
const OTHER_LANGUAGE_PENALTY: f32 = 100.0;

/// A language of a translator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    Source,
    Target,
}

impl Language {
    pub(super) fn file(self) -> &'static str {
        match self {
            Language::Source => "source.spm",
            Language::Target => "target.spm",
        }
    }
}

pub(super) fn load(folder: &Location, language: Language) -> Result<Tokenizer> {
    let config = FolderConfig::read(folder)?;
    let of_folder = |message: String| Error::content(format!("{folder}: {message}"));
    if let Some(class) = config.class().filter(|&class| class != "MarianTokenizer") {
        let file = language.file();
        return Err(of_folder(format!(
            "the `tokenizer_class` {class} is not supported with {file}, only MarianTokenizer"
        )));
    }
    let separate = config.flag("separate_vocabs").map_err(of_folder)?.unwrap_or(false);
    let name =
        if separate && language == Language::Target { TARGET_VOCABULARY } else { VOCABULARY };
    let file = folder.join(name);
    let tokens = read_tokens(&file)?;
    let file = folder.join(language.file());
    let bytes = file.read_at_most(MAX_MODEL_BYTES)?;
    let model = PieceModel::parse(&bytes).map_err(|error| not_a_model(&file, &error))?;
    let layout = layout(&model, tokens, &config).map_err(of_folder)?;
    of_layout(&file, &bytes, &model, &layout)
}

/// The tokens of a file, by id.
fn read_tokens(file: &Location) -> Result<Vec<String>> {
    if !file.exists()? {
        return Err(Error::missing(format!(
            "{file}: Marian's tokenizers need this file, with the ids of the pieces"
        )));
    }
    let mut tokens: BTreeMap<u64, String> = BTreeMap::new();
    let of_file = |message: String| Error::content(format!("{file}: {message}"));
    for (token, id) in read_object(file)? {
        let id = id.as_u64().ok_or_else(|| of_file(format!("the token {token:?} has no id")))?;
        if let Some(other) = tokens.insert(id, token.clone()) {
            return Err(of_file(format!("{other:?} and {token:?} have the id {id}")));
        }
    }
    match (0..).zip(tokens.keys()).find(|(number, id)| number != *id) {
        Some((number, _)) => Err(of_file(format!("no token has the id {number}"))),
        None => Ok(tokens.into_values().collect()),
    }
}

fn layout(
    model: &PieceModel,
    tokens: Vec<String>,
    config: &FolderConfig,
) -> std::result::Result<Layout, String> {
    if model.algorithm != Algorithm::Unigram {
        return Err("a MarianTokenizer with a BPE model is not supported".into());
    }
    let ids: std::collections::HashMap<&str, u32> =
        tokens.iter().map(String::as_str).zip(0..).collect();
    let special = |field: &str, default: &str| -> std::result::Result<String, String> {
        let named = config.token(field)?.map_or_else(|| default.to_owned(), |token| token.content);
        if ids.contains_key(named.as_str()) {
            Ok(named)
        } else {
            Err(format!("the special token {named:?} is not in {VOCABULARY}"))
        }
    };
    let unknown = special("unk_token", "<unk>")?;
    let end = special("eos_token", "</s>")?;
    let pad = special("pad_token", "<pad>")?;
    let unknown_id = ids[unknown.as_str()];
    let mut of_pieces: Vec<u32> = model
        .pieces
        .iter()
        .map(|piece| ids.get(piece.text.as_str()).copied().unwrap_or(unknown_id))
        .collect();
    of_pieces[model.unknown] = unknown_id;
    let lowest = model.pieces.iter().map(|piece| piece.score).fold(0.0, f32::min);
    let mut scores = vec![lowest - OTHER_LANGUAGE_PENALTY; tokens.len()];
    for (piece, &id) in model.pieces.iter().zip(&of_pieces) {
        scores[id as usize] = piece.score;
    }
    let is_language = |token: &&String| token.starts_with(">>") && token.ends_with("<<");
    let languages = tokens.iter().filter(is_language).cloned();
    let added = [unknown, end.clone(), pad].into_iter().chain(languages);
    let added = added.map(|token| AddedToken::from(token, true).normalized(false)).collect();
    let vocabulary = Vocabulary {
        tokens: tokens.into_iter().zip(scores).collect(),
        ids: of_pieces,
        added,
        unknown_by_text: true,
        ..classes::plain(model)
    };
    let end = || Part::Token(end.clone(), 0);
    let special =
        SpecialTokens { single: vec![Part::A, end()], pair: vec![Part::A, Part::B(0), end()] };
    Ok(Layout { vocabulary, special })
}
