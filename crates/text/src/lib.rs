//! Texts as tokens: tokenizing, padding, packing, masking, and choosing padded lengths.
//!
//! ```
//! use fulmen_text::{CausalLabels, TokenArray, TokenBlocks, TokenCollator};
//! use fulmen_data::{DataLoader, Dataset};
//!
//! // Three tokenized documents, each ended by token 0, in blocks of 4.
//! let mut tokens = TokenArray::new(100)?.separator(0);
//! for document in [&[11, 12, 13][..], &[21, 22], &[31]] {
//!     tokens.push(document)?;
//! }
//! let samples = TokenCollator::new(4, 0).causal(CausalLabels::Shifted).dataset(TokenBlocks::new(tokens, 4)?)?;
//! assert_eq!(samples.fields()[0].to_string(), "input_ids i32[4]");
//!
//! let loader = DataLoader::builder(samples).batch_size(2).build()?;
//! let batch = loader.epoch(0).next().ok_or("no batch")??;
//! assert_eq!(batch.values::<i32>(0)?, [11, 12, 13, 0, 21, 22, 0, 31]);
//! assert_eq!(batch.values::<i32>(2)?, [12, 13, 0, 21, 22, 0, 31, 0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The following steps make a token file from a file of lines once, and batches from the token file
//! in any number of runs:
//!
//! ```
//! use fulmen_text::{CausalLabels, TokenBlocks, TokenFileWriter, TokenCollator, Tokenizer};
//! use fulmen_data::DataLoader;
//! use fulmen_tables::TextFile;
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = |name: &str| folder.path().join(name);
//! # std::fs::write(path("train.txt"), "thunder rolls\nlightning and thunder\nrolls and rolls\n")?;
//! # let words = r#"{"[UNK]": 0, "<|endoftext|>": 1, "thunder": 2, "lightning": 3, "and": 4, "rolls": 5}"#;
//! # let token = r#""single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true"#;
//! # std::fs::write(path("tokenizer.json"), format!(r#"{{"version": "1.0", "truncation": null, "padding": null,
//! #     "added_tokens": [{{"id": 1, "content": "<|endoftext|>", {token}}}], "normalizer": null,
//! #     "pre_tokenizer": {{"type": "Whitespace"}}, "post_processor": null, "decoder": null,
//! #     "model": {{"type": "WordLevel", "vocab": {words}, "unk_token": "[UNK]"}}}}"#))?;
//! let tokenizer = Tokenizer::from_file(path("tokenizer.json"))?.special_tokens(false);
//! let lines = TextFile::open(path("train.txt"))?;
//! let end = tokenizer.special_id("<|endoftext|>")?;
//! let mut writer = TokenFileWriter::create(path("train.tokens"), tokenizer.vocab_size())?.separator(end);
//! writer.extend(&tokenizer.tokenize(lines), 2, |_lines| ())?;
//! let tokens = writer.finish()?;
//!
//! let samples = TokenCollator::new(4, end).causal(CausalLabels::Shifted);
//! let data = samples.dataset(TokenBlocks::new(tokens, 4)?)?;
//! let loader = DataLoader::builder(data).batch_size(2).shuffle(true).seed(1).num_workers(2).build()?;
//! assert_eq!(loader.epoch(0).count(), 1); // 11 tokens: two blocks of 4
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! All steps use one type, [`Encoding`]: the tokens of a text, or of a block with several texts.
//!
//! | step | by index | in sequence |
//! | --- | --- | --- |
//! | texts to a tokenizer | [`ByteLevelBpe`] | |
//! | a model's folder to a tokenizer | [`Tokenizer::load`], [`Tiktoken`] | |
//! | conversation to text | [`ChatTemplate`] | the same |
//! | conversations with answers, kept | [`ChatArray`] | |
//! | text to tokens | `Tokenizer::tokenize` | the same |
//! | many documents, kept | [`TokenArray`] in memory, [`TokenFile`] on disk | [`TokenFileWriter`] |
//! | many documents, tokenized when they are read | [`IndexedDocuments`] | |
//! | joined and cut into blocks | [`TokenBlocks`] | [`PackedStream`] |
//! | whole documents side by side | [`PackedDocuments`] | [`PackedStream::first_fit`] |
//! | samples of one length | [`TokenCollator::dataset`] | the same |
//! | choose padded lengths | [`choose_boundaries`] | |
//!
//! Out of scope: reading texts from files (`fulmen-tables`), batches of several lengths (the
//! loader), attention (`fulmen_nn`).

mod bpe;
mod bucket_boundaries;
mod chat_array;
mod chat_template;
mod document_reader;
mod encoding;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod indexed_documents;
mod masking;
mod packed_documents;
mod packed_stream;
mod pieces;
mod prefetch;
mod special_tokens;
mod tiktoken;
mod token_array;
mod token_blocks;
mod token_bytes;
mod token_collator;
mod token_file;
mod token_format;
mod token_store;
mod tokenized;
mod tokenizer;
mod tokenizer_folder;

pub use bpe::ByteLevelBpe;
pub use bucket_boundaries::{BucketBoundaries, choose_boundaries, token_lengths};
pub use chat_array::{ChatArray, ChatCounts};
pub use chat_template::{Chat, ChatTemplate, ChatTokens, RenderedChat, RenderedPreference};
pub use encoding::{Encoding, Side, pad_to};
pub use indexed_documents::IndexedDocuments;
pub use masking::MaskedLanguageModel;
pub use packed_documents::{LongDocuments, PackedDocuments};
pub use packed_stream::PackedStream;
pub use tiktoken::Tiktoken;
pub use token_array::TokenArray;
pub use token_blocks::TokenBlocks;
pub use token_collator::{CausalLabels, IGNORE_INDEX, TokenCollator, TokenDataset};
pub use token_file::{TokenFile, TokenFileWriter};
pub use token_store::TokenStore;
pub use tokenized::{TextInput, Tokenized};
pub use tokenizer::{Tokenizer, Truncation};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
