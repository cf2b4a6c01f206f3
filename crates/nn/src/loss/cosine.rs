//! The angle between vectors: its cosine, and the loss that draws it to 0 or pushes it open.

use fulmen_tensor::{AsTensor, Tensor};

use super::Reduction;
use super::check::{alike, same_shape};
use crate::precision::wide;
use crate::record::NN;

/// `a·b / (max(|a|, eps)·max(|b|, eps))` along one axis, which vanishes; PyTorch's `eps` is 1e-8. The two are
/// floating-point numbers of one shape; 16-bit ones are computed with as f32.
///
/// ```
/// use fulmen_nn::loss::cosine_similarity;
/// use fulmen_tensor::Tensor;
/// let (a, b) = (Tensor::from_slice(&[3.0f32, 0.0], [1, 2]), Tensor::from_slice(&[1.0f32, 1.0], [1, 2]));
/// let cosine = cosine_similarity(&a, &b, -1, 1e-8).eval()?.to_vec::<f32>()?;
/// assert!((cosine[0] - 0.5f32.sqrt()).abs() < 1e-6);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn cosine_similarity(a: impl AsTensor, b: impl AsTensor, axis: isize, eps: f64) -> Tensor {
    NN.record("cosine_similarity", || {
        let (a, b) = (a.as_tensor(), b.as_tensor());
        alike(&[("first", a), ("second", b)])?;
        a.shape().axis(axis)?;
        if eps.is_nan() || eps <= 0.0 {
            return Err(format!("eps is a number above 0, not {eps}").into());
        }
        let (a, b) = (wide(a), wide(b));
        // Not a root of a maximum: eps² would be 0 in f32 where eps is small.
        let (a, b) = (&a / norm(&a, axis, eps), &b / norm(&b, axis, eps));
        Ok((a * b).sum(&[axis]))
    })
}

/// `max(|x|, eps)` along an axis of size 1 then; at 0 without gradient.
fn norm(x: &Tensor, axis: isize, eps: f64) -> Tensor {
    let squares = (x * x).sum_keepdim(&[axis]);
    let none = squares.eq(0.0);
    let norm = none.select(&squares.ones_like(), &squares).sqrt();
    none.select(&squares.zeros_like(), &norm).maximum(eps)
}

/// `1 − cos(a, b)` where the target is 1, `max(0, cos(a, b) − margin)` where it is −1, over vectors `[…, width]` and
/// targets `[…]`; PyTorch's margin is 0. Other targets give 0, as in PyTorch.
///
/// ```
/// use fulmen_nn::loss::{Reduction, cosine_embedding_loss};
/// use fulmen_tensor::{DType, Tensor};
/// let (a, b) = (Tensor::ones(DType::F32, [2, 3]), Tensor::ones(DType::F32, [2, 3]));
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
        let (a, b, target) = (a.as_tensor(), b.as_tensor(), target.as_tensor());
        alike(&[("first", a), ("second", b)])?;
        if a.rank() == 0 {
            return Err("a vector stands on the last axis, and scalars have none".into());
        }
        let (a, b) = (wide(a), wide(b));
        // PyTorch's formula, which differs from that of `cosine_similarity` in how it avoids dividing by 0.
        let squares_a = (&a * &a).sum(&[-1]) + 1e-12;
        let squares_b = (&b * &b).sum(&[-1]) + 1e-12;
        let cosine = (a * b).sum(&[-1]) / (squares_a * squares_b).sqrt();
        same_shape(&[("target", target), ("cosine of the vectors", &cosine)])?;
        let zero = cosine.zeros_like();
        let (same, apart) = (target.to_dtype(cosine.dtype()).eq(1.0), target.to_dtype(cosine.dtype()).eq(-1.0));
        let losses = same.select(&(-&cosine + 1.0), &zero) + apart.select(&(&cosine - margin).relu(), &zero);
        Ok(reduction.apply(&losses))
    })
}

/// [`cosine_embedding_loss`] with settings, as PyTorch's `nn.CosineEmbeddingLoss`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CosineEmbeddingLoss {
    reduction: Reduction,
    margin: f64,
}

impl CosineEmbeddingLoss {
    /// The mean, with a margin of 0.
    pub fn new() -> CosineEmbeddingLoss {
        CosineEmbeddingLoss::default()
    }

    /// What becomes of the losses.
    pub fn reduction(mut self, reduction: Reduction) -> CosineEmbeddingLoss {
        self.reduction = reduction;
        self
    }

    /// The cosine that is small enough for vectors that are not alike.
    pub fn margin(mut self, margin: f64) -> CosineEmbeddingLoss {
        self.margin = margin;
        self
    }

    /// [`cosine_embedding_loss`] with these settings.
    #[track_caller]
    pub fn forward(&self, a: impl AsTensor, b: impl AsTensor, target: impl AsTensor) -> Tensor {
        let (a, b, target) = (a.as_tensor(), b.as_tensor(), target.as_tensor());
        cosine_embedding_loss(a, b, target, self.margin, self.reduction)
    }
}
