//! Cosine similarity, and a loss that increases or decreases it.

use fulmen_tensor::{AsTensor, Tensor};

use super::Reduction;
use super::check::{same_floats, same_shape};
use crate::library::NN;
use crate::precision::wide;

/// `a·b / (max(|a|, eps)·max(|b|, eps))` along one axis, which is removed; PyTorch's `eps` is 1e-8.
/// Both are floating-point tensors of the same shape; 16-bit ones are computed in f32.
///
/// ```
/// use fulmen_nn::loss::cosine_similarity;
/// use fulmen_tensor::Tensor;
/// let a = Tensor::from_slice(&[3.0f32, 0.0], [1, 2]);
/// let b = Tensor::from_slice(&[1.0f32, 1.0], [1, 2]);
/// let cosine = cosine_similarity(&a, &b, -1, 1e-8).eval()?.to_vec::<f32>()?;
/// assert!((cosine[0] - 0.5f32.sqrt()).abs() < 1e-6);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn cosine_similarity(a: impl AsTensor, b: impl AsTensor, axis: isize, eps: f64) -> Tensor {
    NN.record("cosine_similarity", || {
        let a = a.as_tensor();
        let b = b.as_tensor();
        same_floats(&[("first", a), ("second", b)])?;
        a.shape().axis(axis)?;
        if eps.is_nan() || eps <= 0.0 {
            return Err(format!("eps must be above 0, but it is {eps}").into());
        }
        let a = wide(a);
        let b = wide(b);
        // Not the root of a maximum: for a small eps, eps² would underflow in f32.
        let a = &a / norm(&a, axis, eps);
        let b = &b / norm(&b, axis, eps);
        Ok((a * b).sum(axis))
    })
}

/// `max(|x|, eps)` along an axis, which becomes size 1; no gradient at 0.
fn norm(x: &Tensor, axis: isize, eps: f64) -> Tensor {
    x.norm_keepdim(2.0, axis).maximum(eps)
}

/// `1 − cos(a, b)` for target 1 and `max(0, cos(a, b) − margin)` for target −1, over vectors `[…,
/// width]` and targets `[…]`; PyTorch's margin is 0. Other targets give 0, as in PyTorch.
///
/// ```
/// use fulmen_nn::loss::{Reduction, cosine_embedding_loss};
/// use fulmen_tensor::{DType, Tensor};
/// let a = Tensor::ones(DType::F32, [2, 3]);
/// let b = Tensor::ones(DType::F32, [2, 3]);
/// let target = Tensor::from_slice(&[1i32, -1], [2]);
/// let losses = cosine_embedding_loss(&a, &b, &target, 0.5, Reduction::None).eval()?.to_vec::<f32>()?;
/// assert!(losses[0].abs() < 1e-6 && (losses[1] - 0.5).abs() < 1e-6);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn cosine_embedding_loss(
    a: impl AsTensor,
    b: impl AsTensor,
    target: impl AsTensor,
    margin: f64,
    reduction: Reduction,
) -> Tensor {
    NN.record("cosine_embedding_loss", || {
        let a = a.as_tensor();
        let b = b.as_tensor();
        let target = target.as_tensor();
        same_floats(&[("first", a), ("second", b)])?;
        if a.rank() == 0 {
            return Err("vectors are on the last axis, and scalars have none".into());
        }
        let a = wide(a);
        let b = wide(b);
        // PyTorch's formula, which avoids the division by 0 differently from `cosine_similarity`.
        let squares_a = (&a * &a).sum(-1) + 1e-12;
        let squares_b = (&b * &b).sum(-1) + 1e-12;
        let cosine = (a * b).sum(-1) / (squares_a * squares_b).sqrt();
        same_shape(&[("target", target), ("cosine of the vectors", &cosine)])?;
        let zero = cosine.zeros_like();
        let same = target.to_dtype(cosine.dtype()).eq(1.0);
        let different = target.to_dtype(cosine.dtype()).eq(-1.0);
        let losses = same.select(&(-&cosine + 1.0), &zero)
            + different.select(&(&cosine - margin).relu(), &zero);
        Ok(reduction.apply(&losses))
    })
}

/// [`cosine_embedding_loss`] with settings, like PyTorch's `nn.CosineEmbeddingLoss`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[must_use]
pub struct CosineEmbeddingLoss {
    reduction: Reduction,
    margin: f64,
}

impl CosineEmbeddingLoss {
    /// The mean, with a margin of 0.
    pub fn new() -> CosineEmbeddingLoss {
        CosineEmbeddingLoss::default()
    }

    /// How the losses are reduced.
    pub fn reduction(mut self, reduction: Reduction) -> CosineEmbeddingLoss {
        self.reduction = reduction;
        self
    }

    /// Dissimilar vectors whose cosine is below this have a loss of 0.
    pub fn margin(mut self, margin: f64) -> CosineEmbeddingLoss {
        self.margin = margin;
        self
    }

    /// [`cosine_embedding_loss`] with these settings.
    #[track_caller]
    pub fn forward(&self, a: impl AsTensor, b: impl AsTensor, target: impl AsTensor) -> Tensor {
        let a = a.as_tensor();
        let b = b.as_tensor();
        let target = target.as_tensor();
        cosine_embedding_loss(a, b, target, self.margin, self.reduction)
    }
}
