//! The dtypes that an operation accepts, and its error messages for others.

use crate::autocast::method_operand;
use crate::scope::Refusal;
use crate::{DType, Tensor};

#[derive(Clone, Copy, Debug)]
pub(super) enum DTypeSet {
    Floats,
    FloatsAndComplex,
    /// Real numbers.
    Numbers,
    NumbersAndComplex,
    NumbersAndBooleans,
    SignedNumbers,
    SignedNumbersAndComplex,
    Integers,
    IntegersAndBooleans,
}

impl DTypeSet {
    /// Checks that the set contains `dtype`. An error is the message of the fault.
    pub(super) fn check(self, dtype: DType) -> Result<(), String> {
        let signed = dtype.is_float() || (dtype.is_integer() && !dtype.is_unsigned());
        let (fits, expected) = match self {
            DTypeSet::Floats => (dtype.is_float(), "floating-point numbers"),
            DTypeSet::FloatsAndComplex => (dtype.is_inexact(), "floating-point numbers"),
            DTypeSet::Numbers => (dtype != DType::Bool && !dtype.is_complex(), "numbers"),
            DTypeSet::NumbersAndComplex => (dtype != DType::Bool, "numbers"),
            DTypeSet::NumbersAndBooleans => (!dtype.is_complex(), "numbers or booleans"),
            DTypeSet::SignedNumbers => (signed, "signed numbers"),
            DTypeSet::SignedNumbersAndComplex => (signed || dtype.is_complex(), "signed numbers"),
            DTypeSet::Integers => (dtype.is_integer(), "integers"),
            DTypeSet::IntegersAndBooleans => {
                (dtype.is_integer() || dtype == DType::Bool, "integers or booleans")
            }
        };
        match (fits, dtype.is_complex()) {
            (true, _) => Ok(()),
            (false, true) => {
                Err(format!("takes real numbers, not {dtype}; use real(), imag() or abs() first"))
            }
            (false, false) => {
                Err(format!("takes {expected}, not {dtype}; convert with to_dtype() first"))
            }
        }
    }

    /// Checks the operand of a composed `method` and applies autocast to it.
    pub(super) fn operand(self, method: &str, x: &Tensor) -> Result<Tensor, Refusal> {
        x.live()?;
        self.check(x.dtype())?;
        Ok(method_operand(method, x))
    }
}
