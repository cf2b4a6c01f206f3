//! The weight of a mean over a batch, among the means of other batches: what its sum was divided by.
//! Without one, a batch weighs as much as it has samples.

use fulmen_tensor::internal::mean_weights;
use fulmen_tensor::{DType, Tensor};

use crate::Batch;

/// The weight of a scalar that is logged: an f32 scalar. `None` if the scalar has no weight, or if
/// it is computed from means with different ones.
pub(crate) fn of_logged(scalar: &Tensor) -> Option<Tensor> {
    match &mean_weights(scalar)[..] {
        [one] => Some(one.weight.to_dtype(DType::F32)),
        _ => None,
    }
}

/// Whether a weight would count the padding of a batch: it depends on the samples, but not on the
/// mask.
pub(crate) fn counts_padding(weight: &Tensor, batch: &Batch) -> bool {
    let of_samples =
        || batch.inputs().any(|field| !field.is(batch.mask()) && weight.depends_on(field));
    batch.is_padded() && !weight.depends_on(batch.mask()) && of_samples()
}

/// A value times its weight: 0 if the weight is 0, because the mean of nothing may be NaN.
pub(crate) fn weighted(value: &Tensor, weight: &Tensor) -> Tensor {
    let product = value * weight.to_dtype(value.dtype());
    weight.gt(0.0).select(&product, &product.zeros_like())
}

/// The loss of a batch as far as its step counts it: 0 instead of the mean of nothing, if the step
/// takes several batches.
pub(crate) fn counted(loss: &Tensor, takes_several: bool) -> Tensor {
    match of_logged(loss).filter(|_| takes_several) {
        Some(weight) => weight.gt(0.0).select(loss, &loss.zeros_like()),
        None => loss.clone(),
    }
}
