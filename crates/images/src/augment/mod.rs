//! Random augmentation: torchvision's random transforms as
//! [`ImageTransform`](super::ImageTransform)s.
//!
//! Names, parameters, defaults and effects are those of torchvision's `transforms.v2`. The random
//! numbers differ: they belong to the sample ([`SampleRng`](fulmen_data::SampleRng)), so an image
//! is always changed in the same way in the same epoch.
//!
//! Out of scope: the operations on pixels ([`functional`](super::functional)), cropping and
//! flipping (`ImagePipeline`), and mixing the images of a batch (`fulmen_nn::augment`).

mod auto_augment;
mod color_jitter;
mod color_ops;
mod containers;
mod factor_range;
mod gaussian_blur;
mod geometry;
mod pad;
mod random_erasing;

pub use auto_augment::{AutoAugment, AutoAugmentPolicy, RandAugment, TrivialAugmentWide};
pub use color_jitter::ColorJitter;
pub use color_ops::{
    RandomAdjustSharpness, RandomAutocontrast, RandomEqualize, RandomGrayscale, RandomInvert,
    RandomPosterize, RandomSolarize,
};
pub use containers::{RandomApply, RandomChoice, RandomOrder};
pub use factor_range::FactorRange;
pub use gaussian_blur::GaussianBlur;
pub use geometry::{RandomAffine, RandomPerspective, RandomRotation};
pub use pad::Pad;
pub use random_erasing::{ErasingValue, RandomErasing};

use fulmen_data::{Error, Result};

/// Defines setter methods, one option each: `name(arguments) = value`.
macro_rules! options {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),+) = $value:expr;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, $($argument: $type),+) -> Self {
            self.$name = $value;
            self
        }
    )*};
}
use options;

/// Defines the options of transforms that resample: the interpolation and the fill.
macro_rules! resampling_options {
    () => {
        $crate::augment::options! {
            /// How values between pixels are interpolated.
            interpolation(interpolation: Interpolation) = interpolation;
            /// The color outside the image; black unless set.
            fill(fill: impl Into<Fill>) = fill.into();
        }
    };
}
use resampling_options;

/// Implements `apply_pair` for a transform that does not move pixels.
macro_rules! changes_only_the_image {
    () => {
        fn apply_pair(
            &self,
            mut pair: $crate::Pair,
            random: &mut fulmen_data::SampleRng,
        ) -> fulmen_data::Result<$crate::Pair> {
            pair.image = self.apply(pair.image, random)?;
            Ok(pair)
        }
    };
}
use changes_only_the_image;

/// Rejects numbers that are not probabilities.
fn check_probability(transform: &str, p: f64) -> Result<()> {
    if (0.0..=1.0).contains(&p) {
        Ok(())
    } else {
        Err(Error::usage(format!("{transform}: the probability p is {p}; it must be from 0 to 1")))
    }
}

/// Adds the name of the transform to an error.
fn with_name<T>(transform: &str, result: Result<T>) -> Result<T> {
    result.map_err(|error| {
        if error.is_usage() { Error::usage(format!("{transform}: {error}")) } else { error }
    })
}
