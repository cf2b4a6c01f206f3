//! Pictures changed by chance: torchvision's random transforms as [`PictureTransform`](super::PictureTransform)s.
//!
//! Names, parameters, defaults and what happens are those of torchvision's `transforms.v2`; the random numbers are not:
//! they come from the sample's own ([`SampleRandom`](fulmen_data::SampleRandom)), so that a picture of an epoch is always
//! changed in the same way.
//!
//! Not here: what is done to the pixels ([`functional`](super::functional)), cropping and flipping (`Pictures`), and what
//! mixes the pictures of a batch (`fulmen_nn::augment`).

mod amount;
mod auto_augment;
mod choices;
mod color_jitter;
mod containers;
mod gaussian_blur;
mod geometry;
mod pad;
mod random_erasing;

pub use amount::Amount;
pub use auto_augment::{AutoAugment, AutoAugmentPolicy, RandAugment, TrivialAugmentWide};
pub use choices::{
    RandomAdjustSharpness, RandomAutocontrast, RandomEqualize, RandomGrayscale, RandomInvert, RandomPosterize,
    RandomSolarize,
};
pub use color_jitter::ColorJitter;
pub use containers::{RandomApply, RandomChoice, RandomOrder};
pub use gaussian_blur::GaussianBlur;
pub use geometry::{RandomAffine, RandomPerspective, RandomRotation};
pub use pad::Pad;
pub use random_erasing::{ErasingValue, RandomErasing};

use fulmen_data::{Error, Result};

/// Methods that set one option each: `name(arguments) = value`.
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

/// The options of what moves pixels: how those between pixels are found, and what comes from outside.
macro_rules! outside_options {
    () => {
        $crate::augment::options! {
            /// How values between pixels are found.
            interpolation(interpolation: Interpolation) = interpolation;
            /// The colour of what comes from outside the picture; black if not set.
            fill(fill: impl Into<Fill>) = fill.into();
        }
    };
}
use outside_options;

/// Refuses what is not a probability.
fn check_probability(transform: &str, p: f64) -> Result<()> {
    match (0.0..=1.0).contains(&p) {
        true => Ok(()),
        false => Err(Error::usage(format!("{transform}: the probability p is {p}; it must be from 0 to 1"))),
    }
}

/// The same error with the name of the transform in front.
fn named<T>(transform: &str, result: Result<T>) -> Result<T> {
    result.map_err(|error| match error.is_usage() {
        true => Error::usage(format!("{transform}: {error}")),
        false => error,
    })
}
