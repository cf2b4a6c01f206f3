//! The models that are compared with a peer's, written as a user would.

mod biggan;
mod dcgan;
mod gpt;
mod language;
mod mlp;
mod packed_decoder;
mod resnet;
mod translator;

pub(crate) use biggan::BigGan;
pub(crate) use dcgan::Dcgan;
pub(crate) use gpt::Gpt;
pub(crate) use language::{LanguageModel, MaskedLanguageModel, gpt2_without_dropout};
pub(crate) use mlp::Mlp;
pub(crate) use packed_decoder::PackedDecoder;
pub(crate) use resnet::ResNetClassifier;
pub(crate) use translator::Translator;
