//! [`masked_mean`]: the mean of unmasked losses. [`with_weight`]: the weight of a mean.

use fulmen_tensor::internal::with_mean_weight;
use fulmen_tensor::{AsTensor, Tensor};

use crate::library::{NN, live};
use crate::precision::{precision, wide};

/// The weighted mean `Σ mask·losses / Σ mask` of losses `[…]`, with a mask or weights for their
/// first axes: a scalar. A mask `[batch]` applies to all losses `[batch, time]` of a sample, a mask
/// `[batch, time]` to each one.
///
/// The mask is boolean, or numbers of at least 0. A loss whose mask is 0 is left out even if it is
/// infinite or NaN, and gets no gradient. If all masks are 0, the mean is 0.
///
/// ```
/// use fulmen_nn::loss::{Reduction, cross_entropy, masked_mean};
/// use fulmen_tensor::{DType, Tensor};
///
/// // Two sentences of three tokens each; 0 is padding.
/// let tokens = Tensor::from_slice(&[4i32, 2, 0, 1, 3, 2], [2, 3]);
/// let losses = cross_entropy(&Tensor::zeros(DType::F32, [2, 3, 5]), &tokens, Reduction::None);
/// let loss = masked_mean(&losses, &tokens.ne(0.0));
/// assert!((loss.eval()?.to_vec::<f32>()?[0] - 5f32.ln()).abs() < 1e-6);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn masked_mean(losses: impl AsTensor, mask: impl AsTensor) -> Tensor {
    NN.record("masked_mean", || {
        let losses = losses.as_tensor();
        let mask = mask.as_tensor();
        live(&[losses, mask])?;
        if !losses.dtype().is_float() || !losses.shape().dims().starts_with(mask.shape().dims()) {
            let message = format!(
                "needs floating-point losses and a mask of their first axes, got losses {} and a mask {}",
                losses.ty(),
                mask.ty()
            );
            return Err(message.into());
        }
        let dims = losses.shape().dims();
        let shape: Vec<usize> = (0..dims.len()).map(|a| if a < mask.rank() { dims[a] } else { 1 }).collect();
        let mask = mask.to_dtype(precision(losses.dtype())).reshape(shape).broadcast_to(dims);
        let losses = wide(losses);
        // Selected as well, because 0 times an infinite loss would be NaN.
        let counted = mask.ne(0.0).select(&(&losses * &mask), &losses.zeros_like()).sum_all();
        let weight = mask.sum_all();
        let is_counted = weight.ne(0.0);
        let mean = counted / is_counted.select(&weight, &weight.ones_like());
        with_mean_weight(&is_counted.select(&mean, &weight.zeros_like()), &weight)
    })
}

/// The same loss, which brings its weight: what the sum of the losses was divided by, such as the
/// number of tokens that count. Both are scalars; the weight is at least 0.
///
/// The Trainer weighs the batches of a group (`accumulate_grad_batches`) by it, and the logged
/// values of several batches. Then the mean over the batches is that of one large batch. Without a
/// weight, a batch weighs as much as it has samples.
///
/// [`masked_mean`] and the means of losses with ignored targets or weighted classes bring their
/// weights. Call this for a mean that you compute yourself. The weight stays with the loss through
/// sums and differences, through multiplication by a factor, and through
/// [`checkpoint`](fulmen_tensor::checkpoint). A weight that is given to the sum of several losses
/// replaces theirs.
///
/// Poisoned if the loss is not a floating-point scalar or the weight is not a real one.
///
/// ```
/// use fulmen_nn::loss::{Reduction, mse_loss, with_weight};
/// use fulmen_tensor::{DType, Tensor};
///
/// // Only the frames that a recording has.
/// let frames = Tensor::from_slice(&[1.0f32, 1.0, 1.0, 0.0], [2, 2]);
/// let losses = mse_loss(&Tensor::ones(DType::F32, [2, 2]), &Tensor::zeros(DType::F32, [2, 2]), Reduction::None);
/// let count = frames.sum_all();
/// let loss = with_weight(&((losses * &frames).sum_all() / &count), &count);
/// assert_eq!(loss.eval()?.to_vec::<f32>()?, [1.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn with_weight(loss: impl AsTensor, weight: impl AsTensor) -> Tensor {
    NN.record("with_weight", || with_mean_weight(loss.as_tensor(), weight.as_tensor()))
}
