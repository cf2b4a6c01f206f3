//! Which dtypes an operation takes, and what it says of others.

use crate::autocast::for_method;
use crate::scope::Refusal;
use crate::{DType, Tensor};

#[derive(Clone, Copy, Debug)]
pub(super) enum Takes {
    Floats,
    FloatsAndComplex,
    /// Real ones.
    Numbers,
    NumbersAndComplex,
    NumbersAndBooleans,
    SignedNumbers,
    SignedNumbersAndComplex,
    Integers,
    IntegersAndBooleans,
}

impl Takes {
    /// Nothing, or a sentence for the fault.
    pub(super) fn check(self, dtype: DType) -> Result<(), String> {
        let signed = dtype.is_float() || (dtype.is_integer() && !dtype.is_unsigned());
        let (fits, expected) = match self {
            Takes::Floats => (dtype.is_float(), "floating-point numbers"),
            Takes::FloatsAndComplex => (dtype.is_inexact(), "floating-point numbers"),
            Takes::Numbers => (dtype != DType::Bool && !dtype.is_complex(), "numbers"),
            Takes::NumbersAndComplex => (dtype != DType::Bool, "numbers"),
            Takes::NumbersAndBooleans => (!dtype.is_complex(), "numbers or booleans"),
            Takes::SignedNumbers => (signed, "signed numbers"),
            Takes::SignedNumbersAndComplex => (signed || dtype.is_complex(), "signed numbers"),
            Takes::Integers => (dtype.is_integer(), "integers"),
            Takes::IntegersAndBooleans => (dtype.is_integer() || dtype == DType::Bool, "integers or booleans"),
        };
        match (fits, dtype.is_complex()) {
            (true, _) => Ok(()),
            (false, true) => Err(format!("takes real numbers, not {dtype}; use real(), imag() or abs() first")),
            (false, false) => Err(format!("takes {expected}, not {dtype}; convert with to_dtype() first")),
        }
    }

    /// The operand of a `method` that is composed of others, as autocast wants it.
    pub(super) fn operand(self, method: &str, x: &Tensor) -> Result<Tensor, Refusal> {
        x.live()?;
        self.check(x.dtype())?;
        Ok(for_method(method, x))
    }
}
