//! The common dtype of several tensors, by [`DType::promote`].
//!
//! Out of scope: broadcasting to a common shape.

use crate::scope::Refusal;
use crate::tensor::all_live;
use crate::{DType, Tensor};

/// The common dtype of `a` and `b`.
pub(super) fn common_dtype(a: &Tensor, b: &Tensor) -> Result<DType, Refusal> {
    all_live([a, b])?;
    a.dtype().promote(b.dtype()).ok_or_else(|| {
        format!(
            "no integer holds both {} and {}; convert one of them with to_dtype()",
            a.ty(),
            b.ty()
        )
        .into()
    })
}

/// The common dtype of all tensors. None of them is poisoned.
pub(super) fn common_dtype_of_all(tensors: &[&Tensor]) -> Result<DType, String> {
    // Floats come first: u64 and a signed integer have a common dtype only together with a float.
    let mut sorted = tensors.to_vec();
    sorted.sort_by_key(|t| !t.dtype().is_inexact());
    let mut dtype = sorted.first().map_or(DType::F32, |t| t.dtype());
    for tensor in sorted {
        dtype = dtype.promote(tensor.dtype()).ok_or_else(|| {
            format!(
                "no integer holds both {dtype} and {}; convert one with to_dtype()",
                tensor.ty()
            )
        })?;
    }
    Ok(dtype)
}
