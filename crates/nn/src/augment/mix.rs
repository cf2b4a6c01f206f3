//! MixUp (Zhang and others, 2017, <https://arxiv.org/abs/1710.09412>) and CutMix (Yun and others, 2019,
//! <https://arxiv.org/abs/1905.04899>): each picture of a batch is mixed with another one, and so are their targets.
//!
//! Not here: the loss, which takes soft targets (`CrossEntropyLoss` of `fulmen_nn`).

use fulmen_tensor::{AsTensor, DType, Fault, FromFault, Refusal, Tensor, random};

use super::{batch_of_pictures, beforehand, probability};
use crate::record::NN;

/// A mixed batch.
#[derive(Clone, Debug)]
pub struct Mixed {
    /// The pictures, of the shape and dtype of those that were given.
    pub images: Tensor,
    /// The soft targets, `f32[N, classes]`; the sum of each row is what it was, 1 for labels.
    pub targets: Tensor,
    /// The part that each picture keeps of itself, an f32 scalar; the rest is the partner's.
    pub lambda: Tensor,
}

/// What mixing is told: how strong, how often, and how many classes there are.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Options {
    method: &'static str,
    classes: usize,
    alpha: f64,
    p: f64,
}

impl Options {
    /// The fault of wrong options or of tensors that do not fit, else the size of the pictures.
    fn check(&self, images: &Tensor, labels: &Tensor, mask: Option<&Tensor>) -> Result<[usize; 4], Refusal> {
        let size = batch_of_pictures(images)?;
        labels.live()?;
        mask.map(Tensor::live).transpose()?;
        if !(self.alpha > 0.0 && self.alpha.is_finite()) {
            return Err(format!("alpha is {}; it must be above 0", self.alpha).into());
        }
        probability(self.p)?;
        if size.contains(&0) {
            return Err(format!("there are no pictures in {}", images.ty()).into());
        }
        let n = size[0];
        let (soft, labelled) = (**labels.shape() == [n, self.classes], **labels.shape() == [n]);
        if !(labels.dtype().is_integer() && labelled || labels.dtype().is_float() && soft) {
            let (classes, ty) = (self.classes, labels.ty());
            return Err(
                format!("the labels must be integers [{n}] or probabilities [{n}, {classes}], they are {ty}").into()
            );
        }
        if let Some(mask) = mask
            && **mask.shape() != [n]
        {
            return Err(format!("the mask must be [{n}], it is {}", mask.ty()).into());
        }
        Ok(size)
    }

    /// The fault of pictures that are not floats.
    fn floats(&self, images: &Tensor) -> Result<(), Refusal> {
        match images.dtype().is_float() {
            true => Ok(()),
            false => {
                Err(format!("blended pictures are floats, these are {}; normalize them first", images.ty()).into())
            }
        }
    }

    /// The part that is kept: of the Beta(alpha, alpha) distribution, or 1 where nothing is mixed this time.
    fn lambda(&self, key: &Tensor) -> Tensor {
        let drawn = random::beta(&random::fold_in(key, 0), DType::F32, [], self.alpha, self.alpha);
        let mixes = random::bernoulli(&random::fold_in(key, 1), self.p, []);
        beforehand(mixes.select(&drawn, &Tensor::scalar(1.0f32)))
    }

    /// The labels as probabilities.
    fn soft(&self, labels: &Tensor) -> Tensor {
        match labels.dtype().is_float() {
            true => labels.to_dtype(DType::F32),
            false => labels.one_hot(self.classes).to_dtype(DType::F32),
        }
    }

    /// Where a partner's part lies, of a picture that keeps `lambda`: `bool[1, 1, H, W]`, and what is kept outside of it.
    fn rectangle(&self, key: &Tensor, lambda: &Tensor, [_, _, height, width]: [usize; 4]) -> (Tensor, Tensor) {
        let half = (-(lambda - 1.0)).sqrt() * 0.5;
        let side = |number: u32, size: usize, axis: isize, shape: [usize; 4]| {
            let centre = random::randint(&random::fold_in(key, number), DType::I32, [], 0, size as i64);
            let reach = (&half * size as f64).floor().to_dtype(DType::I32);
            let (start, end) = ((&centre - &reach).maximum(0.0), (&centre + &reach).minimum(size as f64));
            let (start, end) = (beforehand(start), beforehand(end));
            let place = Tensor::iota(DType::I32, shape, axis);
            (place.ge(&start).and(place.lt(&end)), (end - start).to_dtype(DType::F32))
        };
        let (rows, high) = side(2, height, 2, [1, 1, height, 1]);
        let (columns, wide) = side(3, width, 3, [1, 1, 1, width]);
        let shape = [1, 1, height, width];
        let kept = -(high * wide / (height * width) as f64) + 1.0;
        (rows.broadcast_to(shape).and(columns.broadcast_to(shape)), kept)
    }
}

/// For each row of a batch that of its partner: the row before it, and for the first the last one. With a mask the last
/// one is the last that is real.
fn partner(rows: &Tensor, mask: Option<&Tensor>) -> Tensor {
    let rolled = rows.roll(&[1], &[0]);
    let Some(mask) = mask else { return rolled };
    let n = rows.size(0);
    let shape: Vec<usize> = (0..rows.rank()).map(|axis| if axis == 0 { n } else { 1 }).collect();
    let number = Tensor::iota(DType::I32, [n], 0);
    let last = mask.gt(0.0).select(&number, &number.zeros_like()).max_keepdim(&[0]);
    let is_last = number.eq(&last).reshape(shape.as_slice()).broadcast_to(rows.shape());
    // A sum instead of an indexed row: where rows lie on several devices, one picture crosses the links, not all.
    let wide = if rows.dtype().is_float() { rows.clone() } else { rows.to_dtype(DType::I32) };
    let row = is_last.select(&wide, &wide.zeros_like()).sum_keepdim(&[0]).to_dtype(rows.dtype());
    let is_first = number.eq(0.0).reshape(shape.as_slice()).broadcast_to(rows.shape());
    is_first.select(&row.broadcast_to(rows.shape()), &rolled)
}

/// `lambda` of one and the rest of the other.
fn blend(own: &Tensor, other: &Tensor, lambda: &Tensor) -> Tensor {
    let lambda = lambda.to_dtype(own.dtype());
    own * &lambda + other * -(lambda - 1.0)
}

impl FromFault for Mixed {
    fn from_fault(fault: Fault) -> Mixed {
        let [images, targets, lambda] = FromFault::from_fault(fault);
        Mixed { images, targets, lambda }
    }
}

/// The options and the two ways to call that all three kinds share.
macro_rules! mixing {
    ($name:ident) => {
        impl $name {
            /// For so many classes, with `alpha` 1 (all parts equally likely), always.
            pub fn new(num_classes: usize) -> $name {
                $name(Options { method: stringify!($name), classes: num_classes, alpha: 1.0, p: 1.0 })
            }

            /// Another parameter of the Beta distribution; the smaller it is, the more one of two pictures prevails.
            #[must_use]
            pub fn alpha(mut self, alpha: f64) -> $name {
                self.0.alpha = alpha;
                self
            }

            /// The probability with which a batch is mixed at all.
            #[must_use]
            pub fn p(mut self, p: f64) -> $name {
                self.0.p = p;
                self
            }

            /// Mixes pictures `[N, C, H, W]` and their labels: class numbers, integers `[N]`, or probabilities
            /// `[N, classes]`. Which part is kept is drawn once for the batch, and each picture's partner is the one before
            /// it, as in torchvision: shuffle the data.
            ///
            /// Poisoned if the tensors do not fit, and by an `alpha` that is not above 0 or a `p` that is not a probability.
            #[track_caller]
            pub fn apply(&self, key: impl AsTensor, images: impl AsTensor, labels: impl AsTensor) -> Mixed {
                let (key, images, labels) = (key.as_tensor(), images.as_tensor(), labels.as_tensor());
                NN.record(self.0.method, || self.run(key, images, labels, None))
            }

            /// The same for a batch whose last rows may be padding, which `mask`, `[N]`, has as 0: no real picture is mixed
            /// with padding, since the partner of the first is then the last real one. What becomes of the padded rows does
            /// not matter, as the mask keeps them out of the loss.
            #[track_caller]
            pub fn apply_masked(
                &self,
                key: impl AsTensor,
                images: impl AsTensor,
                labels: impl AsTensor,
                mask: impl AsTensor,
            ) -> Mixed {
                let (key, images, labels) = (key.as_tensor(), images.as_tensor(), labels.as_tensor());
                NN.record(self.0.method, || self.run(key, images, labels, Some(mask.as_tensor())))
            }
        }
    };
}

/// Blends each picture with its partner (torchvision's `MixUp`): `lambda · own + (1 - lambda) · other`, with `lambda` of
/// the distribution Beta(alpha, alpha). Pictures are floats: [`normalize`](super::normalize) first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixUp(Options);
mixing!(MixUp);

impl MixUp {
    fn run(&self, key: &Tensor, images: &Tensor, labels: &Tensor, mask: Option<&Tensor>) -> Result<Mixed, Refusal> {
        self.0.check(images, labels, mask)?;
        self.0.floats(images)?;
        let (lambda, soft) = (self.0.lambda(key), self.0.soft(labels));
        let targets = blend(&soft, &partner(&soft, mask), &lambda);
        Ok(Mixed { images: blend(images, &partner(images, mask), &lambda), targets, lambda })
    }
}

/// Puts a rectangle of its partner into each picture, at the same place (torchvision's `CutMix`). Its area is about
/// `1 - lambda` of the picture's, with `lambda` of the distribution Beta(alpha, alpha), but for what the edge cuts off;
/// targets are mixed by the area that it has. Pictures may be `u8` still.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CutMix(Options);
mixing!(CutMix);

impl CutMix {
    fn run(&self, key: &Tensor, images: &Tensor, labels: &Tensor, mask: Option<&Tensor>) -> Result<Mixed, Refusal> {
        let size = self.0.check(images, labels, mask)?;
        let (inside, lambda) = self.0.rectangle(key, &self.0.lambda(key), size);
        let soft = self.0.soft(labels);
        let targets = blend(&soft, &partner(&soft, mask), &lambda);
        let images = inside.broadcast_to(images.shape()).select(&partner(images, mask), images);
        Ok(Mixed { images, targets, lambda })
    }
}

/// For each batch [`MixUp`] or [`CutMix`], one as likely as the other (torchvision's `RandomChoice` of the two), both
/// with the same `alpha`. Pictures are floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixUpOrCutMix(Options);
mixing!(MixUpOrCutMix);

impl MixUpOrCutMix {
    fn run(&self, key: &Tensor, images: &Tensor, labels: &Tensor, mask: Option<&Tensor>) -> Result<Mixed, Refusal> {
        let size = self.0.check(images, labels, mask)?;
        self.0.floats(images)?;
        let drawn = self.0.lambda(key);
        let (inside, kept) = self.0.rectangle(key, &drawn, size);
        let cuts = beforehand(random::bernoulli(&random::fold_in(key, 4), 0.5, []));
        let lambda = cuts.select(&kept, &drawn);
        // Both are a blend, by a number or by 0 and 1 in places: no branch is needed.
        let whole = inside.shape().clone();
        let outside = inside.not().to_dtype(DType::F32);
        let weights = cuts.broadcast_to(&whole).select(&outside, &drawn.broadcast_to(&whole));
        let soft = self.0.soft(labels);
        let targets = blend(&soft, &partner(&soft, mask), &lambda);
        Ok(Mixed { images: blend(images, &partner(images, mask), &weights), targets, lambda })
    }
}
