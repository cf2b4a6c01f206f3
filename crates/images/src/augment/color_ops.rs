//! Transforms that are applied with a probability `p` and have no other randomness.
//!
//! Out of scope: transforms with random parameters.

use super::{check_probability, with_name};
use crate::{Image, ImageTransform, functional};
use fulmen_data::{Result, SampleRng};

macro_rules! choice {
    (
        $(#[$doc:meta])*
        $name:ident($($(#[$parameter_doc:meta])* $parameter:ident: $type:ty)?), $default:literal, $apply:expr
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        #[must_use]
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

            /// Sets the probability.
            pub fn p(mut self, p: f64) -> $name {
                self.p = p;
                self
            }
        }

        impl ImageTransform for $name {
            super::changes_only_the_image!();

            fn check(&self) -> Result<()> {
                check_probability(stringify!($name), self.p)?;
                // If an image of one pixel causes an error, all images do.
                let apply: fn(&$name, Image) -> Result<Image> = $apply;
                with_name(stringify!($name), Image::new(1, 1, 1, vec![0]).and_then(|pixel| apply(self, pixel))).map(|_| ())
            }

            fn apply(&self, image: Image, random: &mut SampleRng) -> Result<Image> {
                self.check()?;
                let apply: fn(&$name, Image) -> Result<Image> = $apply;
                if random.bernoulli(self.p) { apply(self, image) } else { Ok(image) }
            }

            fn describe(&self) -> String {
                let parameters = [$(format!("{}={}, ", stringify!($parameter), self.$parameter),)? format!("p={}", self.p)];
                format!("{}({})", stringify!($name), parameters.concat())
            }
        }
    };
}

choice! {
    /// Makes an image gray and keeps its number of channels.
    RandomGrayscale(), 0.1, |_, image| {
        let channels = image.channels();
        functional::rgb_to_grayscale(image, channels)
    }
}

choice! {
    /// Inverts an image's colors.
    RandomInvert(), 0.5, |_, image| Ok(functional::invert(image))
}

choice! {
    /// Keeps the highest bits of each value.
    RandomPosterize(
        /// Keeps `bits` bits, from 0 to 8.
        bits: u32
    ), 0.5, |this, image| functional::posterize(image, this.bits)
}

choice! {
    /// Inverts the values above a threshold.
    RandomSolarize(
        /// Inverts all values of at least `threshold`.
        threshold: f64
    ), 0.5, |this, image| functional::solarize(image, this.threshold)
}

choice! {
    /// Stretches each channel to the full range from 0 to 255.
    RandomAutocontrast(), 0.5, |_, image| Ok(functional::autocontrast(image))
}

choice! {
    /// Equalizes the histogram of each channel.
    RandomEqualize(), 0.5, |_, image| Ok(functional::equalize(image))
}

choice! {
    /// Makes an image sharper or softer.
    RandomAdjustSharpness(
        /// A `sharpness_factor` of 0 gives a soft image, 1 the original, 2 a sharper one.
        sharpness_factor: f64
    ), 0.5, |this, image| functional::adjust_sharpness(image, this.sharpness_factor)
}
