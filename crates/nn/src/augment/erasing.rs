//! Random erasing of the pictures of a batch (Zhong and others, 2017, <https://arxiv.org/abs/1708.04896>).
//!
//! Not here: the same for one picture on the host (`RandomErasing` of the crate's root).

use fulmen_tensor::{AsTensor, DType, Refusal, Tensor, random};

use super::{batch_of_pictures, beforehand, probability};
use crate::record::NN;

/// How many rectangles are drawn before a picture is left alone, as in torchvision.
const TRIES: usize = 10;

/// Paints over a rectangle of each picture with a probability (torchvision's `RandomErasing`), after
/// [`normalize`](super::normalize): with 0, the mean of normalized pictures, or with noise of variance 1.
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
    /// With the probability 0.5, 0.02 to 0.33 of a picture, from 0.3 to 3.3 times as high as wide, with 0.
    pub fn new() -> RandomErasing {
        RandomErasing::default()
    }

    /// Another probability.
    #[must_use]
    pub fn p(mut self, p: f64) -> RandomErasing {
        self.p = p;
        self
    }

    /// Another range of the part of a picture's area that is erased, within 0 to 1.
    #[must_use]
    pub fn scale(mut self, least: f64, most: f64) -> RandomErasing {
        self.scale = (least, most);
        self
    }

    /// Another range of height divided by width, above 0.
    #[must_use]
    pub fn ratio(mut self, least: f64, most: f64) -> RandomErasing {
        self.ratio = (least, most);
        self
    }

    /// Another number that is painted.
    #[must_use]
    pub fn value(mut self, value: f64) -> RandomErasing {
        self.value = value;
        self.random = false;
        self
    }

    /// A normal number of mean 0 and variance 1 for each channel of each pixel.
    #[must_use]
    pub fn random(mut self) -> RandomErasing {
        self.random = true;
        self
    }

    fn check(&self, images: &Tensor) -> Result<[usize; 4], Refusal> {
        let size = batch_of_pictures(images)?;
        probability(self.p)?;
        let ordered = |(least, most): (f64, f64)| least <= most && most.is_finite();
        if !ordered(self.scale) || self.scale.0 < 0.0 || self.scale.1 > 1.0 {
            let message = format!("the scale goes from {} to {}; it must be within 0 to 1", self.scale.0, self.scale.1);
            return Err(message.into());
        }
        if !ordered(self.ratio) || self.ratio.0 <= 0.0 {
            let message = format!("the ratio goes from {} to {}; it must be above 0", self.ratio.0, self.ratio.1);
            return Err(message.into());
        }
        if !images.dtype().is_float() {
            let message = format!("erased pictures are floats, these are {}; normalize them first", images.ty());
            return Err(message.into());
        }
        Ok(size)
    }

    /// The pictures `[N, C, H, W]`, floats, some with a rectangle painted over.
    ///
    /// Poisoned if the images are not such a batch, or by wrong options.
    #[track_caller]
    pub fn apply(&self, key: impl AsTensor, images: impl AsTensor) -> Tensor {
        NN.record("RandomErasing", || {
            let (key, images) = (key.as_tensor(), images.as_tensor());
            let [n, _, height, width] = self.check(images)?;
            let keys = random::split(key, 6);
            let [of_area, of_ratio, of_top, of_left, of_chance, of_noise] = keys.as_slice() else {
                return Ok(images.clone());
            };
            // Ten rectangles each; the first that is smaller than the picture counts.
            let draw = |key: &Tensor, (low, high): (f64, f64), shape: [usize; 2]| {
                // Of a range of one number, that.
                random::uniform(key, DType::F32, shape, 0.0, 1.0) * (high - low) + low
            };
            let area = draw(of_area, self.scale, [n, TRIES]) * (height * width) as f64;
            let ratio = draw(of_ratio, (self.ratio.0.ln(), self.ratio.1.ln()), [n, TRIES]).exp();
            let (heights, widths) = ((&area * &ratio).sqrt().round(), (&area / &ratio).sqrt().round());
            let fits = heights.lt(height as f64).and(widths.lt(width as f64));
            let first = fits.to_dtype(DType::I32).argmax_keepdim(1);
            let chosen = |of: &Tensor| of.take_along_axis(1, &first);
            let (erased_height, erased_width) = (chosen(&heights), chosen(&widths));
            let place = |key: &Tensor, size: usize, erased: &Tensor| {
                let places = -(erased - (size + 1) as f64);
                (random::uniform(key, DType::F32, [n, 1], 0.0, 1.0) * &places).floor().minimum(&places - 1.0)
            };
            let (top, left) = (place(of_top, height, &erased_height), place(of_left, width, &erased_width));
            let done = fits.any_keepdim(&[1]).and(random::bernoulli(of_chance, self.p, [n, 1]));
            let [top, left, erased_height, erased_width] = [top, left, erased_height, erased_width].map(beforehand);
            let done = beforehand(done);

            // Which rows and which columns lie within.
            let within = |axis_shape: [usize; 4], axis: isize, start: &Tensor, length: &Tensor| {
                let shape = [n, 1, 1, 1];
                let place = Tensor::iota(DType::F32, axis_shape, axis);
                place.ge(start.reshape(shape)).and(place.lt((start + length).reshape(shape)))
            };
            let rows = within([n, 1, height, 1], 2, &top, &erased_height).and(done.reshape([n, 1, 1, 1]));
            let columns = within([n, 1, 1, width], 3, &left, &erased_width);
            let shape = images.shape();
            let erased = rows.broadcast_to(shape).and(columns.broadcast_to(shape));
            Ok(match self.random {
                true => erased.select(&random::normal(of_noise, images.dtype(), shape), images),
                false => images.masked_fill(&erased, self.value),
            })
        })
    }
}
