//! RandAugment (Cubuk, Zoph, Shlens and Le, 2019, <https://arxiv.org/abs/1909.13719>).
//!
//! Not here: what the operations do (`operation`).

use super::operation::{CHOICES, Space};
use crate::augment::{named, options, outside_options};
use crate::functional::{Fill, check_interpolation};
use crate::{Interpolation, Picture, PictureTransform};
use fulmen_data::{Error, Result, SampleRandom};

/// Does a few operations, drawn from 14 for each picture, all of one magnitude (torchvision's `RandAugment`).
///
/// ```
/// use fulmen_images::{Picture, PictureTransform, RandAugment};
/// use fulmen_data::SampleRandom;
///
/// let augment = RandAugment::new().magnitude(15);
/// let picture = Picture::new(2, 2, 1, vec![0, 80, 160, 240])?;
/// let changed = augment.apply(picture, &mut SampleRandom::new(0, 0, 0))?;
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
    /// 2 operations of magnitude 9 of 31.
    pub fn new() -> RandAugment {
        RandAugment::default()
    }

    outside_options!();

    options! {
        /// Another number of operations.
        num_ops(num_ops: usize) = num_ops;
        /// Another magnitude, below the number of bins.
        magnitude(magnitude: usize) = magnitude;
        /// Another number of magnitudes, the last of which is the strongest.
        num_magnitude_bins(num_magnitude_bins: usize) = num_magnitude_bins;
    }
}

impl PictureTransform for RandAugment {
    fn check(&self) -> Result<()> {
        named("RandAugment", check_interpolation(self.interpolation))?;
        match self.magnitude < self.num_magnitude_bins {
            true => Ok(()),
            false => Err(Error::usage(format!(
                "RandAugment: the magnitude is {}, but there are {} magnitudes, counted from 0",
                self.magnitude, self.num_magnitude_bins
            ))),
        }
    }

    fn apply(&self, mut picture: Picture, random: &mut SampleRandom) -> Result<Picture> {
        self.check()?;
        for _ in 0..self.num_ops {
            let operation = CHOICES[random.below(CHOICES.len())];
            let size = (picture.width(), picture.height());
            let magnitude = operation.magnitude(Space::Auto, self.magnitude, self.num_magnitude_bins, size);
            let magnitude = operation.with_sign(magnitude, random);
            picture = operation.apply(picture, magnitude, self.interpolation, &self.fill)?;
        }
        Ok(picture)
    }

    fn describe(&self) -> String {
        format!(
            "RandAugment(num_ops={}, magnitude={}, num_magnitude_bins={}, interpolation={}, fill={})",
            self.num_ops, self.magnitude, self.num_magnitude_bins, self.interpolation, self.fill
        )
    }
}
