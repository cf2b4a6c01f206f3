//! [`bernoulli_part`]: a part of a draw, without the rest of it.

use super::continuous::unit_of_bits;
use super::words_at;
use crate::{AsTensor, DType, Shape, Tensor};

/// The slice of `bernoulli(key, p, shape)` that has these sizes and begins at `starts`, one integer
/// scalar for each axis. Elements of the slice that lie outside of `shape` have other values than
/// those of the draw.
#[track_caller]
pub fn bernoulli_part(
    key: impl AsTensor,
    p: f64,
    shape: impl Into<Shape>,
    starts: &[Tensor],
    sizes: &[usize],
) -> Tensor {
    Tensor::record("bernoulli", || {
        let shape = shape.into();
        if starts.len() != shape.rank() || sizes.len() != shape.rank() {
            return Err(format!("there must be a start and a size for each axis of {shape}").into());
        }
        let sizes = Shape::from(sizes);
        let index = |dtype: DType| {
            let mut indices = Tensor::zeros(dtype, &sizes);
            let mut stride = 1usize;
            for (axis, start) in starts.iter().enumerate().rev() {
                let along = Tensor::iota(dtype, &sizes, axis as isize) + start.to_dtype(dtype);
                indices = indices + along * stride as f64;
                stride = stride.saturating_mul(shape[axis]);
            }
            indices
        };
        let [high, low] = words_at(key.as_tensor(), &shape, index)?;
        Ok(unit_of_bits(&high.xor(&low)).lt(p))
    })
}
