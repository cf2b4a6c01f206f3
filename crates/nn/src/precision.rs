//! The dtype in which sums and steep functions are computed: at least f32, even if values are
//! stored in 16 bits.

use fulmen_tensor::{DType, Tensor};

/// The dtype in which to compute with values of this floating-point dtype.
pub(crate) fn precision(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Converts 16-bit floats to f32; returns other tensors unchanged.
pub(crate) fn wide(x: &Tensor) -> Tensor {
    if x.dtype().is_half() { x.to_dtype(DType::F32) } else { x.clone() }
}
