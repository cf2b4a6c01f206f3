//! The models of the field, with the parameter names of the Python library that people load them from.
//!
//! Each family is one file and one feature:
//!
//! | module | models | names of |
//! | --- | --- | --- |
//! | [`bert`], [`roberta`] | BERT, RoBERTa: masked tokens, classification | transformers |
//! | [`decoder`] | Llama, Mistral, Qwen, Gemma | transformers |
//! | [`gpt2`] | GPT-2 | transformers |
//! | [`t5`] | T5, T5 1.1, Flan-T5 | transformers |

mod activation;
mod attention;
#[cfg(feature = "bert")]
pub mod bert;
#[cfg(feature = "decoder")]
pub mod decoder;
mod error;
mod folder;
mod generate;
#[cfg(feature = "gpt2")]
pub mod gpt2;
mod lora;
#[cfg(test)]
mod reference;
#[cfg(feature = "bert")]
pub mod roberta;
#[cfg(feature = "t5")]
pub mod t5;

pub use activation::Activation;
pub use error::{Error, Result};
pub use folder::Pretrained;
pub use lora::Lora;
pub use generate::{CausalLm, GenerationConfig, Prompt, StaticCache, generate};

use fulmen_tensor::Library;

/// This crate, whose lines stand for its users'.
const MODELS: Library = Library::new(file!());

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
