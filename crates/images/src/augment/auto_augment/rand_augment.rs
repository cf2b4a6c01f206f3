//! RandAugment (Cubuk, Zoph, Shlens and Le, 2019, <https://arxiv.org/abs/1909.13719>).
//!
//! Out of scope: the operations (`operation`).

use super::operation::{CHOICES, MagnitudeSpace};
use crate::augment::{options, resampling_options, with_name};
use crate::functional::{Fill, check_interpolation};
use crate::{Image, ImageTransform, Interpolation};
use fulmen_data::{Error, Result, SampleRng};

/// Applies a few operations of the same magnitude, drawn from 14 for each image (torchvision's
/// `RandAugment`).
///
/// ```
/// use fulmen_images::{Image, ImageTransform, RandAugment};
/// use fulmen_data::SampleRng;
///
/// let augment = RandAugment::new().magnitude(15);
/// let image = Image::new(2, 2, 1, vec![0, 80, 160, 240])?;
/// let changed = augment.apply(image, &mut SampleRng::new(0, 0, 0))?;
/// assert_eq!((changed.width(), changed.height()), (2, 2));
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RandAugment {
    num_ops: usize,
    magnitude: usize,
    num_magnitude_bins: usize,
    interpolation: Interpolation,
    fill: Fill,
}

impl Default for RandAugment {
    fn default() -> RandAugment {
        RandAugment {
            num_ops: 2,
            magnitude: 9,
            num_magnitude_bins: 31,
            interpolation: Interpolation::Nearest,
            fill: Fill::default(),
        }
    }
}

impl RandAugment {
    /// Applies 2 operations of magnitude 9 out of 31.
    pub fn new() -> RandAugment {
        RandAugment::default()
    }

    resampling_options!();

    options! {
        /// The number of operations.
        num_ops(num_ops: usize) = num_ops;
        /// The magnitude, below the number of bins.
        magnitude(magnitude: usize) = magnitude;
        /// The number of magnitudes; the last is the strongest.
        num_magnitude_bins(num_magnitude_bins: usize) = num_magnitude_bins;
    }
}

impl ImageTransform for RandAugment {
    fn check(&self) -> Result<()> {
        with_name("RandAugment", check_interpolation(self.interpolation))?;
        if self.magnitude < self.num_magnitude_bins {
            Ok(())
        } else {
            Err(Error::usage(format!(
                "RandAugment: the magnitude is {}, but there are {} magnitudes, counted from 0",
                self.magnitude, self.num_magnitude_bins
            )))
        }
    }

    fn apply(&self, mut image: Image, random: &mut SampleRng) -> Result<Image> {
        self.check()?;
        for _ in 0..self.num_ops {
            let operation = CHOICES[random.below(CHOICES.len())];
            let size = (image.width(), image.height());
            let unsigned = operation.magnitude(
                MagnitudeSpace::Auto,
                self.magnitude,
                self.num_magnitude_bins,
                size,
            );
            let magnitude = operation.with_sign(unsigned, random);
            image = operation.apply(image, magnitude, self.interpolation, &self.fill)?;
        }
        Ok(image)
    }

    fn describe(&self) -> String {
        format!(
            "RandAugment(num_ops={}, magnitude={}, num_magnitude_bins={}, interpolation={}, fill={})",
            self.num_ops, self.magnitude, self.num_magnitude_bins, self.interpolation, self.fill
        )
    }
}
