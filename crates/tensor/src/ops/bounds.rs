//! Indices that a program is given: checked for their dtype, and made safe where they are out of range, since a device cannot
//! refuse one.
//!
//! The rule is one for all operations by index. `0..size` are the indices of an axis; negative ones do not count from the
//! end. What is read outside is not a number (NaN, or the extreme of a dtype that has none), and what is written outside is
//! dropped.

use super::constant::holds;
use crate::{DType, Shape, Tensor};

/// Where an index out of range is moved to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OutOfBounds {
    /// To 0, for what is read; the caller masks the result.
    ToZero,
    /// Beyond the end, for what is written: StableHLO drops it.
    PastEnd,
}

/// Safe indices, i32 where that counts the axes and i64 elsewhere.
pub(super) struct ClampedIndices {
    pub(super) indices: Tensor,
    /// Which ones lay inside: booleans of the shape of the indices, without the axis of components where there is one.
    pub(super) inside: Tensor,
}

/// Refuses what cannot be indices of these axes. An axis without elements can be written to, since all writes out of range
/// is dropped, but has nothing to read.
fn check(shape: &Shape, axes: &[usize], indices: &Tensor, out_of_bounds: OutOfBounds) -> Result<(), String> {
    if !indices.dtype().is_integer() {
        return Err(format!("the indices must be integers, not {}; convert with to_dtype() first", indices.dtype()));
    }
    match axes.iter().find(|&&axis| shape[axis] == 0 && out_of_bounds == OutOfBounds::ToZero) {
        Some(axis) => Err(format!("{shape} has no element along axis {axis}")),
        None => Ok(()),
    }
}

/// Devices compute with 32 bits faster than with 64.
fn dtype_for(shape: &Shape, axes: &[usize]) -> DType {
    let fits = axes.iter().all(|&axis| i32::try_from(shape[axis]).is_ok());
    if fits { DType::I32 } else { DType::I64 }
}

fn safe(size: usize, indices: &Tensor, out_of_bounds: OutOfBounds, dtype: DType) -> ClampedIndices {
    let mut inside = indices.ge(0.0);
    // A dtype whose maximum is below the size has no index out of range.
    if holds(indices.dtype(), size as f64) {
        inside = inside.and(indices.lt(size as f64));
    }
    let indices = match out_of_bounds {
        OutOfBounds::ToZero => inside.select(indices, &indices.zeros_like()).to_dtype(dtype),
        OutOfBounds::PastEnd => inside.select(&indices.to_dtype(dtype), &Tensor::full(dtype, [], size as f64)),
    };
    ClampedIndices { indices, inside }
}

/// Indices of any shape along one axis of `shape`.
pub(super) fn along(
    shape: &Shape,
    axis: usize,
    indices: &Tensor,
    out_of_bounds: OutOfBounds,
) -> Result<ClampedIndices, String> {
    check(shape, &[axis], indices, out_of_bounds)?;
    Ok(safe(shape[axis], indices, out_of_bounds, dtype_for(shape, &[axis])))
}

/// Indices `[…, k]`, each a point in the first `k` axes of `shape`; the caller has checked `k`, which is not 0.
pub(super) fn points(shape: &Shape, indices: &Tensor, out_of_bounds: OutOfBounds) -> Result<ClampedIndices, String> {
    let k = indices.size(-1);
    let axes: Vec<usize> = (0..k).collect();
    check(shape, &axes, indices, out_of_bounds)?;
    let dtype = dtype_for(shape, &axes);
    let batch = &indices.shape()[..indices.rank() - 1];
    let mut inside = Tensor::ones(DType::Bool, batch);
    let mut components = vec![];
    for axis in axes {
        let one = safe(shape[axis], &indices.narrow(-1, axis, 1), out_of_bounds, dtype);
        inside = inside.and(one.inside.squeeze(-1));
        components.push(one.indices);
    }
    let indices = Tensor::concatenate(&components.iter().collect::<Vec<_>>(), -1);
    Ok(ClampedIndices { indices, inside })
}
