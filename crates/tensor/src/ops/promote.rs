//! Bringing tensors of different dtypes to the one in which they meet, by the rule of [`DType::promote`].
//!
//! Not here: broadcasting, which brings them to one shape.

use crate::scope::Refusal;
use crate::tensor::all_live;
use crate::{DType, Tensor};

/// The dtype in which `a` and `b` meet.
pub(super) fn common_dtype(a: &Tensor, b: &Tensor) -> Result<DType, Refusal> {
    all_live([a, b])?;
    a.dtype().promote(b.dtype()).ok_or_else(|| {
        format!("no integer holds both {} and {}; convert one of them with to_dtype()", a.ty(), b.ty()).into()
    })
}

/// The dtype in which all tensors meet, none of which is poisoned.
pub(super) fn common_dtype_of_all(tensors: &[&Tensor]) -> Result<DType, String> {
    // Floats first: with one, u64 and a signed integer are promoted to it.
    let mut sorted = tensors.to_vec();
    sorted.sort_by_key(|t| !t.dtype().is_inexact());
    let mut dtype = sorted.first().map_or(DType::F32, |t| t.dtype());
    for tensor in sorted {
        dtype = dtype
            .promote(tensor.dtype())
            .ok_or_else(|| format!("no integer holds both {dtype} and {}; convert one with to_dtype()", tensor.ty()))?;
    }
    Ok(dtype)
}
