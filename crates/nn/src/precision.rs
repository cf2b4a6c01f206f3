//! Which dtype sums and steep functions are computed in: at least f32, whatever is stored.

use fulmen_tensor::{DType, Tensor};

/// The dtype to compute in for values of this floating-point one.
pub(crate) fn precision(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// A 16-bit float as f32; anything else as it is.
pub(crate) fn wide(x: &Tensor) -> Tensor {
    if x.dtype().is_half() { x.to_dtype(DType::F32) } else { x.clone() }
}
