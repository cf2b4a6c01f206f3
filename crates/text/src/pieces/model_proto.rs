//! The content of a SentencePiece model: a `ModelProto` of protobuf.
//!
//! Out of scope: encoding with it.

use std::collections::HashSet;

use super::protobuf::{Field, Fields};

/// The limit on the length of a piece. Trained ones have at most 16 characters by default.
const MAX_PIECE_BYTES: usize = 1024;

/// How a text is cut into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    /// The pieces with the highest sum of scores.
    Unigram,
    /// Characters, merged in pairs, the one with the highest score first.
    Bpe,
}

/// What a piece is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// A piece of the vocabulary.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) text: String,
    pub(crate) score: f32,
    pub(crate) kind: Kind,
}

/// A SentencePiece model.
#[derive(Clone, Debug)]
pub(crate) struct PieceModel {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) algorithm: Algorithm,
    /// The index of the unknown piece.
    pub(crate) unknown: usize,
    pub(crate) byte_fallback: bool,
    pub(crate) add_dummy_prefix: bool,
    pub(crate) remove_extra_whitespaces: bool,
    /// The rules of the normalization, compiled; empty if there are none.
    pub(crate) charsmap: Vec<u8>,
}

/// Fields of the messages for training and normalization.
#[derive(Debug)]
struct Settings {
    model_type: u64,
    byte_fallback: bool,
    whitespace_as_suffix: bool,
    add_dummy_prefix: bool,
    remove_extra_whitespaces: bool,
    escape_whitespaces: bool,
    charsmap: Vec<u8>,
}

impl PieceModel {
    /// Parses the file and checks what SentencePiece checks.
    pub(crate) fn parse(bytes: &[u8]) -> Result<PieceModel, String> {
        let mut pieces = Vec::new();
        let mut settings = Settings::default();
        for field in Fields::new(bytes) {
            let field = field?;
            match field.number {
                1 => {
                    let number = pieces.len();
                    let piece = Piece::parse(field.bytes()?);
                    pieces.push(piece.map_err(|error| format!("piece {number}: {error}"))?);
                }
                2 => settings.training(field.bytes()?)?,
                3 => settings.normalization(field.bytes()?)?,
                5 => check_denormalization(field.bytes()?)?,
                _ => {}
            }
        }
        settings.finish(pieces)
    }
}

impl Piece {
    fn parse(message: &[u8]) -> Result<Piece, String> {
        let mut piece = Piece { text: String::new(), score: 0.0, kind: Kind::Normal };
        for field in Fields::new(message) {
            let field = field?;
            match field.number {
                1 => piece.text = field.text()?,
                2 => piece.score = field.float()?,
                3 => piece.kind = Kind::parse(field)?,
                _ => {}
            }
        }
        if piece.text.is_empty() {
            return Err("the piece has no text".into());
        }
        if piece.text.len() > MAX_PIECE_BYTES {
            let size = piece.text.len();
            return Err(format!("the piece has {size} bytes, expected at most {MAX_PIECE_BYTES}"));
        }
        if piece.text.contains('\0') {
            return Err(format!("the piece {:?} has the character NUL", piece.text));
        }
        if !piece.score.is_finite() {
            return Err(format!("the piece {:?} has the score {}", piece.text, piece.score));
        }
        Ok(piece)
    }
}

impl Kind {
    fn parse(field: Field<'_>) -> Result<Kind, String> {
        Ok(match field.integer()? {
            1 => Kind::Normal,
            2 => Kind::Unknown,
            3 => Kind::Control,
            4 => Kind::UserDefined,
            5 => Kind::Unused,
            6 => Kind::Byte,
            other => return Err(format!("the unknown type {other}")),
        })
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            model_type: 1,
            byte_fallback: false,
            whitespace_as_suffix: false,
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            escape_whitespaces: true,
            charsmap: Vec::new(),
        }
    }
}

impl Settings {
    fn training(&mut self, message: &[u8]) -> Result<(), String> {
        for field in Fields::new(message) {
            let field = field?;
            match field.number {
                3 => self.model_type = field.integer()?,
                24 => self.whitespace_as_suffix = field.flag()?,
                35 => self.byte_fallback = field.flag()?,
                _ => {}
            }
        }
        Ok(())
    }

    fn normalization(&mut self, message: &[u8]) -> Result<(), String> {
        for field in Fields::new(message) {
            let field = field?;
            match field.number {
                2 => self.charsmap = field.bytes()?.to_vec(),
                3 => self.add_dummy_prefix = field.flag()?,
                4 => self.remove_extra_whitespaces = field.flag()?,
                5 => self.escape_whitespaces = field.flag()?,
                _ => {}
            }
        }
        Ok(())
    }

    fn finish(self, pieces: Vec<Piece>) -> Result<PieceModel, String> {
        let algorithm = match self.model_type {
            1 => Algorithm::Unigram,
            2 => Algorithm::Bpe,
            3 => return Err("a model of whole words (model_type=word) is not supported".into()),
            4 => return Err("a model of characters (model_type=char) is not supported".into()),
            other => return Err(format!("the model_type {other} is unknown")),
        };
        if self.whitespace_as_suffix {
            return Err("treat_whitespace_as_suffix is not supported".into());
        }
        if !self.escape_whitespaces {
            return Err("escape_whitespaces=false is not supported".into());
        }
        let unknown = check_pieces(&pieces, self.byte_fallback)?;
        Ok(PieceModel {
            pieces,
            algorithm,
            unknown,
            byte_fallback: self.byte_fallback,
            add_dummy_prefix: self.add_dummy_prefix,
            remove_extra_whitespaces: self.remove_extra_whitespaces,
            charsmap: self.charsmap,
        })
    }
}

/// The index of the unknown piece.
fn check_pieces(pieces: &[Piece], byte_fallback: bool) -> Result<usize, String> {
    if i32::try_from(pieces.len()).is_err() {
        return Err(format!("the model has {} pieces, more than fit in an i32", pieces.len()));
    }
    let mut texts = HashSet::with_capacity(pieces.len());
    for (number, piece) in pieces.iter().enumerate() {
        if !texts.insert(piece.text.as_str()) {
            return Err(format!("piece {number}: {:?} appears for the second time", piece.text));
        }
        if piece.kind == Kind::Byte && byte_of(&piece.text).is_none() {
            let text = &piece.text;
            return Err(format!("piece {number}: {text:?} is not a byte such as <0x0A>"));
        }
    }
    let unknown: Vec<usize> =
        (0..pieces.len()).filter(|&number| pieces[number].kind == Kind::Unknown).collect();
    let &[unknown] = &unknown[..] else {
        return Err(format!("the model has {} unknown pieces, expected one", unknown.len()));
    };
    let bytes = pieces.iter().filter(|piece| piece.kind == Kind::Byte).count();
    let expected = if byte_fallback { 256 } else { 0 };
    if bytes != expected {
        return Err(format!(
            "the model has {bytes} pieces for bytes, expected {expected} with byte_fallback={byte_fallback}"
        ));
    }
    Ok(unknown)
}

/// The byte of a piece such as `<0x0A>`.
pub(super) fn byte_of(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_byte =
        digits.len() == 2 && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'A'..=b'F'));
    u8::from_str_radix(digits, 16).ok().filter(|_| is_byte)
}

/// Rules that change decoded texts are not applied here.
fn check_denormalization(message: &[u8]) -> Result<(), String> {
    for field in Fields::new(message) {
        let field = field?;
        if field.number == 2 && !field.bytes()?.is_empty() {
            return Err("rules for decoding (denormalizer_spec) are not supported".into());
        }
    }
    Ok(())
}
