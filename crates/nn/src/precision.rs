//! The dtype in which sums and steep functions are computed: at least f32, even if values are
//! stored in 16 bits.

pub(crate) use fulmen_tensor::internal::wide;
use fulmen_tensor::{DType, Refusal, Tensor};

/// The dtype in which to compute with values of this floating-point or complex dtype.
pub(crate) fn precision(dtype: DType) -> DType {
    match dtype {
        DType::F64 | DType::C64 | DType::C128 => dtype,
        _ => DType::F32,
    }
}

/// The dtype of a product of tensors of these dtypes, also under autocast.
pub(crate) fn product_dtype(a: DType, b: DType) -> Result<DType, Refusal> {
    Ok(Tensor::zeros(a, [1]).matmul(Tensor::zeros(b, [1])).live()?.dtype())
}
