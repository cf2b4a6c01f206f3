//! Images: from the bytes of files to `u8` values in a batch.
//!
//! An [`ImagePipeline`] starts with crops, resizes and flips. They are passed to the decoder, so
//! that it decodes only what is needed. Other [`ImageTransform`]s follow. A [`PairPipeline`] moves the
//! mask and the boxes of an image with it.
//!
//! Out of scope: the sources of the bytes (tar shards, tables), and augmentation on the device.

mod augment;
mod cifar;
mod decode;
mod encode;
mod encoded;
mod exif;
pub mod functional;
mod geometry;
mod image;
mod image_folder;
mod image_splits;
mod interpolation;
mod jpeg;
mod mask;
mod mnist;
mod pair;
mod pair_pipeline;
mod pipeline;
mod png;
mod render;
mod resize;
mod transform;
mod webp;

pub use augment::{
    AutoAugment, AutoAugmentPolicy, ColorJitter, ErasingValue, FactorRange, GaussianBlur, Pad,
    RandAugment, RandomAdjustSharpness, RandomAffine, RandomApply, RandomAutocontrast,
    RandomChoice, RandomEqualize, RandomErasing, RandomGrayscale, RandomInvert, RandomOrder,
    RandomPerspective, RandomPosterize, RandomRotation, RandomSolarize, TrivialAugmentWide,
};
pub use cifar::Cifar;
pub use decode::Header;
pub use encode::{Encoding, encode_image};
pub use encoded::{EncodedImage, ImageDataset};
pub use geometry::ImageSize;
pub use image::Image;
pub use image_folder::ImageFolder;
pub use image_splits::ImageSplits;
pub use interpolation::Interpolation;
pub use jpeg::jpeg_decoder;
pub use pair::{BoundingBox, Pair};
pub use pair_pipeline::PairPipeline;
pub use pipeline::ImagePipeline;
pub use transform::ImageTransform;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
