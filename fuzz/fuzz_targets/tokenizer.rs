//! Random bytes as a SentencePiece model and as tiktoken's ranks: nothing may panic or hang, and what
//! is read must encode any text.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fulmen_text::fuzzing::tokenizer(bytes));
