//! Bounds of indices. The dtype is checked while recording. An index out of range is masked in the
//! program, since a device cannot raise an error for it.
//!
//! One rule holds for all operations that take indices. The indices of an axis are `0..size`;
//! negative indices do not count from the end. Reading out of range gives NaN, or the extreme of a
//! dtype without NaN. Writing out of range is dropped.

use super::constant::holds;
use crate::{DType, Shape, Tensor};

/// The index that replaces one out of range.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OutOfBounds {
    /// 0, for reads; the caller masks the result.
    ToZero,
    /// The size of the axis, for writes: StableHLO drops them.
    PastEnd,
}

/// Indices within range (or at the end of the axis). They are i32 where that fits the axes, else
/// i64.
pub(super) struct ClampedIndices {
    pub(super) indices: Tensor,
    /// True where the original index was in range. It has the shape of the indices, without the
    /// axis of components if there is one.
    pub(super) inside: Tensor,
}

/// Checks that these are indices of these axes. An empty axis can be written to, since every write
/// is out of range and dropped, but not read from.
fn check(
    shape: &Shape,
    axes: &[usize],
    indices: &Tensor,
    out_of_bounds: OutOfBounds,
) -> Result<(), String> {
    if !indices.dtype().is_integer() {
        return Err(format!(
            "the indices must be integers, not {}; convert with to_dtype() first",
            indices.dtype()
        ));
    }
    match axes.iter().find(|&&axis| shape[axis] == 0 && out_of_bounds == OutOfBounds::ToZero) {
        Some(axis) => Err(format!("{shape} has no element along axis {axis}")),
        None => Ok(()),
    }
}

/// The dtype for indices of these axes. i32 is preferred, since devices compute faster with 32 bits
/// than with 64.
fn dtype_for(shape: &Shape, axes: &[usize]) -> DType {
    let fits = axes.iter().all(|&axis| i32::try_from(shape[axis]).is_ok());
    if fits { DType::I32 } else { DType::I64 }
}

fn safe(size: usize, indices: &Tensor, out_of_bounds: OutOfBounds, dtype: DType) -> ClampedIndices {
    let mut inside = indices.ge(0.0);
    // A dtype that cannot hold the size has no index past the end.
    if holds(indices.dtype(), size as f64) {
        inside = inside.and(indices.lt(size as f64));
    }
    let indices = match out_of_bounds {
        OutOfBounds::ToZero => inside.select(indices, &indices.zeros_like()).to_dtype(dtype),
        OutOfBounds::PastEnd => {
            inside.select(&indices.to_dtype(dtype), &Tensor::full(dtype, [], size as f64))
        }
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

/// Indices `[…, k]`, each a point in the first `k` axes of `shape`. The caller has checked that `k`
/// is valid and not 0.
pub(super) fn points(
    shape: &Shape,
    indices: &Tensor,
    out_of_bounds: OutOfBounds,
) -> Result<ClampedIndices, String> {
    let k = indices.size(-1);
    let axes: Vec<usize> = (0..k).collect();
    check(shape, &axes, indices, out_of_bounds)?;
    let dtype = dtype_for(shape, &axes);
    let batch = &indices.shape()[..indices.rank() - 1];
    let mut inside = Tensor::ones(DType::Bool, batch);
    let mut components = Vec::new();
    for axis in axes {
        let component = safe(shape[axis], &indices.narrow(-1, axis, 1), out_of_bounds, dtype);
        inside = inside.and(component.inside.squeeze(-1));
        components.push(component.indices);
    }
    let indices = Tensor::concatenate(&components, -1);
    Ok(ClampedIndices { indices, inside })
}
