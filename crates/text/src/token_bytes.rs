//! The bytes that each token of a tokenizer adds to a text.
//!
//! A tokenizer has no method for this: decoding a token alone may leave out its leading space. So
//! each token is decoded after another text, unless it stands for bytes itself.

use tokenizers::{Decoder, DecoderWrapper, Tokenizer};

/// The text before each token.
const BEFORE: &str = "abcdef";

/// How tokens stand for bytes.
#[derive(Clone, Copy, PartialEq)]
enum ByteTokens {
    /// Each character of a token is a byte (GPT-2).
    Characters,
    /// A token such as `<0x0A>` is a byte (SentencePiece's byte fallback).
    Fallback,
    None,
}

/// The bytes of the tokens 0, 1, … up to `count`; `None` for an id that no token has.
pub(super) fn token_bytes(
    tokenizer: &Tokenizer,
    count: usize,
) -> Result<Vec<Option<Vec<u8>>>, String> {
    let Some(decoder) = tokenizer.get_decoder() else {
        return Err("the file has no decoder, so the texts of its tokens are not known".into());
    };
    let kind = ByteTokens::of(decoder)?;
    let before = tokenizer.encode_fast(BEFORE, false).map_err(|error| error.to_string())?;
    let before: Vec<String> =
        before.get_ids().iter().filter_map(|&id| tokenizer.id_to_token(id)).collect();
    let bytes = |token: String| -> Result<Vec<u8>, String> {
        if let Some(bytes) = kind.bytes(&token) {
            return Ok(bytes);
        }
        let mut tokens = before.clone();
        tokens.push(token.clone());
        let text = decoder.decode(tokens).map_err(|error| error.to_string())?;
        match text.split_once(BEFORE) {
            Some((_, own)) => Ok(own.as_bytes().to_vec()),
            None => Err(format!(
                "the text of the token {token:?} is not known, because the tokenizer does not keep the text {BEFORE:?} \
                 in front of it"
            )),
        }
    };
    let ids = 0..u32::try_from(count).unwrap_or(u32::MAX);
    ids.map(|id| tokenizer.id_to_token(id).map(bytes).transpose()).collect()
}

impl ByteTokens {
    fn of(decoder: &DecoderWrapper) -> Result<ByteTokens, String> {
        let json = serde_json::to_value(decoder).map_err(|error| error.to_string())?;
        Ok(if has_type(&json, "ByteFallback") {
            ByteTokens::Fallback
        } else if has_type(&json, "ByteLevel") {
            ByteTokens::Characters
        } else {
            ByteTokens::None
        })
    }

    /// The bytes of a token that stands for bytes.
    fn bytes(self, token: &str) -> Option<Vec<u8>> {
        match self {
            ByteTokens::Characters => token.chars().map(byte).collect(),
            ByteTokens::Fallback => {
                let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
                let is_byte = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
                let byte = u8::from_str_radix(digits, 16).ok().filter(|_| is_byte)?;
                Some(vec![byte])
            }
            ByteTokens::None => None,
        }
    }
}

/// Whether a decoder, or one that it contains, has this type.
fn has_type(decoder: &serde_json::Value, name: &str) -> bool {
    use serde_json::Value;
    match decoder {
        Value::Object(fields) => {
            fields.get("type").is_some_and(|own| own == name)
                || fields.values().any(|value| has_type(value, name))
        }
        Value::Array(values) => values.iter().any(|value| has_type(value, name)),
        _ => false,
    }
}

/// The characters that stand for the bytes in GPT-2's tokens. Printable characters of Latin-1 stand
/// for themselves, and the characters from U+0100 on for the other bytes, in order.
pub(super) fn byte_characters() -> [char; 256] {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut others = '\u{100}'..;
    let mut characters = ['\0'; 256];
    for (byte, character) in (0..=255_u8).zip(&mut characters) {
        *character =
            if is_printable(byte) { char::from(byte) } else { others.next().unwrap_or_default() };
    }
    characters
}

/// The byte of a character in GPT-2's tokens. Printable characters of Latin-1 stand for themselves,
/// and the characters from U+0100 on for the other bytes, in order.
fn byte(character: char) -> Option<u8> {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let code = u32::from(character);
    match u8::try_from(code) {
        Ok(byte) => Some(byte).filter(|&byte| is_printable(byte)),
        Err(_) => {
            let number = usize::try_from(code.checked_sub(0x100)?).ok()?;
            (0..=255_u8).filter(|&byte| !is_printable(byte)).nth(number)
        }
    }
}
