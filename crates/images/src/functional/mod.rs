//! Deterministic image operations: torchvision's `transforms.v2.functional` on u8 images.
//!
//! Names, parameters and results are those of torchvision's v2 kernels for `uint8` tensors (its PIL
//! kernels round differently), and tests compare the results. Each function documents where its
//! results differ.
//!
//! Images have 1, 3 or 4 channels. With 4 channels, which torchvision mostly rejects, color
//! operations leave alpha unchanged, and geometric operations move alpha with the colors.
//!
//! All arithmetic on pixels uses integers or single IEEE operations, so results are the same on all
//! machines.
//!
//! ```
//! use fulmen_images::{Image, functional};
//!
//! let gray = Image::new(2, 1, 1, vec![100, 200])?;
//! assert_eq!(functional::adjust_brightness(gray, 1.5)?.pixels(), [150, 255]);
//! # Ok::<(), fulmen_data::Error>(())
//! ```
//!
//! Out of scope: random parameters ([`ColorJitter`](super::ColorJitter) and others), decoding,
//! resizing and cropping.

mod affine;
mod color;
mod erase;
mod fill;
mod filter;
mod lut;
mod pad;
mod perspective;
mod tone;
mod warp;

pub use affine::{Affine, affine, affine_boxes, rotate, rotate_boxes};
pub use color::{
    adjust_brightness, adjust_contrast, adjust_gamma, adjust_hue, adjust_saturation,
    rgb_to_grayscale,
};
pub use erase::{Rectangle, erase};
pub use fill::Fill;
pub(super) use filter::check_gaussian;
pub use filter::{adjust_sharpness, gaussian_blur};
pub use pad::{Padding, PaddingMode, pad};
pub(super) use perspective::is_possible;
pub use perspective::{Corners, perspective};
pub use tone::{autocontrast, equalize, invert, posterize, solarize};
pub(super) use warp::check_interpolation;

use fulmen_data::{Error, Result};

/// Rejects a factor that is negative or NaN.
fn check_factor(name: &str, factor: f64) -> Result<()> {
    if factor.is_finite() && factor >= 0.0 {
        Ok(())
    } else {
        Err(Error::usage(format!(
            "the {name} is {factor}; it must be at least 0; 1 changes nothing"
        )))
    }
}

/// Rejects a number that is not finite.
pub(super) fn check_finite(name: &str, value: f64) -> Result<()> {
    if value.is_finite() {
        Ok(())
    } else {
        Err(Error::usage(format!("the {name} is {value}; it must be a finite number")))
    }
}
