//! Which dtypes an operation takes, and what it says of others.

use crate::DType;

#[derive(Clone, Copy, Debug)]
pub(super) enum Takes {
    Floats,
    Numbers,
    SignedNumbers,
    Integers,
    IntegersAndBooleans,
}

impl Takes {
    /// Nothing, or a sentence for the fault.
    pub(super) fn check(self, dtype: DType) -> Result<(), String> {
        let (fits, expected) = match self {
            Takes::Floats => (dtype.is_float(), "floating-point numbers"),
            Takes::Numbers => (dtype != DType::Bool, "numbers"),
            Takes::SignedNumbers => (dtype != DType::Bool && !dtype.is_unsigned(), "signed numbers"),
            Takes::Integers => (dtype.is_integer(), "integers"),
            Takes::IntegersAndBooleans => (!dtype.is_float(), "integers or booleans"),
        };
        if fits { Ok(()) } else { Err(format!("takes {expected}, not {dtype}; convert with to_dtype() first")) }
    }
}
