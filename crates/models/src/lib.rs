//! Common models, with the parameter names of the Python library that publishes their weights.
//!
//! Each family is one module and one feature:
//!
//! | module | models | names of |
//! | --- | --- | --- |
//! | [`bert`], [`roberta`] | BERT, RoBERTa: masked tokens, classification | transformers |
//! | [`biggan`] | BigGAN | its paper |
//! | [`convnext`] | ConvNeXt | transformers |
//! | [`dcgan`] | DCGAN | PyTorch's example |
//! | [`decoder`] | Llama, Mistral, Qwen, Gemma | transformers |
//! | [`gpt2`] | GPT-2 | transformers |
//! | [`inception`] | Inception-v3, also for FID | torchvision, torch-fidelity |
//! | [`marian`] | the Transformer of "Attention is all you need"; Marian's translators | transformers |
//! | [`resnet`] | ResNet-18, 34, 50, 101, 152 | torchvision, timm |
//! | [`t5`] | T5, T5 1.1, Flan-T5 | transformers |
//! | [`unet`] | UNet for diffusion | diffusers |
//! | [`vit`] | Vision Transformer | transformers |
//!
//! [`Pretrained`] loads a downloaded folder, with a new head for another task, and saves folders.
//! [`AutoModelForSequenceClassification`] loads a classifier of the family that the folder's config
//! names.

// A single family leaves some of the shared code unused.
#![cfg_attr(
    not(all(
        feature = "bert",
        feature = "convnext",
        feature = "decoder",
        feature = "gpt2",
        feature = "unet",
        feature = "vit"
    )),
    allow(dead_code, unused_imports)
)]

mod activation;
mod attention;
#[cfg(feature = "bert")]
mod auto_model;
#[cfg(feature = "bert")]
pub mod bert;
#[cfg(feature = "biggan")]
pub mod biggan;
#[cfg(feature = "convnext")]
pub mod convnext;
#[cfg(feature = "dcgan")]
pub mod dcgan;
#[cfg(feature = "decoder")]
pub mod decoder;
#[cfg(any(feature = "marian", feature = "t5"))]
mod encoder_decoder;
mod error;
mod generate;
#[cfg(feature = "gpt2")]
pub mod gpt2;
#[cfg(feature = "inception")]
pub mod inception;
mod init;
mod labels;
mod layers;
mod lora;
#[cfg(feature = "marian")]
pub mod marian;
mod pretrained;
#[cfg(test)]
mod reference;
#[cfg(feature = "resnet")]
pub mod resnet;
#[cfg(feature = "bert")]
pub mod roberta;
mod settings;
#[cfg(feature = "t5")]
pub mod t5;
#[cfg(feature = "unet")]
pub mod unet;
#[cfg(feature = "vit")]
pub mod vit;

pub use activation::Activation;
#[cfg(feature = "bert")]
pub use auto_model::AutoModelForSequenceClassification;
#[cfg(any(feature = "marian", feature = "t5"))]
pub use encoder_decoder::Decoding;
#[doc(inline)]
pub use fulmen_error::{Error, Result};
pub use generate::{
    CausalLm, EncoderTokens, GenerationConfig, Prompt, StaticCache, TokenBytes, generate,
};
pub use labels::Labels;
pub use lora::Lora;
pub use pretrained::Pretrained;

use fulmen_tensor::internal::Library;

/// This crate. In messages, the caller's line replaces a line of this crate.
const MODELS: Library = Library::new(file!());

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
