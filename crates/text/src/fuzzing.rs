//! The readers of SentencePiece models and of tiktoken's ranks on bytes instead of a file, with the
//! invariants that must hold for any bytes. Only for the fuzz target; not part of the public
//! interface.

use fulmen_files::Location;

use crate::{Tiktoken, Tokenizer, tokenizer_folder};

const TEXTS: [&str; 4] =
    ["", "the ﬁ  rain…\n\n☃ Ａ Ｂ <s>", "rain@ e\u{301}\u{301} Fluß ㍿\0", "\u{200b} ▁▁ "];

/// Reads a tokenizer, and checks that it encodes any text, with and without words.
///
/// # Panics
/// A text that cannot be encoded, or not always in the same way.
pub fn tokenizer(bytes: &[u8]) {
    let file = Location::from("fuzz");
    let pieces = tokenizer_folder::of_file(&file, bytes).ok().flatten();
    let ranks = Tiktoken::new(r"\w+|\W+").of_bytes(&file, bytes).ok();
    for tokenizer in pieces.into_iter().chain(ranks) {
        TEXTS.iter().for_each(|text| check(&tokenizer, text));
    }
}

#[allow(clippy::expect_used, reason = "a panic is how a fault is told")]
fn check(tokenizer: &Tokenizer, text: &str) {
    let encoding = tokenizer.encode(text).expect("a text cannot be encoded");
    let worded = tokenizer.clone().words(true).encode(text).expect("a text has no words");
    assert_eq!(encoding.ids, worded.ids);
    assert_eq!(worded.words.len(), worded.ids.len());
    assert!(encoding.ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
    let _ = tokenizer.decode(&encoding.ids, false);
}
