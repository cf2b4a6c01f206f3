//! Pictures: from the bytes of files to `u8` values in a batch.
//!
//! A [`Pictures`] pipeline has a geometric head (crop, resize, flip), which the decoder is told, so that it decodes no more
//! than is needed, and after it any [`PictureTransform`]s.
//!
//! Not here: where the bytes come from (`image_folder`, tar shards, tables), and what is done on the device.

mod augment;
mod cifar;
mod decode;
mod encode;
mod encoded;
mod exif;
pub mod functional;
mod geometry;
mod image_folder;
mod image_splits;
mod interpolation;
mod jpeg;
mod mnist;
mod picture;
mod pictures;
mod pipeline;
mod png;
mod resize;
mod transform;
mod webp;

pub use augment::{
    Amount, AutoAugment, AutoAugmentPolicy, ColorJitter, ErasingValue, GaussianBlur, Pad, RandAugment,
    RandomAdjustSharpness, RandomAffine, RandomApply, RandomAutocontrast, RandomChoice, RandomEqualize, RandomErasing,
    RandomGrayscale, RandomInvert, RandomOrder, RandomPerspective, RandomPosterize, RandomRotation, RandomSolarize,
    TrivialAugmentWide,
};
pub use cifar::Cifar;
pub use decode::Header;
pub use encode::{Encoding, encode_picture};
pub use encoded::{EncodedImage, PictureDataset};
pub use geometry::PictureSize;
pub use image_folder::ImageFolder;
pub use image_splits::ImageSplits;
pub use interpolation::Interpolation;
pub use jpeg::jpeg_decoder;
pub use picture::Picture;
pub use pictures::Pictures;
pub use transform::PictureTransform;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
