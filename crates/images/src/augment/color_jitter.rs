//! Random changes of brightness, contrast, saturation and hue.
//!
//! Out of scope: the adjustments (`functional`).

use super::factor_range::{FactorRange, draw};
use super::{options, with_name};
use crate::{Image, ImageTransform, functional};
use fulmen_data::{Result, SampleRng};

/// Changes brightness, contrast, saturation and hue, each by its own factor, in random order
/// (torchvision's `ColorJitter`). Properties that are not set stay the same.
///
/// Gray images keep their saturation and hue; alpha stays the same.
///
/// ```
/// use fulmen_images::{ColorJitter, Image, ImageTransform};
/// use fulmen_data::SampleRng;
///
/// let jitter = ColorJitter::new().brightness(0.4).contrast((0.8, 1.5)).hue(0.1);
/// let image = Image::new(1, 1, 3, vec![200, 100, 50])?;
/// let once = jitter.apply(image.clone(), &mut SampleRng::new(0, 0, 7))?;
/// assert_eq!(jitter.apply(image, &mut SampleRng::new(0, 0, 7))?.pixels(), once.pixels());
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ColorJitter {
    brightness: Option<FactorRange>,
    contrast: Option<FactorRange>,
    saturation: Option<FactorRange>,
    hue: Option<FactorRange>,
}

impl ColorJitter {
    /// Starts with a jitter that changes nothing.
    pub fn new() -> ColorJitter {
        ColorJitter::default()
    }

    options! {
        /// The factor of brightness: uniform from `max(0, 1 - amount)` to `1 + amount`, or from the
        /// range.
        brightness(amount: impl Into<FactorRange>) = Some(amount.into());
        /// The factor of contrast, drawn like the factor of brightness.
        contrast(amount: impl Into<FactorRange>) = Some(amount.into());
        /// The factor of saturation, drawn like the factor of brightness.
        saturation(amount: impl Into<FactorRange>) = Some(amount.into());
        /// The shift of the hue as a fraction of the color circle: uniform from `-amount` to
        /// `amount`, at most 0.5, or from the range, within -0.5 to 0.5.
        hue(amount: impl Into<FactorRange>) = Some(amount.into());
    }

    fn factors(&self) -> [(&'static str, Option<FactorRange>); 3] {
        [
            ("brightness", self.brightness),
            ("contrast", self.contrast),
            ("saturation", self.saturation),
        ]
    }
}

impl ImageTransform for ColorJitter {
    super::changes_only_the_image!();

    fn check(&self) -> Result<()> {
        for (name, amount) in self.factors() {
            with_name(
                "ColorJitter",
                amount.map_or(Ok(()), |amount| amount.check(name, 1.0, (0.0, f64::INFINITY))),
            )?;
        }
        with_name(
            "ColorJitter",
            self.hue.map_or(Ok(()), |amount| amount.check("hue", 0.0, (-0.5, 0.5))),
        )
    }

    fn apply(&self, mut image: Image, random: &mut SampleRng) -> Result<Image> {
        self.check()?;
        let mut order = [0, 1, 2, 3];
        random.shuffle(&mut order);
        let [brightness, contrast, saturation] = self
            .factors()
            .map(|(_, amount)| amount.map(|amount| draw(random, amount.around(1.0, 0.0))));
        let hue = self.hue.map(|amount| draw(random, amount.around(0.0, f64::NEG_INFINITY)));
        for step in order {
            image = match (step, brightness, contrast, saturation, hue) {
                (0, Some(factor), ..) => functional::adjust_brightness(image, factor)?,
                (1, _, Some(factor), ..) => functional::adjust_contrast(image, factor)?,
                (2, _, _, Some(factor), _) => functional::adjust_saturation(image, factor)?,
                (3, .., Some(factor)) => functional::adjust_hue(image, factor)?,
                _ => image,
            };
        }
        Ok(image)
    }

    fn describe(&self) -> String {
        let mut set = Vec::new();
        for (name, amount) in self.factors().into_iter().chain([("hue", self.hue)]) {
            set.extend(amount.map(|amount| format!("{name}={amount}")));
        }
        format!("ColorJitter({})", set.join(", "))
    }
}
