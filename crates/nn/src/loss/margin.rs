//! Losses with a margin: a sample that is right by at least the margin has a loss of 0.

use fulmen_tensor::{AsTensor, Tensor};

use super::Reduction;
use super::check::{pair, same_floats, same_shape};
use crate::library::NN;
use crate::precision::wide;

/// `input` for target 1, `max(0, margin − input)` for target −1; PyTorch's margin is 1. Input and
/// target have the same shape. For other targets, both terms are added, as in PyTorch.
///
/// ```
/// use fulmen_nn::loss::{Reduction, hinge_embedding_loss};
/// use fulmen_tensor::Tensor;
/// let distance = Tensor::from_slice(&[0.25f32, 0.25], [2]);
/// let same = Tensor::from_slice(&[1i32, -1], [2]);
/// let losses = hinge_embedding_loss(&distance, &same, 1.0, Reduction::None);
/// assert_eq!(losses.eval()?.to_vec::<f32>()?, [0.25, 0.75]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn hinge_embedding_loss(
    input: impl AsTensor,
    target: impl AsTensor,
    margin: f64,
    reduction: Reduction,
) -> Tensor {
    NN.record("hinge_embedding_loss", || {
        let input = input.as_tensor();
        let target = target.as_tensor();
        let (input, target) = pair(input, target)?;
        let zero = input.zeros_like();
        let different = target.ne(1.0).select(&(-&input + margin).relu(), &zero);
        Ok(reduction.apply(&(different + target.ne(-1.0).select(&input, &zero))))
    })
}

/// `max(0, −target·(first − second) + margin)`: target 1 means that the first should be larger, −1
/// the second; PyTorch's margin is 0. All three have the same shape.
///
/// ```
/// use fulmen_nn::loss::{Reduction, margin_ranking_loss};
/// use fulmen_tensor::Tensor;
/// let a = Tensor::from_slice(&[2.0f32, 2.0], [2]);
/// let b = Tensor::from_slice(&[1.0f32, 1.0], [2]);
/// let losses = margin_ranking_loss(&a, &b, &Tensor::from_slice(&[1i32, -1], [2]), 0.5, Reduction::None);
/// assert_eq!(losses.eval()?.to_vec::<f32>()?, [0.0, 1.5]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn margin_ranking_loss(
    first: impl AsTensor,
    second: impl AsTensor,
    target: impl AsTensor,
    margin: f64,
    reduction: Reduction,
) -> Tensor {
    NN.record("margin_ranking_loss", || {
        let first = first.as_tensor();
        let second = second.as_tensor();
        let target = target.as_tensor();
        same_floats(&[("first", first), ("second", second)])?;
        same_shape(&[("first", first), ("target", target)])?;
        let difference = wide(first) - wide(second);
        let target = target.to_dtype(difference.dtype());
        Ok(reduction.apply(&(-(target * difference) + margin).relu()))
    })
}

/// `max(0, d(anchor, positive) − d(anchor, negative) + margin)` over embeddings `[…, width]`, with
/// Euclidean distances; PyTorch's margin is 1. All three have the same shape; the result has a loss
/// for each embedding, `[…]`.
///
/// ```
/// use fulmen_nn::loss::{Reduction, triplet_margin_loss};
/// use fulmen_tensor::{DType, Tensor};
/// let a = Tensor::zeros(DType::F32, [1, 2]);
/// let p = Tensor::zeros(DType::F32, [1, 2]);
/// let n = Tensor::from_slice(&[0.3f32, 0.4], [1, 2]);
/// let loss = triplet_margin_loss(&a, &p, &n, 1.0, Reduction::Mean).eval()?.to_vec::<f32>()?;
/// assert!((loss[0] - 0.5).abs() < 1e-5);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn triplet_margin_loss(
    anchor: impl AsTensor,
    positive: impl AsTensor,
    negative: impl AsTensor,
    margin: f64,
    reduction: Reduction,
) -> Tensor {
    let anchor = anchor.as_tensor();
    let positive = positive.as_tensor();
    let negative = negative.as_tensor();
    TripletMarginLoss::new().margin(margin).reduction(reduction).forward(anchor, positive, negative)
}

/// [`triplet_margin_loss`] with settings, like PyTorch's `nn.TripletMarginLoss`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct TripletMarginLoss {
    reduction: Reduction,
    margin: f64,
    p: f64,
    eps: f64,
    swap: bool,
}

impl TripletMarginLoss {
    /// The mean, with a margin of 1 between Euclidean distances.
    pub fn new() -> TripletMarginLoss {
        TripletMarginLoss {
            reduction: Reduction::Mean,
            margin: 1.0,
            p: 2.0,
            eps: 1e-6,
            swap: false,
        }
    }

    /// How the losses are reduced.
    pub fn reduction(mut self, reduction: Reduction) -> TripletMarginLoss {
        self.reduction = reduction;
        self
    }

    /// How much farther the negative should be.
    pub fn margin(mut self, margin: f64) -> TripletMarginLoss {
        self.margin = margin;
        self
    }

    /// The norm of a difference, `(Σ|d|ᵖ)^(1/p)`; `f64::INFINITY` means the maximum.
    pub fn p(mut self, p: f64) -> TripletMarginLoss {
        self.p = p;
        self
    }

    /// The constant added to each element of a difference, so that the norm has a gradient at 0.
    pub fn eps(mut self, eps: f64) -> TripletMarginLoss {
        self.eps = eps;
        self
    }

    /// Whether to use the smaller of the negative's distances to the anchor and to the positive.
    pub fn swap(mut self, swap: bool) -> TripletMarginLoss {
        self.swap = swap;
        self
    }

    /// The loss. Poisoned if the three are not floating-point tensors of the same shape, if they
    /// are scalars, or if `p` is not above 0.
    #[track_caller]
    pub fn forward(
        &self,
        anchor: impl AsTensor,
        positive: impl AsTensor,
        negative: impl AsTensor,
    ) -> Tensor {
        NN.record("triplet_margin_loss", || {
            let anchor = anchor.as_tensor();
            let positive = positive.as_tensor();
            let negative = negative.as_tensor();
            same_floats(&[("anchor", anchor), ("positive", positive), ("negative", negative)])?;
            if anchor.rank() == 0 {
                return Err("embeddings are vectors on the last axis, and scalars have none".into());
            }
            if self.p.is_nan() || self.p <= 0.0 {
                return Err(format!("p must be above 0, but it is {}", self.p).into());
            }
            let anchor = wide(anchor);
            let positive = wide(positive);
            let negative = wide(negative);
            let near = self.distance(&anchor, &positive);
            let mut far = self.distance(&anchor, &negative);
            if self.swap {
                far = far.minimum(self.distance(&positive, &negative));
            }
            Ok(self.reduction.apply(&(near - far + self.margin).relu()))
        })
    }

    /// The norm of `a − b + eps` over the last axis.
    fn distance(&self, a: &Tensor, b: &Tensor) -> Tensor {
        (a - b + self.eps).norm(self.p, -1)
    }
}

impl Default for TripletMarginLoss {
    fn default() -> TripletMarginLoss {
        TripletMarginLoss::new()
    }
}

/// [`hinge_embedding_loss`] with settings, like PyTorch's `nn.HingeEmbeddingLoss`: a margin of 1.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct HingeEmbeddingLoss {
    reduction: Reduction,
    margin: f64,
}

impl HingeEmbeddingLoss {
    /// The mean, with a margin of 1.
    pub fn new() -> HingeEmbeddingLoss {
        HingeEmbeddingLoss { reduction: Reduction::Mean, margin: 1.0 }
    }

    /// [`hinge_embedding_loss`] with these settings.
    #[track_caller]
    pub fn forward(&self, input: impl AsTensor, target: impl AsTensor) -> Tensor {
        let input = input.as_tensor();
        let target = target.as_tensor();
        hinge_embedding_loss(input, target, self.margin, self.reduction)
    }
}

/// [`margin_ranking_loss`] with settings, like PyTorch's `nn.MarginRankingLoss`: a margin of 0.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct MarginRankingLoss {
    reduction: Reduction,
    margin: f64,
}

impl MarginRankingLoss {
    /// The mean, without a margin.
    pub fn new() -> MarginRankingLoss {
        MarginRankingLoss { reduction: Reduction::Mean, margin: 0.0 }
    }

    /// [`margin_ranking_loss`] with these settings.
    #[track_caller]
    pub fn forward(
        &self,
        first: impl AsTensor,
        second: impl AsTensor,
        target: impl AsTensor,
    ) -> Tensor {
        let first = first.as_tensor();
        let second = second.as_tensor();
        let target = target.as_tensor();
        margin_ranking_loss(first, second, target, self.margin, self.reduction)
    }
}

macro_rules! settings {
    ($($name:ident)*) => {$(
        impl $name {
            /// How the losses are reduced.
            pub fn reduction(mut self, reduction: Reduction) -> $name {
                self.reduction = reduction;
                self
            }

            /// The margin.
            pub fn margin(mut self, margin: f64) -> $name {
                self.margin = margin;
                self
            }
        }

        impl Default for $name {
            fn default() -> $name {
                $name::new()
            }
        }
    )*};
}
settings!(HingeEmbeddingLoss MarginRankingLoss);
