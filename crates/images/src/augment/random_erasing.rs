//! Random erasing (Zhong and others, 2017, <https://arxiv.org/abs/1708.04896>).
//!
//! Out of scope: random erasing of batches on the device (`fulmen_nn::augment`).

use super::{check_probability, options};
use crate::functional::{self, Fill, Rectangle};
use crate::{Image, ImageTransform};
use fulmen_data::{Error, Result, SampleRng};

/// What an erased rectangle is filled with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErasingValue {
    /// A color.
    Constant(Fill),
    /// A uniform random number from 0 to 255 for each value of each pixel. torchvision draws from a
    /// normal distribution, which makes sense only after a normalization.
    Random,
    /// The mean color of the image.
    Mean,
}

impl<F: Into<Fill>> From<F> for ErasingValue {
    fn from(fill: F) -> ErasingValue {
        ErasingValue::Constant(fill.into())
    }
}

/// Erases a rectangle of an image (torchvision's `RandomErasing`).
///
/// Draws up to ten rectangles until one is smaller than the image in both directions. If none is,
/// the image stays the same.
///
/// ```
/// use fulmen_images::{ErasingValue, ImageTransform, RandomErasing};
///
/// let erasing = RandomErasing::new().p(0.25).value(ErasingValue::Mean);
/// assert_eq!(erasing.describe(), "RandomErasing(p=0.25, scale=0.02..0.33, ratio=0.3..3.3, value=Mean)");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RandomErasing {
    p: f64,
    scale: (f64, f64),
    ratio: (f64, f64),
    value: ErasingValue,
}

impl Default for RandomErasing {
    fn default() -> RandomErasing {
        RandomErasing {
            p: 0.5,
            scale: (0.02, 0.33),
            ratio: (0.3, 3.3),
            value: ErasingValue::from(0),
        }
    }
}

impl RandomErasing {
    /// Erases with the probability 0.5. The rectangle covers 0.02 to 0.33 of the image, is 0.3 to
    /// 3.3 times as high as wide, and is filled with black.
    pub fn new() -> RandomErasing {
        RandomErasing::default()
    }

    options! {
        /// Sets the probability.
        p(p: f64) = p;
        /// The range of the erased fraction of the image's area, within 0 to 1.
        scale(least: f64, most: f64) = (least, most);
        /// The range of height divided by width, above 0.
        ratio(least: f64, most: f64) = (least, most);
        /// The fill: a color, or an [`ErasingValue`].
        value(value: impl Into<ErasingValue>) = value.into();
    }

    /// Draws the rectangle to erase; `None` if no drawn rectangle fits.
    fn rectangle(&self, image: &Image, random: &mut SampleRng) -> Option<Rectangle> {
        let height = image.height();
        let width = image.width();
        for _ in 0..10 {
            let area = (height * width) as f64 * random.uniform(self.scale.0, self.scale.1);
            let ratio = random.uniform(self.ratio.0.ln(), self.ratio.1.ln()).exp();
            let erased_height = (area * ratio).sqrt().round_ties_even() as usize;
            let erased_width = (area / ratio).sqrt().round_ties_even() as usize;
            if erased_height < height && erased_width < width {
                let top = random.below(height - erased_height + 1);
                let left = random.below(width - erased_width + 1);
                return Some(Rectangle { top, left, height: erased_height, width: erased_width });
            }
        }
        None
    }
}

impl ImageTransform for RandomErasing {
    super::changes_only_the_image!();

    fn check(&self) -> Result<()> {
        check_probability("RandomErasing", self.p)?;
        let wrong = |name: &str, (low, high): (f64, f64), requirement: &str| {
            let message = format!(
                "RandomErasing: the {name} goes from {low} to {high}; it must be ascending, "
            );
            Err(Error::usage(message + requirement))
        };
        let (low, high) = self.scale;
        if !(low >= 0.0 && low <= high && high <= 1.0) {
            return wrong("scale", self.scale, "within 0 to 1");
        }
        let (low, high) = self.ratio;
        if !(low > 0.0 && low <= high && high.is_finite()) {
            return wrong("ratio", self.ratio, "above 0");
        }
        Ok(())
    }

    fn apply(&self, image: Image, random: &mut SampleRng) -> Result<Image> {
        self.check()?;
        if !random.bernoulli(self.p) {
            return Ok(image);
        }
        let Some(rectangle) = self.rectangle(&image, random) else { return Ok(image) };
        match &self.value {
            ErasingValue::Constant(fill) => {
                let pixel = fill.pixel(&image)?;
                functional::erase(image, rectangle, |_, _| pixel)
            }
            ErasingValue::Mean => {
                let pixel = mean(&image);
                functional::erase(image, rectangle, |_, _| pixel)
            }
            ErasingValue::Random => {
                functional::erase(image, rectangle, |_, _| (random.next_u64() as u32).to_le_bytes())
            }
        }
    }

    fn describe(&self) -> String {
        let value = match &self.value {
            ErasingValue::Constant(fill) => fill.to_string(),
            other => format!("{other:?}"),
        };
        format!(
            "RandomErasing(p={}, scale={}..{}, ratio={}..{}, value={value})",
            self.p, self.scale.0, self.scale.1, self.ratio.0, self.ratio.1
        )
    }
}

/// The mean of each channel, rounded.
fn mean(image: &Image) -> [u8; 4] {
    let mut sums = [0u64; 4];
    for pixel in image.pixels().chunks_exact(image.channels().max(1)) {
        sums.iter_mut().zip(pixel).for_each(|(sum, &value)| *sum += u64::from(value));
    }
    let pixels = (image.width() * image.height()).max(1) as u64;
    sums.map(|sum| ((sum + pixels / 2) / pixels) as u8)
}
