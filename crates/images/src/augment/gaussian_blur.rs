//! Blur of random strength.
//!
//! Out of scope: the convolution (`functional`).

use super::factor_range::{FactorRange, draw};
use super::{options, with_name};
use crate::functional::{self, check_gaussian};
use crate::{Image, ImageTransform};
use fulmen_data::{Error, Result, SampleRng};

/// Blurs an image with a Gaussian of random standard deviation (torchvision's `GaussianBlur`). To
/// apply it with a probability, use [`RandomApply`](super::RandomApply).
#[derive(Clone, Debug, PartialEq)]
pub struct GaussianBlur {
    kernel_size: (usize, usize),
    sigma: FactorRange,
}

impl GaussianBlur {
    /// Blurs with a kernel of `kernel_size` x `kernel_size`, which must be odd, and a standard
    /// deviation from 0.1 to 2 pixels.
    pub fn new(kernel_size: usize) -> GaussianBlur {
        GaussianBlur {
            kernel_size: (kernel_size, kernel_size),
            sigma: FactorRange::Range(0.1, 2.0),
        }
    }

    options! {
        /// Sets the width and height of the kernel.
        kernel_size(width: usize, height: usize) = (width, height);
        /// The standard deviation: one number, or a range to draw it from.
        sigma(sigma: impl Into<FactorRange>) = sigma.into();
    }

    fn range(&self) -> (f64, f64) {
        match self.sigma {
            FactorRange::One(sigma) => (sigma, sigma),
            FactorRange::Range(from, to) => (from, to),
        }
    }
}

impl ImageTransform for GaussianBlur {
    super::changes_only_the_image!();

    fn check(&self) -> Result<()> {
        let (from, to) = self.range();
        if from > to {
            let message =
                format!("GaussianBlur: sigma goes from {from} to {to}; it must be ascending");
            return Err(Error::usage(message));
        }
        with_name("GaussianBlur", check_gaussian(self.kernel_size, (from, to)))
    }

    fn apply(&self, image: Image, random: &mut SampleRng) -> Result<Image> {
        self.check()?;
        let sigma = draw(random, self.range());
        with_name(
            "GaussianBlur",
            functional::gaussian_blur(image, self.kernel_size, (sigma, sigma)),
        )
    }

    fn describe(&self) -> String {
        format!(
            "GaussianBlur(kernel_size={}x{}, sigma={})",
            self.kernel_size.0, self.kernel_size.1, self.sigma
        )
    }
}
