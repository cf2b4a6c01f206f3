//! Random erasing of parts of the images of a batch (Zhong et al. 2017,
//! <https://arxiv.org/abs/1708.04896>).
//!
//! Out of scope: the same for a single image on the host (`RandomErasing` of `fulmen-images`).

use fulmen_tensor::{AsTensor, DType, Refusal, Tensor, random};

use super::{computed_once, image_batch, probability};
use crate::library::NN;

/// How many rectangles are tried before an image is left unchanged, as in torchvision.
const TRIES: usize = 10;

/// Erases a rectangle of each image with a given probability (torchvision's `RandomErasing`). Apply
/// it after [`normalize`](super::normalize). It fills the rectangle with 0, the mean of normalized
/// images, or with noise of variance 1.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomErasing {
    p: f64,
    scale: (f64, f64),
    ratio: (f64, f64),
    value: f64,
    random: bool,
}

impl Default for RandomErasing {
    fn default() -> RandomErasing {
        RandomErasing { p: 0.5, scale: (0.02, 0.33), ratio: (0.3, 3.3), value: 0.0, random: false }
    }
}

impl RandomErasing {
    /// Probability 0.5, an area of 0.02 to 0.33 of the image, an aspect ratio of 0.3 to 3.3, filled
    /// with 0.
    pub fn new() -> RandomErasing {
        RandomErasing::default()
    }

    /// Sets the probability.
    #[must_use]
    pub fn p(mut self, p: f64) -> RandomErasing {
        self.p = p;
        self
    }

    /// Sets the range of the erased fraction of the image area, within 0 to 1.
    #[must_use]
    pub fn scale(mut self, min: f64, max: f64) -> RandomErasing {
        self.scale = (min, max);
        self
    }

    /// Sets the range of the aspect ratio (height divided by width), above 0.
    #[must_use]
    pub fn ratio(mut self, min: f64, max: f64) -> RandomErasing {
        self.ratio = (min, max);
        self
    }

    /// Sets the fill value.
    #[must_use]
    pub fn value(mut self, value: f64) -> RandomErasing {
        self.value = value;
        self.random = false;
        self
    }

    /// Fills with normal noise of mean 0 and variance 1, drawn for each channel of each pixel.
    #[must_use]
    pub fn random(mut self) -> RandomErasing {
        self.random = true;
        self
    }

    fn check(&self, images: &Tensor) -> Result<[usize; 4], Refusal> {
        let size = image_batch(images)?;
        probability(self.p)?;
        let ordered = |(min, max): (f64, f64)| min <= max && max.is_finite();
        if !ordered(self.scale) || self.scale.0 < 0.0 || self.scale.1 > 1.0 {
            let message = format!(
                "the scale goes from {} to {}; it must be within 0 to 1",
                self.scale.0, self.scale.1
            );
            return Err(message.into());
        }
        if !ordered(self.ratio) || self.ratio.0 <= 0.0 {
            let message = format!(
                "the ratio goes from {} to {}; it must be above 0",
                self.ratio.0, self.ratio.1
            );
            return Err(message.into());
        }
        if !images.dtype().is_float() {
            let message = format!(
                "erased images must be floats, but these are {}; normalize them first",
                images.ty()
            );
            return Err(message.into());
        }
        Ok(size)
    }

    /// The images `[N, C, H, W]`, floats, some with an erased rectangle.
    ///
    /// Poisoned if the images are not such a batch, or if the options are invalid.
    #[track_caller]
    pub fn apply(&self, key: impl AsTensor, images: impl AsTensor) -> Tensor {
        NN.record("RandomErasing", || {
            let key = key.as_tensor();
            let images = images.as_tensor();
            let [n, _, height, width] = self.check(images)?;
            let keys = random::split(key, 6);
            let [area_key, ratio_key, top_key, left_key, chance_key, noise_key] = keys.as_slice()
            else {
                return Ok(images.clone());
            };
            // Draws ten rectangles for each image. The first that is smaller than the image is
            // erased.
            let draw = |key: &Tensor, (low, high): (f64, f64), shape: [usize; 2]| {
                // Unlike `uniform(low, high)`, this accepts a range of a single number.
                random::uniform(key, DType::F32, shape, 0.0, 1.0) * (high - low) + low
            };
            let area = draw(area_key, self.scale, [n, TRIES]) * (height * width) as f64;
            let ratio = draw(ratio_key, (self.ratio.0.ln(), self.ratio.1.ln()), [n, TRIES]).exp();
            let heights = (&area * &ratio).sqrt().round();
            let widths = (&area / &ratio).sqrt().round();
            let fits = heights.lt(height as f64).and(widths.lt(width as f64));
            let first = fits.to_dtype(DType::I32).argmax_keepdim(1);
            let chosen = |sizes: &Tensor| sizes.take_along_axis(1, &first);
            let erased_height = chosen(&heights);
            let erased_width = chosen(&widths);
            let draw_position = |key: &Tensor, size: usize, erased: &Tensor| {
                let positions = -(erased - (size + 1) as f64);
                (random::uniform(key, DType::F32, [n, 1], 0.0, 1.0) * &positions)
                    .floor()
                    .minimum(&positions - 1.0)
            };
            let top = draw_position(top_key, height, &erased_height);
            let left = draw_position(left_key, width, &erased_width);
            let is_erased = fits.any_keepdim(1).and(random::bernoulli(chance_key, self.p, [n, 1]));
            let [top, left, erased_height, erased_width] =
                [top, left, erased_height, erased_width].map(computed_once);
            let is_erased = computed_once(is_erased);

            // The rows and columns inside the rectangle.
            let within = |axis_shape: [usize; 4], axis: isize, start: &Tensor, length: &Tensor| {
                let shape = [n, 1, 1, 1];
                let position = Tensor::iota(DType::F32, axis_shape, axis);
                position.ge(start.reshape(shape)).and(position.lt((start + length).reshape(shape)))
            };
            let rows = within([n, 1, height, 1], 2, &top, &erased_height)
                .and(is_erased.reshape([n, 1, 1, 1]));
            let columns = within([n, 1, 1, width], 3, &left, &erased_width);
            let shape = images.shape();
            let erased = rows.broadcast_to(shape).and(columns.broadcast_to(shape));
            Ok(if self.random {
                erased.select(&random::normal(noise_key, images.dtype(), shape), images)
            } else {
                images.masked_fill(&erased, self.value)
            })
        })
    }
}
