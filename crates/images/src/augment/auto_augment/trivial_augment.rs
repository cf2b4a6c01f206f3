//! TrivialAugment (Müller and Hutter, 2021, <https://arxiv.org/abs/2103.10158>).
//!
//! Out of scope: the operations (`operation`).

use super::operation::{CHOICES, MagnitudeSpace};
use crate::augment::{options, resampling_options, with_name};
use crate::functional::{Fill, check_interpolation};
use crate::{Image, ImageTransform, Interpolation};
use fulmen_data::{Error, Result, SampleRng};

/// Applies one operation, drawn from 14 for each image, with a random magnitude, which may be very
/// strong (torchvision's `TrivialAugmentWide`). It has no parameters to tune.
#[derive(Clone, Debug, PartialEq)]
pub struct TrivialAugmentWide {
    num_magnitude_bins: usize,
    interpolation: Interpolation,
    fill: Fill,
}

impl Default for TrivialAugmentWide {
    fn default() -> TrivialAugmentWide {
        TrivialAugmentWide {
            num_magnitude_bins: 31,
            interpolation: Interpolation::Nearest,
            fill: Fill::default(),
        }
    }
}

impl TrivialAugmentWide {
    /// Draws from 31 magnitudes.
    pub fn new() -> TrivialAugmentWide {
        TrivialAugmentWide::default()
    }

    resampling_options!();

    options! {
        /// The number of magnitudes.
        num_magnitude_bins(num_magnitude_bins: usize) = num_magnitude_bins;
    }
}

impl ImageTransform for TrivialAugmentWide {
    fn check(&self) -> Result<()> {
        with_name("TrivialAugmentWide", check_interpolation(self.interpolation))?;
        match self.num_magnitude_bins {
            0 => Err(Error::usage(
                "TrivialAugmentWide: there are 0 magnitudes; there must be at least 1",
            )),
            _ => Ok(()),
        }
    }

    fn apply(&self, image: Image, random: &mut SampleRng) -> Result<Image> {
        self.check()?;
        let operation = CHOICES[random.below(CHOICES.len())];
        let bin = random.below(self.num_magnitude_bins);
        let size = (image.width(), image.height());
        let unsigned =
            operation.magnitude(MagnitudeSpace::Wide, bin, self.num_magnitude_bins, size);
        let magnitude = operation.with_sign(unsigned, random);
        operation.apply(image, magnitude, self.interpolation, &self.fill)
    }

    fn describe(&self) -> String {
        format!(
            "TrivialAugmentWide(num_magnitude_bins={}, interpolation={}, fill={})",
            self.num_magnitude_bins, self.interpolation, self.fill
        )
    }
}
