//! The operations that the policies choose from, and their magnitudes.
//!
//! Out of scope: which operation a policy chooses.

use crate::functional::{self, Affine, Fill};
use crate::{Image, Interpolation};
use fulmen_data::{Result, SampleRng};

/// An operation of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
    Invert,
}

/// The operations that RandAugment and TrivialAugment choose from, in torchvision's order.
pub(super) const CHOICES: [Operation; 14] = [
    Operation::Identity,
    Operation::ShearX,
    Operation::ShearY,
    Operation::TranslateX,
    Operation::TranslateY,
    Operation::Rotate,
    Operation::Brightness,
    Operation::Color,
    Operation::Contrast,
    Operation::Sharpness,
    Operation::Posterize,
    Operation::Solarize,
    Operation::AutoContrast,
    Operation::Equalize,
];

/// The ranges of magnitudes.
#[derive(Clone, Copy, Debug)]
pub(super) enum MagnitudeSpace {
    /// The ranges of AutoAugment and RandAugment.
    Auto,
    /// The wider ranges of TrivialAugment.
    Wide,
}

impl Operation {
    /// The magnitude with index `bin` of `bins` for an image of `size` (width, height). Magnitudes
    /// are in the unit of the operation and go from the weakest to the strongest, with
    /// torchvision's spacing.
    pub(super) fn magnitude(
        self,
        space: MagnitudeSpace,
        bin: usize,
        bins: usize,
        size: (usize, usize),
    ) -> f64 {
        // With a single bin, torch's linspace returns only the start of the range.
        let part = if bins > 1 { bin as f64 / (bins - 1) as f64 } else { 0.0 };
        let (shear, rotate, factor, posterize) = match space {
            MagnitudeSpace::Auto => (0.3, 30.0, 0.9, 4.0),
            MagnitudeSpace::Wide => (0.99, 135.0, 0.99, 6.0),
        };
        let translate = |size: usize| match space {
            MagnitudeSpace::Auto => 150.0 / 331.0 * size as f64,
            MagnitudeSpace::Wide => 32.0,
        };
        match self {
            Operation::ShearX | Operation::ShearY => shear * part,
            Operation::TranslateX => translate(size.0) * part,
            Operation::TranslateY => translate(size.1) * part,
            Operation::Rotate => rotate * part,
            Operation::Brightness
            | Operation::Color
            | Operation::Contrast
            | Operation::Sharpness => factor * part,
            Operation::Posterize => (8.0 - posterize * part).round_ties_even(),
            Operation::Solarize => 1.0 - part,
            Operation::Identity
            | Operation::AutoContrast
            | Operation::Equalize
            | Operation::Invert => 0.0,
        }
    }

    /// Whether the sign of the magnitude is random.
    fn is_signed(self) -> bool {
        !matches!(
            self,
            Operation::Identity
                | Operation::Posterize
                | Operation::Solarize
                | Operation::AutoContrast
                | Operation::Equalize
                | Operation::Invert
        )
    }

    /// Returns the magnitude, with a random sign if the operation is signed.
    pub(super) fn with_sign(self, magnitude: f64, random: &mut SampleRng) -> f64 {
        if self.is_signed() && random.bernoulli(0.5) { -magnitude } else { magnitude }
    }

    /// Applies the operation.
    pub(super) fn apply(
        self,
        image: Image,
        magnitude: f64,
        interpolation: Interpolation,
        fill: &Fill,
    ) -> Result<Image> {
        let mapped = |map: Affine| functional::affine(&image, &map, interpolation, fill);
        // For a shear, the magnitude is the shift per row, with the upper left corner fixed.
        let lean = magnitude.atan().to_degrees();
        let corner = Some((0.0, 0.0));
        match self {
            Operation::Identity => Ok(image),
            Operation::ShearX => {
                mapped(Affine { shear: (lean, 0.0), center: corner, ..Affine::default() })
            }
            Operation::ShearY => {
                mapped(Affine { shear: (0.0, lean), center: corner, ..Affine::default() })
            }
            Operation::TranslateX => {
                mapped(Affine { translate: (magnitude.trunc(), 0.0), ..Affine::default() })
            }
            Operation::TranslateY => {
                mapped(Affine { translate: (0.0, magnitude.trunc()), ..Affine::default() })
            }
            Operation::Rotate => {
                functional::rotate(&image, magnitude, interpolation, false, None, fill)
            }
            Operation::Brightness => functional::adjust_brightness(image, 1.0 + magnitude),
            Operation::Color => functional::adjust_saturation(image, 1.0 + magnitude),
            Operation::Contrast => functional::adjust_contrast(image, 1.0 + magnitude),
            Operation::Sharpness => functional::adjust_sharpness(image, 1.0 + magnitude),
            Operation::Posterize => functional::posterize(image, magnitude as u32),
            Operation::Solarize => functional::solarize(image, 255.0 * magnitude),
            Operation::AutoContrast => Ok(functional::autocontrast(image)),
            Operation::Equalize => Ok(functional::equalize(image)),
            Operation::Invert => Ok(functional::invert(image)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn magnitudes_are_torchvisions() {
        let size = (224, 100);
        let magnitude =
            |operation: Operation, space, bin| operation.magnitude(space, bin, 31, size);
        assert_eq!(magnitude(Operation::ShearX, MagnitudeSpace::Auto, 30), 0.3);
        assert!(
            (magnitude(Operation::TranslateX, MagnitudeSpace::Auto, 9) - 30.453_172).abs() < 1e-5
        );
        assert!(
            (magnitude(Operation::TranslateY, MagnitudeSpace::Auto, 9) - 13.595_166).abs() < 1e-5
        );
        assert_eq!(magnitude(Operation::Rotate, MagnitudeSpace::Auto, 9), 9.0);
        assert!((magnitude(Operation::Contrast, MagnitudeSpace::Auto, 9) - 0.27).abs() < 1e-9);
        // The values of (8 - (torch.arange(31) / (30 / 4))).round().
        let bits: Vec<f64> = (0..31)
            .step_by(3)
            .map(|bin| magnitude(Operation::Posterize, MagnitudeSpace::Auto, bin))
            .collect();
        assert_eq!(bits, [8.0, 8.0, 7.0, 7.0, 6.0, 6.0, 6.0, 5.0, 5.0, 4.0, 4.0]);
        assert!((magnitude(Operation::Solarize, MagnitudeSpace::Auto, 9) - 0.7).abs() < 1e-9);
        assert_eq!(magnitude(Operation::TranslateY, MagnitudeSpace::Wide, 30), 32.0);
        assert_eq!(magnitude(Operation::Rotate, MagnitudeSpace::Wide, 30), 135.0);
        assert_eq!(magnitude(Operation::Posterize, MagnitudeSpace::Wide, 30), 2.0);
        assert_eq!(magnitude(Operation::Color, MagnitudeSpace::Wide, 30), 0.99);
    }

    #[test]
    fn half_of_the_signed_magnitudes_turn_round() {
        let mut random = SampleRng::new(0, 0, 0);
        let negative =
            (0..2000).filter(|_| Operation::Rotate.with_sign(1.0, &mut random) < 0.0).count();
        assert!((900..1100).contains(&negative), "{negative} of 2000");
        assert!((0..100).all(|_| Operation::Solarize.with_sign(1.0, &mut random) > 0.0));
    }
}
