//! The first NaN or infinity in the first batch of a training, so that a loss that is NaN at once
//! names its cause.

use std::fmt;

use fulmen_tensor::DType;

use super::layout::Layout;

/// A value of a batch that is NaN or infinite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotFinite {
    field: String,
    row: usize,
    is_nan: bool,
    sample: u64,
    origin: Option<String>,
}

impl NotFinite {
    /// Looks for one in a row of a batch in `memory`. The batch's first row is row `first` of the
    /// batch of all processes. `origin` says where sample `sample` comes from.
    pub(crate) fn find(
        layout: &Layout,
        memory: &[u8],
        row: usize,
        first: usize,
        sample: u64,
        origin: impl FnOnce() -> Option<String>,
    ) -> Option<NotFinite> {
        let fields = layout.fields().iter().enumerate();
        let (name, is_nan) = fields
            .filter_map(|(i, field)| {
                Some((&field.name, not_finite(field.dtype, &memory[layout.row(i, row)])?))
            })
            .next()?;
        let field = name.clone();
        let origin = origin();
        Some(NotFinite { field, row: first + row, is_nan, sample, origin })
    }
}

/// Whether the first element that is not finite is NaN. `None` if all are finite.
fn not_finite(dtype: DType, bytes: &[u8]) -> Option<bool> {
    let (width, mantissa_bits, exponent_bits) = match dtype {
        DType::F64 => (8, 52, 11),
        DType::F32 => (4, 23, 8),
        DType::F16 => (2, 10, 5),
        DType::Bf16 => (2, 7, 8),
        _ => return None,
    };
    let exponent = ((1u64 << exponent_bits) - 1) << mantissa_bits;
    bytes.chunks_exact(width).find_map(|element| {
        let mut word = [0; 8];
        word[..width].copy_from_slice(element);
        let bits = u64::from_le_bytes(word);
        (bits & exponent == exponent).then(|| bits & ((1 << mantissa_bits) - 1) != 0)
    })
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotFinite { field, row, is_nan, sample, origin } = self;
        let value = if *is_nan { "NaN" } else { "infinite" };
        write!(f, "field `{field}` in row {row} of the first batch is {value} (sample {sample}")?;
        match origin {
            Some(origin) => write!(f, ", {origin})"),
            None => f.write_str(")"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_and_infinity_are_told_apart_in_every_dtype() {
        assert_eq!(not_finite(DType::F32, &1.5f32.to_le_bytes()), None);
        assert_eq!(not_finite(DType::F32, &f32::NAN.to_le_bytes()), Some(true));
        assert_eq!(not_finite(DType::F64, &f64::NEG_INFINITY.to_le_bytes()), Some(false));
        assert_eq!(not_finite(DType::F64, &f64::MAX.to_le_bytes()), None);
        // f16 and bf16: infinity, NaN, the largest number.
        for (dtype, infinity) in [(DType::F16, 0x7c00u16), (DType::Bf16, 0x7f80)] {
            let all: Vec<u8> = [infinity - 1, infinity].map(u16::to_le_bytes).concat();
            assert_eq!(not_finite(dtype, &all[..2]), None);
            assert_eq!(not_finite(dtype, &all), Some(false));
            assert_eq!(not_finite(dtype, &(infinity | 0x8001).to_le_bytes()), Some(true));
        }
        assert_eq!(not_finite(DType::I32, &[0xff; 4]), None);
    }
}
