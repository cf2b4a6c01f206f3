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
