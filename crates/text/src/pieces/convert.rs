//! A SentencePiece model as a tokenizer of the crate `tokenizers`, which other programs can read.
//!
//! Its tokens are SentencePiece's, except for a few unusual texts. See `Tokenizer::load`.

use fulmen_data::internal::catch_quietly;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::models::unigram::Unigram;
use tokenizers::normalizers::precompiled::Precompiled;
use tokenizers::normalizers::prepend::Prepend;
use tokenizers::normalizers::replace::{Replace, ReplacePattern};
use tokenizers::normalizers::utils::Sequence as Normalizers;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{DecoderWrapper, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, Tokenizer};

use super::model_proto::{Algorithm, Kind, PieceModel};
use super::normalizer::{DummyPrefix, SPACE};
use super::{Vocabulary, charsmap};

/// The tokenizer, still without a template of special tokens.
pub(crate) fn tokenizer(model: &PieceModel, vocabulary: &Vocabulary) -> Result<Tokenizer, String> {
    let mut tokenizer = Tokenizer::new(match model.algorithm {
        Algorithm::Unigram => unigram(model, vocabulary)?,
        Algorithm::Bpe => bpe(model, vocabulary)?,
    });
    tokenizer.with_normalizer(Some(normalizer(model, vocabulary)?));
    tokenizer.with_pre_tokenizer(Some(pre_tokenizer(model, vocabulary)?));
    tokenizer.with_decoder(Some(decoder(model)?));
    tokenizer.add_tokens(&vocabulary.added);
    Ok(tokenizer)
}

fn unigram(model: &PieceModel, vocabulary: &Vocabulary) -> Result<ModelWrapper, String> {
    let tokens = vocabulary.tokens.iter().map(|(text, score)| (text.clone(), f64::from(*score)));
    let unknown = vocabulary.ids[model.unknown] as usize;
    let unigram = Unigram::from(tokens.collect(), Some(unknown), model.byte_fallback);
    Ok(unigram.map_err(|error| error.to_string())?.into())
}

fn bpe(model: &PieceModel, vocabulary: &Vocabulary) -> Result<ModelWrapper, String> {
    let ids = (0..).zip(&vocabulary.tokens).map(|(id, (text, _))| (text.clone(), id));
    let bpe = BPE::builder()
        .vocab_and_merges(ids.collect::<Vocab>(), merges(model))
        .unk_token(vocabulary.tokens[vocabulary.ids[model.unknown] as usize].0.clone())
        .fuse_unk(true)
        .byte_fallback(model.byte_fallback)
        // User-defined pieces are whole words, which no merge makes.
        .ignore_merges(model.pieces.iter().any(|piece| piece.kind == Kind::UserDefined))
        .build();
    Ok(bpe.map_err(|error| error.to_string())?.into())
}

/// A pair of pieces whose text is a piece.
struct Merge {
    score: f32,
    left: usize,
    right: usize,
}

/// All pairs of pieces that make a piece, the one with the highest score first.
fn merges(model: &PieceModel) -> Vec<(String, String)> {
    let pieces = (0..).zip(&model.pieces).filter(|(_, piece)| piece.kind == Kind::Normal);
    let numbers: std::collections::HashMap<&str, usize> =
        pieces.map(|(number, piece)| (piece.text.as_str(), number)).collect();
    let mut merges = Vec::new();
    for piece in model.pieces.iter().filter(|piece| piece.kind == Kind::Normal) {
        for (middle, _) in piece.text.char_indices().skip(1) {
            let (left, right) = piece.text.split_at(middle);
            if let (Some(&left), Some(&right)) = (numbers.get(left), numbers.get(right)) {
                merges.push(Merge { score: piece.score, left, right });
            }
        }
    }
    merges.sort_by(|a, b| {
        b.score.total_cmp(&a.score).then((a.left, a.right).cmp(&(b.left, b.right)))
    });
    let text = |number: usize| model.pieces[number].text.clone();
    merges.into_iter().map(|merge| (text(merge.left), text(merge.right))).collect()
}

fn normalizer(model: &PieceModel, vocabulary: &Vocabulary) -> Result<NormalizerWrapper, String> {
    let mut parts: Vec<NormalizerWrapper> = Vec::new();
    if !model.charsmap.is_empty() {
        charsmap::Charsmap::parse(&model.charsmap)?;
        let precompiled = catch_quietly(|| Precompiled::from(&model.charsmap))?;
        parts.push(precompiled.map_err(|error| error.to_string())?.into());
    }
    if model.remove_extra_whitespaces {
        parts.push(replace(r"\A +", "")?);
        parts.push(replace(" {2,}", " ")?);
    }
    if vocabulary.dummy_prefix == DummyPrefix::Always {
        parts.push(Prepend::new(SPACE.to_string()).into());
    }
    parts.push(Replace::new(" ", SPACE.to_string()).map_err(|error| error.to_string())?.into());
    if model.remove_extra_whitespaces {
        parts.push(replace(&format!(r"{SPACE}+\z"), "")?);
    }
    Ok(Normalizers::new(parts).into())
}

fn replace(pattern: &str, content: &str) -> Result<NormalizerWrapper, String> {
    let pattern = ReplacePattern::Regex(pattern.to_owned());
    Ok(Replace::new(pattern, content).map_err(|error| error.to_string())?.into())
}

/// Splits into words, if no piece has parts of two words, and at the user-defined pieces.
fn pre_tokenizer(
    model: &PieceModel,
    vocabulary: &Vocabulary,
) -> Result<PreTokenizerWrapper, String> {
    let scheme = match vocabulary.dummy_prefix {
        DummyPrefix::First => PrependScheme::First,
        // The normalizer adds it.
        DummyPrefix::Never | DummyPrefix::Always => PrependScheme::Never,
    };
    let is_within_word = |text: &str| text.chars().skip(1).all(|character| character != SPACE);
    let has_space = model.pieces.iter().any(|piece| piece.text.chars().eq([SPACE]));
    let splits = has_space && model.pieces.iter().all(|piece| is_within_word(&piece.text));
    let spaces = Metaspace::new(SPACE, scheme, splits);
    let user_defined = model.pieces.iter().filter(|piece| piece.kind == Kind::UserDefined);
    let mut user_defined: Vec<&str> = user_defined.map(|piece| piece.text.as_str()).collect();
    if user_defined.is_empty() {
        return Ok(spaces.into());
    }
    // The longest piece wins.
    user_defined.sort_by_key(|text| std::cmp::Reverse(text.len()));
    let pattern: Vec<String> = user_defined.into_iter().map(escape).collect();
    let pattern = SplitPattern::Regex(pattern.join("|"));
    let pieces = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
    let pieces = pieces.map_err(|error| error.to_string())?;
    Ok(PreTokenizers::new(vec![spaces.into(), pieces.into()]).into())
}

/// A regular expression that matches this text only.
fn escape(text: &str) -> String {
    let mut pattern = String::new();
    for character in text.chars() {
        if r"\.+*?()|[]{}^$".contains(character) {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}

/// Like transformers, it leaves out one space in front, where sentencepiece leaves out all of them if
/// the model removes extra spaces.
fn decoder(model: &PieceModel) -> Result<DecoderWrapper, String> {
    let spaces = Replace::new(SPACE.to_string(), " ").map_err(|error| error.to_string())?;
    let mut parts: Vec<DecoderWrapper> = vec![spaces.into()];
    if model.byte_fallback {
        parts.push(ByteFallback::new().into());
    }
    parts.push(Fuse::new().into());
    if model.add_dummy_prefix {
        parts.push(Strip::new(' ', 1, 0).into());
    }
    Ok(Decoders::new(parts).into())
}
