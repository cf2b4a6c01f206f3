//! [`DType`]: the closed set of element types of a [`Tensor`](crate::Tensor), and [`Element`]: the
//! Rust types that hold them.
//!
//! Out of scope: PJRT's larger enumeration (`fulmen_pjrt::ElementType`), which includes types that
//! no tensor can have.

use std::fmt;

use fulmen_pjrt::ElementType;
use half::{bf16, f16};
use num_complex::Complex;

/// The element type of a tensor.
/// ```
/// use fulmen_tensor::{DType, Tensor};
///
/// let x = Tensor::from_slice(&[1i32, 2, 3], [3]);
/// assert_eq!(x.dtype(), DType::I32);
/// assert_eq!(x.to_dtype(DType::Bf16).dtype(), DType::Bf16);
/// assert_eq!(DType::Bf16.size_in_bytes(), 2);
/// // An operation on two dtypes computes in the smallest that holds both.
/// assert_eq!(DType::I32.promote(DType::Bf16), Some(DType::Bf16));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// 32-bit IEEE float.
    F32,
    /// Brain float: 8 bits of exponent, 7 of mantissa.
    Bf16,
    /// 16-bit IEEE float.
    F16,
    /// 64-bit IEEE float.
    F64,
    /// Signed 8-bit integer.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 8-bit integer.
    U8,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer.
    U64,
    /// Truth value; one byte in host memory.
    Bool,
    /// Complex number of two 32-bit floats.
    C64,
    /// Complex number of two 64-bit floats.
    C128,
}

/// One row per dtype: (dtype, StableHLO name, usual name, bytes, PJRT element type).
const TABLE: [(DType, &str, &str, usize, ElementType); 15] = [
    (DType::F32, "f32", "f32", 4, ElementType::F32),
    (DType::Bf16, "bf16", "bf16", 2, ElementType::Bf16),
    (DType::F16, "f16", "f16", 2, ElementType::F16),
    (DType::F64, "f64", "f64", 8, ElementType::F64),
    (DType::I8, "i8", "i8", 1, ElementType::S8),
    (DType::I16, "i16", "i16", 2, ElementType::S16),
    (DType::I32, "i32", "i32", 4, ElementType::S32),
    (DType::I64, "i64", "i64", 8, ElementType::S64),
    (DType::U8, "ui8", "u8", 1, ElementType::U8),
    (DType::U16, "ui16", "u16", 2, ElementType::U16),
    (DType::U32, "ui32", "u32", 4, ElementType::U32),
    (DType::U64, "ui64", "u64", 8, ElementType::U64),
    (DType::Bool, "i1", "bool", 1, ElementType::Pred),
    (DType::C64, "complex<f32>", "c64", 8, ElementType::C64),
    (DType::C128, "complex<f64>", "c128", 16, ElementType::C128),
];

impl DType {
    /// Every dtype, in the order of the enumeration.
    pub fn all() -> impl Iterator<Item = DType> {
        TABLE.iter().map(|row| row.0)
    }

    fn row(self) -> &'static (DType, &'static str, &'static str, usize, ElementType) {
        &TABLE[self as usize]
    }

    /// The element's name in StableHLO text (`f32`, `ui8`, `i1`, `complex<f32>`).
    pub fn stablehlo(self) -> &'static str {
        self.row().1
    }

    /// The usual name (`f32`, `u8`, `bool`, `c64`).
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// The number of bytes of an element in host memory.
    pub fn size_in_bytes(self) -> usize {
        self.row().3
    }

    /// The matching PJRT type.
    pub fn element_type(self) -> ElementType {
        self.row().4
    }

    /// The dtype that matches a PJRT type, if there is one.
    pub fn from_element_type(element: ElementType) -> Option<DType> {
        TABLE.iter().find(|row| row.4 == element).map(|row| row.0)
    }

    /// Whether this is a real floating-point type. Only these and complex types have gradients.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::Bf16 | DType::F16 | DType::F64)
    }

    /// Whether this is one of the two 16-bit floating-point types.
    pub fn is_half(self) -> bool {
        matches!(self, DType::Bf16 | DType::F16)
    }

    /// Whether this is a complex type.
    pub fn is_complex(self) -> bool {
        matches!(self, DType::C64 | DType::C128)
    }

    /// Whether this is a floating-point or a complex type (NumPy's `inexact`): one that has
    /// gradients.
    pub fn is_inexact(self) -> bool {
        self.is_float() || self.is_complex()
    }

    /// The dtype of the real and the imaginary part of a complex dtype. Other dtypes are returned
    /// unchanged.
    ///
    /// ```
    /// use fulmen_tensor::DType;
    /// assert_eq!(DType::C64.real(), DType::F32);
    /// assert_eq!(DType::I8.real(), DType::I8);
    /// ```
    pub fn real(self) -> DType {
        match self {
            DType::C64 => DType::F32,
            DType::C128 => DType::F64,
            other => other,
        }
    }

    /// The dtype that two dtypes promote to. It applies to binary elementwise operations of
    /// [`Tensor`](crate::Tensor), comparisons, `select`, `concatenate`, `stack`, matrix products
    /// and convolutions.
    ///
    /// - A boolean promotes to the other dtype.
    /// - Two signed integers, or two unsigned ones, promote to the wider.
    /// - A signed and an unsigned integer promote to the signed one if it is wider, else to the
    ///   next signed integer that holds both: u32 and i32 promote to i64.
    /// - No integer holds both u64 and signed integers: the result is `None`, and an operation on
    ///   such operands is poisoned.
    /// - An integer and a floating-point dtype promote to the floating-point dtype, even if it is
    ///   narrower.
    /// - Two floating-point dtypes promote to the wider. bf16 and f16 promote to f32, since neither
    ///   holds the other.
    /// - A complex dtype and another dtype promote to c128 if either is c128 or f64, else to c64.
    ///
    /// This is JAX's lattice, except that JAX promotes u64 and a signed integer to f64. Here only
    /// f64 and c128 promote to 64-bit floats. A plain number takes the dtype of the tensor that it
    /// is combined with.
    ///
    /// ```
    /// use fulmen_tensor::DType;
    /// assert_eq!(DType::Bf16.promote(DType::F32), Some(DType::F32));
    /// assert_eq!(DType::Bf16.promote(DType::F16), Some(DType::F32));
    /// assert_eq!(DType::I64.promote(DType::Bf16), Some(DType::Bf16));
    /// assert_eq!(DType::I8.promote(DType::U8), Some(DType::I16));
    /// assert_eq!(DType::I64.promote(DType::U64), None);
    /// ```
    pub fn promote(self, other: DType) -> Option<DType> {
        // Booleans, integers, floats and complex numbers, in the order of promotion.
        let kind = |dtype: DType| match dtype {
            DType::Bool => 0,
            _ if dtype.is_integer() => 1,
            _ if dtype.is_float() => 2,
            _ => 3,
        };
        let (low, high) = if kind(self) <= kind(other) { (self, other) } else { (other, self) };
        let wider = if low.size_in_bytes() > high.size_in_bytes() { low } else { high };
        match (kind(low), kind(high)) {
            _ if low == high => Some(high),
            (1, 1) if low.is_unsigned() != high.is_unsigned() => {
                let (signed, unsigned) = if low.is_unsigned() { (high, low) } else { (low, high) };
                match signed.size_in_bytes().max(2 * unsigned.size_in_bytes()) {
                    2 => Some(DType::I16),
                    4 => Some(DType::I32),
                    8 => Some(DType::I64),
                    _ => None,
                }
            }
            (2, 2) if low.is_half() && high.is_half() => Some(DType::F32),
            (1, 1) | (2, 2) | (3, 3) => Some(wider),
            (2, 3) if low == DType::F64 => Some(DType::C128),
            _ => Some(high),
        }
    }

    /// Whether this is a signed or unsigned integer type.
    pub fn is_integer(self) -> bool {
        !self.is_inexact() && self != DType::Bool
    }

    /// Whether this is an unsigned integer type.
    pub fn is_unsigned(self) -> bool {
        matches!(self, DType::U8 | DType::U16 | DType::U32 | DType::U64)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that can be an element of a tensor on the host.
///
/// Sealed. Implemented for the twelve types of real numbers, for `num_complex::Complex` of `f32`
/// and `f64`, and for `bool`.
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// The dtype of this Rust type.
    const DTYPE: DType;
    /// The bytes of `values`, little-endian, as host memory holds them.
    fn to_bytes(values: &[Self]) -> Vec<u8>;
    /// The values in `bytes`. Trailing bytes that are not a whole element are ignored.
    fn from_bytes(bytes: &[u8]) -> Vec<Self>;
}

macro_rules! number {
    ($($rust:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
            fn to_bytes(values: &[Self]) -> Vec<u8> {
                bytemuck::cast_slice(values).to_vec()
            }
            fn from_bytes(bytes: &[u8]) -> Vec<Self> {
                bytes.chunks_exact(size_of::<Self>()).map(bytemuck::pod_read_unaligned).collect()
            }
        }
    )*};
}

number! {
    f32 => F32, bf16 => Bf16, f16 => F16, f64 => F64,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
    Complex<f32> => C64, Complex<f64> => C128,
}

impl sealed::Sealed for bool {}
impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn to_bytes(values: &[Self]) -> Vec<u8> {
        values.iter().map(|&v| u8::from(v)).collect()
    }
    fn from_bytes(bytes: &[u8]) -> Vec<Self> {
        bytes.iter().map(|&b| b != 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_order_of_the_enumeration() {
        for (i, dtype) in DType::all().enumerate() {
            assert_eq!(dtype as usize, i);
            assert_eq!(DType::from_element_type(dtype.element_type()), Some(dtype));
        }
    }

    #[test]
    fn elements_convert_to_bytes_and_back() {
        let values = [1.5f32, -0.0, f32::INFINITY];
        assert_eq!(f32::from_bytes(&f32::to_bytes(&values)), values);
        assert_eq!(bool::from_bytes(&bool::to_bytes(&[true, false])), [true, false]);
        let complex = [Complex::new(1.5f64, -2.0)];
        assert_eq!(Complex::<f64>::from_bytes(&Complex::<f64>::to_bytes(&complex)), complex);
    }
}
