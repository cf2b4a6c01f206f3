//! Transforms that are done or not: each has a probability `p`, and no other chance.
//!
//! Not here: those that draw more than that.

use super::{check_probability, named};
use crate::{Picture, PictureTransform, functional};
use fulmen_data::{Result, SampleRandom};

macro_rules! choice {
    (
        $(#[$doc:meta])*
        $name:ident($($(#[$parameter_doc:meta])* $parameter:ident: $type:ty)?), $default:literal, $apply:expr
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $($parameter: $type,)?
            p: f64,
        }

        impl $name {
            #[doc = concat!("With the probability ", stringify!($default), ".")]
            $($(#[$parameter_doc])*)?
            #[allow(clippy::new_without_default)]
            pub fn new($($parameter: $type)?) -> $name {
                $name { $($parameter,)? p: $default }
            }

            /// With another probability.
            #[must_use]
            pub fn p(mut self, p: f64) -> $name {
                self.p = p;
                self
            }
        }

        impl PictureTransform for $name {
            fn check(&self) -> Result<()> {
                check_probability(stringify!($name), self.p)?;
                // What a picture of one pixel is refused, all are.
                let apply: fn(&$name, Picture) -> Result<Picture> = $apply;
                named(stringify!($name), Picture::new(1, 1, 1, vec![0]).and_then(|pixel| apply(self, pixel))).map(|_| ())
            }

            fn apply(&self, picture: Picture, random: &mut SampleRandom) -> Result<Picture> {
                self.check()?;
                let apply: fn(&$name, Picture) -> Result<Picture> = $apply;
                if random.chance(self.p) { apply(self, picture) } else { Ok(picture) }
            }

            fn describe(&self) -> String {
                let parameters = [$(format!("{}={}, ", stringify!($parameter), self.$parameter),)? format!("p={}", self.p)];
                format!("{}({})", stringify!($name), parameters.concat())
            }
        }
    };
}

choice! {
    /// Makes a picture grey, in as many channels as it has.
    RandomGrayscale(), 0.1, |_, picture| {
        let channels = picture.channels();
        functional::rgb_to_grayscale(picture, channels)
    }
}

choice! {
    /// Inverts a picture's colours.
    RandomInvert(), 0.5, |_, picture| Ok(functional::invert(picture))
}

choice! {
    /// Keeps the highest bits of each value.
    RandomPosterize(
        /// `bits` from 0 to 8 are kept.
        bits: u32
    ), 0.5, |this, picture| functional::posterize(picture, this.bits)
}

choice! {
    /// Inverts the values from a threshold up.
    RandomSolarize(
        /// All values from `threshold` up are inverted.
        threshold: f64
    ), 0.5, |this, picture| functional::solarize(picture, this.threshold)
}

choice! {
    /// Stretches each channel to all values from 0 to 255.
    RandomAutocontrast(), 0.5, |_, picture| Ok(functional::autocontrast(picture))
}

choice! {
    /// Makes all values of each channel about equally frequent.
    RandomEqualize(), 0.5, |_, picture| Ok(functional::equalize(picture))
}

choice! {
    /// Makes a picture sharper or softer.
    RandomAdjustSharpness(
        /// A `sharpness_factor` of 0 gives a soft picture, 1 the same, 2 a sharper one.
        sharpness_factor: f64
    ), 0.5, |this, picture| functional::adjust_sharpness(picture, this.sharpness_factor)
}
