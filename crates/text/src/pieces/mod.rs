//! Encoding with a SentencePiece model, as SentencePiece does. The parts of the crate `tokenizers`
//! differ from it for some texts: in the rules of Unicode, in ties, and at user-defined pieces.
//!
//! Out of scope: which files a folder has (`tokenizer_folder`), and decoding, which the converted
//! tokenizer does.

mod charsmap;
mod convert;
mod merges;
mod model_proto;
mod normalizer;
mod protobuf;
mod span;
mod trie;
mod unigram;

use std::collections::HashMap;
use std::fmt;

use tokenizers::{
    AddedToken, AddedVocabulary, Encoding, NormalizedString, OffsetType, PreTokenizedString, Token,
};

use charsmap::Charsmap;
use merges::Merges;
use normalizer::{PieceNormalizer, SPACE};
use span::Span;
use trie::Trie;
use unigram::Unigram;

pub(crate) use convert::tokenizer;
pub(crate) use model_proto::{Algorithm, Kind, PieceModel};
pub(crate) use normalizer::DummyPrefix;

/// The tokens of a model's folder: the pieces, in the order of their ids, and those around them.
#[derive(Clone, Debug)]
pub(crate) struct Vocabulary {
    /// The tokens with their scores, by id.
    pub(crate) tokens: Vec<(String, f32)>,
    /// The id of each piece of the model.
    pub(crate) ids: Vec<u32>,
    /// The tokens that are found in a text before anything else.
    pub(crate) added: Vec<AddedToken>,
    pub(crate) dummy_prefix: DummyPrefix,
    /// Whether a text that is unknown to the model may be a token.
    pub(crate) unknown_by_text: bool,
}

impl Vocabulary {
    /// The id of a token.
    pub(crate) fn id(&self, token: &str) -> Option<u32> {
        let place = self.tokens.iter().position(|(text, _)| text == token)?;
        u32::try_from(place).ok()
    }
}

/// A SentencePiece model, ready to encode.
pub(crate) struct Pieces {
    normalizer: PieceNormalizer,
    segmenter: Segmenter,
    added: AddedVocabulary,
    ids: Vec<u32>,
    unknown: usize,
    /// The ids of the pieces for bytes, if unknown characters become bytes.
    bytes: Option<Vec<u32>>,
    /// The ids of texts that the model does not know.
    texts: HashMap<String, u32>,
}

/// How a normalized text is cut into pieces.
enum Segmenter {
    Unigram(Unigram),
    Bpe(Merges),
}

impl fmt::Debug for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pieces", self.ids.len())
    }
}

impl Pieces {
    /// `converted` knows the ids of the added tokens.
    pub(crate) fn new(
        model: &PieceModel,
        vocabulary: &Vocabulary,
        converted: &tokenizers::Tokenizer,
    ) -> Result<Pieces, String> {
        let of_kinds = |kinds: &[Kind]| {
            let pieces = (0..).zip(&model.pieces).filter(|(_, piece)| kinds.contains(&piece.kind));
            Trie::new(pieces.map(|(number, piece)| (piece.text.as_str(), number)))
        };
        let user_defined = of_kinds(&[Kind::UserDefined]);
        let all = of_kinds(&[Kind::Normal, Kind::UserDefined, Kind::Unused]);
        let charsmap =
            if model.charsmap.is_empty() { None } else { Some(Charsmap::parse(&model.charsmap)?) };
        let normalizer = PieceNormalizer {
            charsmap,
            user_defined: user_defined.clone(),
            remove_extra_whitespaces: model.remove_extra_whitespaces,
            dummy_prefix: vocabulary.dummy_prefix,
        };
        let mut added = AddedVocabulary::new();
        added.add_tokens(&vocabulary.added, converted.get_model(), Some(&normalizer));
        let segmenter = match model.algorithm {
            Algorithm::Unigram => Segmenter::Unigram(Unigram::new(model, all)),
            Algorithm::Bpe => Segmenter::Bpe(Merges::new(model, all, user_defined)),
        };
        let texts = (0..).zip(&vocabulary.tokens).filter(|_| vocabulary.unknown_by_text);
        Ok(Pieces {
            normalizer,
            segmenter,
            texts: texts.map(|(id, (text, _))| (text.clone(), id)).collect(),
            added,
            ids: vocabulary.ids.clone(),
            unknown: model.unknown,
            bytes: model.byte_fallback.then(|| byte_ids(model, &vocabulary.ids)),
        })
    }

    /// The tokens of a text. Each word begins with the character for a space.
    pub(crate) fn encode(
        &self,
        text: &str,
        type_id: u32,
        offsets: OffsetType,
    ) -> tokenizers::Result<Encoding> {
        let mut text = self.added.extract_and_normalize(Some(&self.normalizer), text);
        self.split_into_words(&mut text, matches!(offsets, OffsetType::None))?;
        text.into_encoding(None, type_id, offsets)
    }

    fn split_into_words(
        &self,
        text: &mut PreTokenizedString,
        fast: bool,
    ) -> tokenizers::Result<()> {
        if !fast {
            text.split(|_, part| self.words(&part))?;
        }
        text.tokenize(|part| Ok(self.tokens(part.get())))
    }

    /// The words of a part of a text, each with its tokens.
    fn words(
        &self,
        part: &NormalizedString,
    ) -> tokenizers::Result<Vec<(NormalizedString, Option<Vec<Token>>)>> {
        let mut words: Vec<Vec<Token>> = Vec::new();
        for token in self.tokens(part.get()) {
            let rest = &part.get().as_bytes()[token.offsets.0..];
            let starts_word = rest.starts_with(SPACE.encode_utf8(&mut [0; 4]).as_bytes());
            match words.last_mut() {
                Some(word) if !starts_word => word.push(token),
                _ => words.push(vec![token]),
            }
        }
        let word = |mut tokens: Vec<Token>| {
            let start = tokens.first().map_or(0, |token| token.offsets.0);
            let end = tokens.last().map_or(start, |token| token.offsets.1);
            for token in &mut tokens {
                token.offsets = (token.offsets.0 - start, token.offsets.1 - start);
            }
            let slice =
                part.slice(tokenizers::tokenizer::normalizer::Range::Normalized(start..end));
            Ok((slice.ok_or("a word is not within its text")?, Some(tokens)))
        };
        words.into_iter().map(word).collect()
    }

    /// The tokens of a normalized text, with their bytes in it.
    fn tokens(&self, text: &str) -> Vec<Token> {
        let mut spans = match &self.segmenter {
            Segmenter::Unigram(unigram) => unigram.encode(text),
            Segmenter::Bpe(merges) => merges.encode(text),
        };
        if self.bytes.is_none() {
            spans.dedup_by(|next, last| {
                let both_unknown = next.piece == self.unknown && last.piece == self.unknown;
                if both_unknown {
                    last.bytes.end = next.bytes.end;
                }
                both_unknown
            });
        }
        let mut tokens: Vec<Token> = Vec::with_capacity(spans.len());
        for Span { bytes, piece } in spans {
            if let Some(ids) = self.bytes.as_ref().filter(|_| piece == self.unknown) {
                let places = bytes.clone().zip(text[bytes].bytes());
                tokens.extend(places.map(|(place, byte)| {
                    Token::new(ids[usize::from(byte)], String::new(), (place, place + 1))
                }));
                continue;
            }
            let by_text = self.texts.get(&text[bytes.clone()]).filter(|_| piece == self.unknown);
            let id = by_text.copied().unwrap_or(self.ids[piece]);
            tokens.push(Token::new(id, String::new(), (bytes.start, bytes.end)));
        }
        tokens
    }
}

/// The ids of the 256 pieces for bytes, which the model was checked to have.
fn byte_ids(model: &PieceModel, ids: &[u32]) -> Vec<u32> {
    let mut bytes = vec![ids[model.unknown]; 256];
    for (piece, &id) in model.pieces.iter().zip(ids) {
        if piece.kind == Kind::Byte
            && let Some(byte) = model_proto::byte_of(&piece.text)
        {
            bytes[usize::from(byte)] = id;
        }
    }
    bytes
}
