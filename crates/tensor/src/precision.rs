//! How exactly a TPU or GPU multiplies f32 numbers.
//!
//! Not here: which dtypes the numbers have; see [`autocast`](crate::autocast()).

use std::fmt;
use std::str::FromStr;

use crate::{DType, Error, Result};

/// How exactly products of f32 numbers are computed: matrix products and convolutions of a
/// [`Function`](crate::Function) and their derivatives.
///
/// A TPU's matrix unit multiplies bf16 numbers and sums in f32. An f32 product is made of one or several such passes,
/// and the default is one, so that f32 models run fast and less exactly than on a CPU. A CPU computes in f32 whatever
/// is asked for; on an NVIDIA GPU the default may be TensorFloat-32. Products of other dtypes are not affected.
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
    /// Three passes: each operand is a sum of two bf16 numbers, about 16 bits of mantissa.
    High,
    /// Six passes: each operand is a sum of three bf16 numbers, f32's 24 bits of mantissa.
    Highest,
}

const NAMES: [(&str, MatmulPrecision); 3] =
    [("default", MatmulPrecision::Default), ("high", MatmulPrecision::High), ("highest", MatmulPrecision::Highest)];

impl MatmulPrecision {
    /// Passes of a TPU's matrix unit over an f32 product.
    pub fn tpu_passes(self) -> usize {
        match self {
            MatmulPrecision::Default => 1,
            MatmulPrecision::High => 3,
            MatmulPrecision::Highest => 6,
        }
    }

    /// StableHLO's name of the precision that a product of `dtype` is asked for.
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
        NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|row| row.1).ok_or_else(|| {
            let known: Vec<_> = NAMES.iter().map(|row| row.0).collect();
            Error::usage(format!("`{name}` is not a precision of matrix products; there are: {}", known.join(", ")))
        })
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
