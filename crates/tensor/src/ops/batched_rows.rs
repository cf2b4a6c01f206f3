//! [`take_rows`] and [`add_rows`]: rows by index, with other indices in each batch. They are one gather
//! and one scatter with batch axes, which XLA's partitioner computes where the batches are.

use super::bounds::{self, OutOfBounds};
use super::gather::{Dimensions, Gather};
use super::scatter::{Combine, Scatter};
use crate::Tensor;
use crate::scope::Refusal;
use crate::tensor::all_live;

/// Checks that the batch axes are equal.
fn check(x: &Tensor, indices: &Tensor) -> Result<usize, Refusal> {
    all_live([x, indices])?;
    let batch = indices.rank().saturating_sub(1);
    let is_batched = x.rank() > batch && x.shape()[..batch] == indices.shape()[..batch];
    if indices.rank() == 0 || !is_batched {
        let [x, indices] = [x, indices].map(|tensor| tensor.ty().clone());
        return Err(format!("the indices {indices} do not have the batches of {x}").into());
    }
    Ok(batch)
}

/// The rows `[batch…, n, …]` of `x`, `[batch…, rows, …]`, at the indices `[batch…, n]`. An index out
/// of range gives zeros.
#[track_caller]
pub fn take_rows(x: &Tensor, indices: &Tensor) -> Tensor {
    Tensor::record("take_rows", || {
        let dimensions = Dimensions::rows(check(x, indices)?, x.rank());
        let axis = indices.rank() - 1;
        let clamped = bounds::along(x.shape(), axis, indices, OutOfBounds::ToZero)?;
        let gather = Gather { method: "take_rows", dimensions: dimensions.clone() };
        let rows = Tensor::try_apply(gather, &[x, &clamped.indices])?;
        Ok(dimensions.spread(&clamped.inside, rows.shape()).select(&rows, &rows.zeros_like()))
    })
}

/// `x`, `[batch…, rows, …]`, with rows `[batch…, n, …]` of its dtype added at the indices `[batch…,
/// n]`. Rows with an index out of range are dropped.
#[track_caller]
pub fn add_rows(x: &Tensor, indices: &Tensor, rows: &Tensor) -> Tensor {
    Tensor::record("add_rows", || {
        let dimensions = Dimensions::rows(check(x, indices)?, x.rank());
        let expected = dimensions.gathered_shape(x.shape(), indices.shape());
        if rows.live()?.shape().dims() != expected || rows.dtype() != x.dtype() {
            return Err(format!("the rows {} do not fit {}", rows.ty(), x.ty()).into());
        }
        let axis = indices.rank() - 1;
        let clamped = bounds::along(x.shape(), axis, indices, OutOfBounds::PastEnd)?;
        // The operation drops rows out of range; the mask drops their gradient.
        let inside = dimensions.spread(&clamped.inside, rows.shape());
        let rows = inside.select(rows, &rows.zeros_like());
        let scatter = Scatter { method: "add_rows", combine: Combine::Add, dimensions };
        Tensor::try_apply(scatter, &[x, &clamped.indices, &rows])
    })
}
