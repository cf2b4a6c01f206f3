//! The models of the field, with the parameter names of the Python library that people load them from.
//!
//! Each family is one file and one feature:
//!
//! | module | models | names of |
//! | --- | --- | --- |
//! | `convnext` | ConvNeXt | transformers |
//! | `dcgan` | DCGAN | PyTorch's example |
//! | `resnet` | ResNet-18, 34, 50, 101, 152 | torchvision, timm |
//! | `unet` | UNet for diffusion | diffusers |
//! | `vit` | Vision Transformer | transformers |

mod activation;
mod attention;
#[cfg(feature = "convnext")]
pub mod convnext;
#[cfg(feature = "dcgan")]
pub mod dcgan;
mod error;
mod folder;
mod init;
mod labels;
#[cfg(test)]
mod reference;
#[cfg(feature = "resnet")]
pub mod resnet;
#[cfg(feature = "unet")]
pub mod unet;
#[cfg(feature = "vit")]
pub mod vit;

pub use activation::Activation;
pub use error::{Error, Result};
pub use folder::Pretrained;
pub use labels::labels;

/// This crate, whose lines stand for its users'.
pub(crate) const MODELS: fulmen_tensor::Library = fulmen_tensor::Library::new(file!());

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
