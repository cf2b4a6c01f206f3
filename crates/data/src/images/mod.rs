//! Pictures: from the bytes of files to `u8` values in a batch.
//!
//! A `Pictures` pipeline has a geometric head (crop, resize, flip), which the decoder is told, so that it decodes no more
//! than is needed, and after it any [`PictureTransform`]s.
//!
//! Not here: where the bytes come from (`image_folder`, tar shards, tables), and what is done on the device.

mod augment;
pub mod functional;
mod interpolation;
mod picture;
mod transform;

pub use augment::{
    Amount, AutoAugment, AutoAugmentPolicy, ColorJitter, ErasingValue, GaussianBlur, Pad, RandAugment,
    RandomAdjustSharpness, RandomAffine, RandomApply, RandomAutocontrast, RandomChoice, RandomEqualize, RandomErasing,
    RandomGrayscale, RandomInvert, RandomOrder, RandomPerspective, RandomPosterize, RandomRotation, RandomSolarize,
    TrivialAugmentWide,
};
pub use interpolation::Interpolation;
pub use picture::Picture;
pub use transform::PictureTransform;
