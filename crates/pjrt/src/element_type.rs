//! Element types, and array types, which add dimensions to an element type.

use std::fmt;

use crate::error::{self, Result};

macro_rules! element_types {
    ($($variant:ident = $buffer:literal, $primitive:literal, $bits:literal, $name:literal, $what:literal;)*) => {
        /// The type of an array's elements.
        ///
        /// Types that a user's buffer cannot hold (tokens, opaque values) are left out.
        ///
        /// ```
        /// use fulmen_pjrt::ElementType;
        /// assert_eq!(ElementType::Bf16.size_in_bits(), 16);
        /// assert_eq!(ElementType::F32.name(), "f32");
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum ElementType {
            $(#[doc = $what] $variant,)*
        }

        impl ElementType {
            /// Every element type.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The size of one element in bits, as StableHLO defines it.
            pub const fn size_in_bits(self) -> usize {
                match self { $(Self::$variant => $bits,)* }
            }

            /// The short name that XLA prints (`f32`, `pred`).
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The value of `PJRT_Buffer_Type`.
            pub(crate) const fn to_raw(self) -> i32 {
                match self { $(Self::$variant => $buffer,)* }
            }

            /// From a value of `PJRT_Buffer_Type`.
            pub(crate) fn from_raw(raw: i32) -> Result<ElementType> {
                match raw {
                    $($buffer => Ok(Self::$variant),)*
                    _ => Err(error::broken(format!(
                        "the plugin uses element type {raw}, which this version of fulmen-pjrt does not know"
                    ))),
                }
            }

            /// Converts XLA's `PrimitiveType`, which numbers the same types differently.
            pub(crate) fn from_primitive(raw: i32) -> Result<ElementType> {
                match raw {
                    $($primitive => Ok(Self::$variant),)*
                    _ => Err(error::broken(format!(
                        "the compiled program has a parameter or result of XLA type {raw}, which is not a plain array"
                    ))),
                }
            }
        }
    };
}

// PJRT_Buffer_Type, xla::PrimitiveType, bits, name, doc.
element_types! {
    Pred = 1, 1, 8, "pred", "Booleans, one byte each.";
    S8 = 2, 2, 8, "s8", "Signed 8-bit integers.";
    S16 = 3, 3, 16, "s16", "Signed 16-bit integers.";
    S32 = 4, 4, 32, "s32", "Signed 32-bit integers.";
    S64 = 5, 5, 64, "s64", "Signed 64-bit integers.";
    U8 = 6, 6, 8, "u8", "Unsigned 8-bit integers.";
    U16 = 7, 7, 16, "u16", "Unsigned 16-bit integers.";
    U32 = 8, 8, 32, "u32", "Unsigned 32-bit integers.";
    U64 = 9, 9, 64, "u64", "Unsigned 64-bit integers.";
    F16 = 10, 10, 16, "f16", "IEEE half precision.";
    F32 = 11, 11, 32, "f32", "IEEE single precision.";
    F64 = 12, 12, 64, "f64", "IEEE double precision.";
    Bf16 = 13, 16, 16, "bf16", "The upper half of an `f32`.";
    C64 = 14, 15, 64, "c64", "Complex numbers of two `f32`.";
    C128 = 15, 18, 128, "c128", "Complex numbers of two `f64`.";
    F8E5M2 = 16, 19, 8, "f8e5m2", "8-bit floats, 5 exponent and 2 mantissa bits.";
    F8E4M3Fn = 17, 20, 8, "f8e4m3fn", "8-bit floats, 4 exponent and 3 mantissa bits, finite only.";
    F8E4M3B11Fnuz = 18, 23, 8, "f8e4m3b11fnuz", "8-bit floats, 4 and 3 bits, bias 11, finite, no negative zero.";
    F8E5M2Fnuz = 19, 24, 8, "f8e5m2fnuz", "8-bit floats, 5 and 2 bits, finite, no negative zero.";
    F8E4M3Fnuz = 20, 25, 8, "f8e4m3fnuz", "8-bit floats, 4 and 3 bits, finite, no negative zero.";
    S4 = 21, 21, 4, "s4", "Signed 4-bit integers (one byte each on the host).";
    U4 = 22, 22, 4, "u4", "Unsigned 4-bit integers (one byte each on the host).";
    S2 = 24, 26, 2, "s2", "Signed 2-bit integers (one byte each on the host).";
    U2 = 25, 27, 2, "u2", "Unsigned 2-bit integers (one byte each on the host).";
    F8E4M3 = 26, 28, 8, "f8e4m3", "8-bit floats, 4 and 3 bits, IEEE rules.";
    F8E3M4 = 27, 29, 8, "f8e3m4", "8-bit floats, 3 and 4 bits, IEEE rules.";
    F8E8M0Fnu = 28, 33, 8, "f8e8m0fnu", "8-bit powers of two, as scales are stored.";
    F4E2M1Fn = 29, 32, 4, "f4e2m1fn", "4-bit floats (one byte each on the host).";
}

impl ElementType {
    /// The size of one element in host memory, in bytes: 4-bit and 2-bit elements take a whole byte
    /// there.
    pub const fn host_bytes(self) -> usize {
        self.size_in_bits().div_ceil(8)
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An element type and dimensions, such as `f32[32,784]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArrayType {
    /// The type of the elements.
    pub element_type: ElementType,
    /// The length of each dimension; empty for a scalar.
    pub dims: Vec<usize>,
}

impl ArrayType {
    /// An array type from its two parts.
    pub fn new(element_type: ElementType, dims: impl Into<Vec<usize>>) -> ArrayType {
        Self { element_type, dims: dims.into() }
    }

    /// The size of such an array in host memory, in bytes.
    ///
    /// Fails if the size exceeds the largest possible allocation.
    pub fn size_in_bytes(&self) -> Result<usize> {
        self.dims
            .iter()
            .try_fold(self.element_type.host_bytes(), |size, &dim| size.checked_mul(dim))
            .filter(|&size| {
                isize::try_from(size).is_ok() && self.dims.iter().all(|&d| i64::try_from(d).is_ok())
            })
            .ok_or_else(|| {
                error::invalid(format!("an array {self} has more bytes than a program can address"))
            })
    }
}

impl fmt::Display for ArrayType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.element_type)?;
        for (i, dim) in self.dims.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_a_round_trip() {
        for &element in ElementType::ALL {
            assert_eq!(ElementType::from_raw(element.to_raw()).unwrap(), element);
        }
        for raw in [0, 23, 99, -1] {
            assert!(
                ElementType::from_raw(raw).is_err(),
                "{raw} is not a type that a user can hold"
            );
        }
    }

    #[test]
    fn sizes_do_not_overflow() {
        assert_eq!(ArrayType::new(ElementType::F32, [2, 3]).size_in_bytes().unwrap(), 24);
        assert_eq!(ArrayType::new(ElementType::S4, [3]).size_in_bytes().unwrap(), 3);
        assert_eq!(ArrayType::new(ElementType::F64, []).size_in_bytes().unwrap(), 8);
        let error = ArrayType::new(ElementType::F64, [usize::MAX, 2]).size_in_bytes().unwrap_err();
        assert!(error.to_string().contains("more bytes than a program can address"), "{error}");
    }
}
