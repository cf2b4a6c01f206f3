//! [`MatmulPrecision`]: the precision of f32 matrix products on a TPU or GPU.
//!
//! Out of scope: the dtypes of the operands; see [`autocast`](crate::autocast()).

use std::fmt;
use std::str::FromStr;

use crate::{DType, Error, Result, names};

/// The precision of f32 matrix products and convolutions in a [`Function`](crate::Function),
/// including their derivatives.
///
/// A TPU's matrix unit multiplies bf16 numbers and accumulates in f32. An f32 product takes one or
/// more such passes. The default is one pass, so f32 models run fast but less exactly than on a
/// CPU. A CPU always computes in f32. On an NVIDIA GPU the default may be TensorFloat-32. Products
/// of other dtypes are not affected.
///
/// ```
/// use fulmen_tensor::MatmulPrecision;
/// assert_eq!("highest".parse::<MatmulPrecision>().unwrap(), MatmulPrecision::Highest);
/// assert!("float32".parse::<MatmulPrecision>().unwrap_err().to_string().contains("default, high, highest"));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MatmulPrecision {
    /// One pass: both operands are rounded to bf16, 8 bits of mantissa.
    #[default]
    Default,
    /// Three passes: each operand is a sum of two bf16 numbers, with about 16 bits of mantissa.
    High,
    /// Six passes: each operand is a sum of three bf16 numbers, with f32's 24 bits of mantissa.
    Highest,
}

const NAMES: [(&str, MatmulPrecision); 3] = [
    ("default", MatmulPrecision::Default),
    ("high", MatmulPrecision::High),
    ("highest", MatmulPrecision::Highest),
];

impl MatmulPrecision {
    /// The number of passes that a TPU's matrix unit needs for an f32 product.
    pub fn tpu_passes(self) -> usize {
        match self {
            MatmulPrecision::Default => 1,
            MatmulPrecision::High => 3,
            MatmulPrecision::Highest => 6,
        }
    }

    /// StableHLO's name for the precision of a product of `dtype`.
    pub(crate) fn stablehlo(self, dtype: DType) -> &'static str {
        match self {
            MatmulPrecision::High if dtype == DType::F32 => "HIGH",
            MatmulPrecision::Highest if dtype == DType::F32 => "HIGHEST",
            _ => "DEFAULT",
        }
    }
}

impl FromStr for MatmulPrecision {
    type Err = Error;
    fn from_str(name: &str) -> Result<MatmulPrecision> {
        names::find(&NAMES, name, "a matmul precision")
    }
}

impl TryFrom<&str> for MatmulPrecision {
    type Error = Error;
    fn try_from(name: &str) -> Result<MatmulPrecision> {
        name.parse()
    }
}

impl fmt::Display for MatmulPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|row| row.1 == *self).map_or("default", |row| row.0);
        f.write_str(name)
    }
}
