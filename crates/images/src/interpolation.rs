//! The interpolation of resized images.
//!
//! Out of scope: the resampling.

use std::fmt;

/// The kernel for resizing images. When an image gets smaller, every kernel except
/// [`Nearest`](Interpolation::Nearest) is widened by the same factor ("antialias"), as in Pillow
/// and optionally in torchvision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Interpolation {
    /// The nearest pixel.
    Nearest,
    /// A triangle over 2 pixels.
    #[default]
    Bilinear,
    /// Cubic with a = -0.5 over 4 pixels, like Pillow's.
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
