//! How an image is sampled where the old pixels are not the new ones.
//!
//! Not here: the sampling.

use std::fmt;

/// The kernel with which images are resized. When an image gets smaller, every kernel but the nearest is widened by the
/// same factor ("antialias"), as Pillow does and torchvision on request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Interpolation {
    /// The nearest pixel.
    Nearest,
    /// A triangle over 2 pixels.
    #[default]
    Bilinear,
    /// Cubic with a = -0.5 over 4 pixels, as Pillow has it.
    Bicubic,
    /// A windowed sinc over 6 pixels.
    Lanczos,
}

impl fmt::Display for Interpolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Interpolation::Nearest => "nearest",
            Interpolation::Bilinear => "bilinear",
            Interpolation::Bicubic => "bicubic",
            Interpolation::Lanczos => "lanczos",
        })
    }
}
