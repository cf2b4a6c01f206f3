//! The dtype in which sums and steep functions are computed: at least f32, even if values are
//! stored in 16 bits.

use fulmen_tensor::DType;
pub(crate) use fulmen_tensor::internal::wide;

/// The dtype in which to compute with values of this floating-point or complex dtype.
pub(crate) fn precision(dtype: DType) -> DType {
    match dtype {
        DType::F64 | DType::C64 | DType::C128 => dtype,
        _ => DType::F32,
    }
}
