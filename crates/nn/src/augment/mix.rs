//! MixUp (Zhang et al. 2017, <https://arxiv.org/abs/1710.09412>) and CutMix (Yun et al. 2019,
//! <https://arxiv.org/abs/1905.04899>): mix each image of a batch with another one, and their
//! targets likewise.
//!
//! Out of scope: the loss, which must accept soft targets (`CrossEntropyLoss` of `fulmen_nn`).

use fulmen_tensor::internal::{IndexRule, check_indices};
use fulmen_tensor::{AsTensor, DType, Fault, FromFault, Refusal, Tensor, random};

use super::{computed_once, image_batch, probability};
use crate::library::NN;

/// A mixed batch.
#[derive(Clone, Debug)]
pub struct Mixed {
    /// The images, with the shape and dtype of the input.
    pub images: Tensor,
    /// The soft targets, `f32[N, classes]`. The sum of each row is preserved: 1 for labels.
    pub targets: Tensor,
    /// The weight of each image's own content, an f32 scalar. Its partner's weight is `1 − lambda`.
    pub lambda: Tensor,
}

/// The options: strength, probability, and the number of classes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Options {
    method: &'static str,
    classes: usize,
    alpha: f64,
    p: f64,
}

impl Options {
    /// A fault if the options or tensors are invalid, else the size of the images.
    fn check(
        &self,
        images: &Tensor,
        labels: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<[usize; 4], Refusal> {
        let size = image_batch(images)?;
        labels.live()?;
        mask.map(Tensor::live).transpose()?;
        if !(self.alpha > 0.0 && self.alpha.is_finite()) {
            return Err(format!("alpha is {}; it must be above 0", self.alpha).into());
        }
        probability(self.p)?;
        if size.contains(&0) {
            return Err(format!("there are no images in {}", images.ty()).into());
        }
        let n = size[0];
        let soft = **labels.shape() == [n, self.classes];
        let labelled = **labels.shape() == [n];
        if !(labels.dtype().is_integer() && labelled || labels.dtype().is_float() && soft) {
            let classes = self.classes;
            let ty = labels.ty();
            return Err(format!(
                "the labels must be integers [{n}] or probabilities [{n}, {classes}], but they are {ty}"
            )
            .into());
        }
        if let Some(mask) = mask
            && **mask.shape() != [n]
        {
            return Err(format!("the mask must be [{n}], but it is {}", mask.ty()).into());
        }
        Ok(size)
    }

    /// A fault if the images are not floats.
    fn floats(&self, images: &Tensor) -> Result<(), Refusal> {
        if images.dtype().is_float() {
            Ok(())
        } else {
            Err(format!(
                "blended images must be floats, but these are {}; normalize them first",
                images.ty()
            )
            .into())
        }
    }

    /// The weight of the own content, from Beta(alpha, alpha), or 1 if this batch is not mixed.
    fn lambda(&self, key: &Tensor) -> Tensor {
        let drawn = random::beta(&random::fold_in(key, 0), DType::F32, [], self.alpha, self.alpha);
        let mixes = random::bernoulli(&random::fold_in(key, 1), self.p, []);
        computed_once(mixes.select(&drawn, &Tensor::scalar(1.0f32)))
    }

    /// The labels as probabilities.
    fn soft(&self, labels: &Tensor) -> Result<Tensor, Refusal> {
        if labels.dtype().is_float() {
            return Ok(labels.to_dtype(DType::F32));
        }
        let reason = format!("there are {} classes", self.classes);
        let rule = IndexRule::below(self.method, "a label", self.classes, reason);
        Ok(check_indices(labels, rule)?.one_hot(self.classes).to_dtype(DType::F32))
    }

    /// The area of the partner's content in an image that keeps `lambda`: `bool[1, 1, H, W]`, and
    /// the weight of the own content.
    fn rectangle(
        &self,
        key: &Tensor,
        lambda: &Tensor,
        height: usize,
        width: usize,
    ) -> (Tensor, Tensor) {
        let half = (-(lambda - 1.0)).sqrt() * 0.5;
        let side = |number: u32, size: usize, axis: isize, shape: [usize; 4]| {
            let centre =
                random::randint(&random::fold_in(key, number), DType::I32, [], 0, size as i64);
            let reach = (&half * size as f64).floor().to_dtype(DType::I32);
            let start = (&centre - &reach).maximum(0.0);
            let end = (&centre + &reach).minimum(size as f64);
            let start = computed_once(start);
            let end = computed_once(end);
            let position = Tensor::iota(DType::I32, shape, axis);
            (position.ge(&start).and(position.lt(&end)), (end - start).to_dtype(DType::F32))
        };
        let (rows, high) = side(2, height, 2, [1, 1, height, 1]);
        let (columns, wide) = side(3, width, 3, [1, 1, 1, width]);
        let shape = [1, 1, height, width];
        let kept_share = -(high * wide / (height * width) as f64) + 1.0;
        (rows.broadcast_to(shape).and(columns.broadcast_to(shape)), kept_share)
    }
}

/// The row of the partner of each row of a batch: the previous row, or the last row for the first
/// one. With a mask, the last row is the last real one.
fn partner(rows: &Tensor, mask: Option<&Tensor>) -> Tensor {
    let rolled = rows.roll(1, 0);
    let Some(mask) = mask else { return rolled };
    let n = rows.size(0);
    let shape: Vec<usize> = (0..rows.rank()).map(|axis| if axis == 0 { n } else { 1 }).collect();
    let number = Tensor::iota(DType::I32, [n], 0);
    let last = mask.gt(0.0).select(&number, &number.zeros_like()).max_keepdim(0);
    let is_last = number.eq(&last).reshape(shape.as_slice()).broadcast_to(rows.shape());
    // A sum instead of indexing: if the rows are on several devices, only one image is sent over
    // the links.
    let wide = if rows.dtype().is_float() { rows.clone() } else { rows.to_dtype(DType::I32) };
    let row = is_last.select(&wide, &wide.zeros_like()).sum_keepdim(0).to_dtype(rows.dtype());
    let is_first = number.eq(0.0).reshape(shape.as_slice()).broadcast_to(rows.shape());
    is_first.select(&row.broadcast_to(rows.shape()), &rolled)
}

/// `lambda` of one plus `1 − lambda` of the other.
fn blend(image: &Tensor, other: &Tensor, lambda: &Tensor) -> Tensor {
    let lambda = lambda.to_dtype(image.dtype());
    image * &lambda + other * -(lambda - 1.0)
}

impl FromFault for Mixed {
    fn from_fault(fault: Fault) -> Mixed {
        let [images, targets, lambda] = FromFault::from_fault(fault);
        Mixed { images, targets, lambda }
    }
}

/// The options and the two methods that all three kinds share.
macro_rules! mixing {
    ($name:ident) => {
        impl $name {
            /// Mixing for this number of classes, with `alpha` 1 (all weights are equally likely)
            /// and probability 1.
            pub fn new(num_classes: usize) -> $name {
                $name(Options {
                    method: stringify!($name),
                    classes: num_classes,
                    alpha: 1.0,
                    p: 1.0,
                })
            }

            /// The parameter of the Beta distribution; the smaller it is, the more one of the two
            /// images dominates.
            #[must_use]
            pub fn alpha(mut self, alpha: f64) -> $name {
                self.0.alpha = alpha;
                self
            }

            /// The probability of mixing a batch.
            #[must_use]
            pub fn p(mut self, p: f64) -> $name {
                self.0.p = p;
                self
            }

            /// Mixes images `[N, C, H, W]` and their labels: class indices, integers `[N]`, or
            /// probabilities `[N, classes]`. The weight is drawn once for the batch, and each
            /// image's partner is the previous one, as in torchvision, so shuffle the data.
            ///
            /// Poisoned if the tensors do not fit, if `alpha` is not above 0, or if `p` is not a
            /// probability.
            #[track_caller]
            pub fn apply(
                &self,
                key: impl AsTensor,
                images: impl AsTensor,
                labels: impl AsTensor,
            ) -> Mixed {
                let key = key.as_tensor();
                let images = images.as_tensor();
                let labels = labels.as_tensor();
                NN.record(self.0.method, || self.run(key, images, labels, None))
            }

            /// Like `apply`, for a batch whose last rows may be padding, where `mask`, `[N]`, is
            /// zero. Real images are never mixed with padding: the partner of the first image is
            /// the last real one. Padded rows do not matter, because the mask keeps them out of the
            /// loss.
            #[track_caller]
            pub fn apply_masked(
                &self,
                key: impl AsTensor,
                images: impl AsTensor,
                labels: impl AsTensor,
                mask: impl AsTensor,
            ) -> Mixed {
                let key = key.as_tensor();
                let images = images.as_tensor();
                let labels = labels.as_tensor();
                NN.record(self.0.method, || self.run(key, images, labels, Some(mask.as_tensor())))
            }
        }
    };
}

/// Blends each image with its partner (torchvision's `MixUp`): `lambda · own + (1 - lambda) ·
/// other`, with `lambda` from Beta(alpha, alpha). Images must be floats: call
/// [`normalize`](super::normalize) first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixUp(Options);
mixing!(MixUp);

impl MixUp {
    fn run(
        &self,
        key: &Tensor,
        images: &Tensor,
        labels: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<Mixed, Refusal> {
        self.0.check(images, labels, mask)?;
        self.0.floats(images)?;
        let lambda = self.0.lambda(key);
        let soft = self.0.soft(labels)?;
        let targets = blend(&soft, &partner(&soft, mask), &lambda);
        Ok(Mixed { images: blend(images, &partner(images, mask), &lambda), targets, lambda })
    }
}

/// Replaces a rectangle of each image with the same rectangle of its partner (torchvision's
/// `CutMix`). Its area is about `1 - lambda` of the image, with `lambda` from Beta(alpha, alpha);
/// the edge may cut some of it off. Targets are mixed by the actual area. Images may still be `u8`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CutMix(Options);
mixing!(CutMix);

impl CutMix {
    fn run(
        &self,
        key: &Tensor,
        images: &Tensor,
        labels: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<Mixed, Refusal> {
        let [_, _, height, width] = self.0.check(images, labels, mask)?;
        let (inside, lambda) = self.0.rectangle(key, &self.0.lambda(key), height, width);
        let soft = self.0.soft(labels)?;
        let targets = blend(&soft, &partner(&soft, mask), &lambda);
        let images = inside.broadcast_to(images.shape()).select(&partner(images, mask), images);
        Ok(Mixed { images, targets, lambda })
    }
}

/// Applies [`MixUp`] or [`CutMix`] to each batch, with equal probability (torchvision's
/// `RandomChoice` of the two) and the same `alpha`. Images must be floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixUpOrCutMix(Options);
mixing!(MixUpOrCutMix);

impl MixUpOrCutMix {
    fn run(
        &self,
        key: &Tensor,
        images: &Tensor,
        labels: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<Mixed, Refusal> {
        let [_, _, height, width] = self.0.check(images, labels, mask)?;
        self.0.floats(images)?;
        let drawn = self.0.lambda(key);
        let (inside, kept_share) = self.0.rectangle(key, &drawn, height, width);
        let cuts = computed_once(random::bernoulli(&random::fold_in(key, 4), 0.5, []));
        let lambda = cuts.select(&kept_share, &drawn);
        // Both are a blend, by a number or by a 0/1 mask, so no branch is needed.
        let whole = inside.shape().clone();
        let outside = inside.not().to_dtype(DType::F32);
        let weights = cuts.broadcast_to(&whole).select(&outside, &drawn.broadcast_to(&whole));
        let soft = self.0.soft(labels)?;
        let targets = blend(&soft, &partner(&soft, mask), &lambda);
        Ok(Mixed { images: blend(images, &partner(images, mask), &weights), targets, lambda })
    }
}
