//! The dtype of sums.

use fulmen_tensor::DType;

/// The dtype of sums and averages over many steps: at least f32, because smaller types would lose
/// small terms.
pub(crate) fn sum_dtype(value: DType) -> DType {
    match value {
        DType::F64 | DType::C64 | DType::C128 => value,
        _ => DType::F32,
    }
}
