//! Bringing tensors of different dtypes to the one in which they meet, by the rule of [`DType::promote`].
//!
//! Not here: broadcasting, which brings them to one shape.

use crate::{DType, Tensor};

/// The dtype of `a` and `b` together, or a poisoned tensor: one of them, or a new one that says why they do not meet.
#[track_caller]
pub(super) fn common_dtype(method: &str, a: &Tensor, b: &Tensor) -> Result<DType, Tensor> {
    if let Some(poisoned) = [a, b].into_iter().find(|t| t.fault().is_some()) {
        return Err(poisoned.clone());
    }
    match a.dtype().promote(b.dtype()) {
        Some(dtype) => Ok(dtype),
        None => Err(Tensor::poison(
            method,
            format!("no integer holds both {} and {}; convert one of them with to_dtype()", a.ty(), b.ty()),
        )),
    }
}

/// The dtype in which all tensors meet, none of which is poisoned, or a new poisoned tensor that says which do not.
#[track_caller]
pub(super) fn common_dtype_of_all(method: &str, tensors: &[&Tensor]) -> Result<DType, Tensor> {
    // Floats first: beside one, u64 and a signed integer meet in it.
    let mut sorted = tensors.to_vec();
    sorted.sort_by_key(|t| !t.dtype().is_inexact());
    let mut dtype = sorted.first().map_or(DType::F32, |t| t.dtype());
    // No closure: what it records would carry its own line, not the caller's.
    for tensor in sorted {
        dtype = match dtype.promote(tensor.dtype()) {
            Some(dtype) => dtype,
            None => {
                let message = format!("no integer holds both {dtype} and {}; convert one with to_dtype()", tensor.ty());
                return Err(Tensor::poison(method, message));
            }
        };
    }
    Ok(dtype)
}
