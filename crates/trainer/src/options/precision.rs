//! [`Precision`]: the element types of a model and its computations.

use std::fmt;
use std::str::FromStr;

use fulmen_tensor::DType;

use crate::options::lightning_names::replacement_for_value;
use crate::{Error, Result};

/// The element types of a model and its computations. The names are Lightning's.
///
/// In mixed precision, parameters, optimizer state, batch statistics, softmax and losses are f32.
/// Matrix products and convolutions have 16-bit operands and sum in f32 (see
/// [`fulmen_tensor::autocast`]).
///
/// ```
/// use fulmen_trainer::Precision;
/// assert_eq!("bf16-mixed".parse::<Precision>()?, Precision::Bf16Mixed);
/// assert_eq!(Precision::from(16).to_string(), "bf16-mixed (16 means bf16 on XLA devices)");
/// assert!("eight".parse::<Precision>().unwrap_err().to_string().contains("16-mixed"));
/// # Ok::<(), fulmen_trainer::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Everything in f32: `32-true`, `32`. [`MatmulPrecision`](fulmen_tensor::MatmulPrecision) sets
    /// how a TPU computes products of f32.
    #[default]
    F32,
    /// Products in bf16: `bf16-mixed`, `bf16`.
    Bf16Mixed,
    /// Everything in bf16, including parameters and buffers: `bf16-true`. The module is converted
    /// and stays converted. The optimizer computes in f32. Its results are rounded stochastically,
    /// unless the option `stochastic_rounding` is off.
    Bf16,
    /// Products in f16, with a loss scale that grows and shrinks: `16-mixed`, for GPUs. TPUs have
    /// no f16 units.
    F16Mixed,
    /// A number of bits: 32 means f32, and 16 means bf16-mixed, because bf16 is the 16-bit type of
    /// XLA devices. Other numbers are invalid.
    Bits(i32),
}

const NAMES: [(&str, Precision); 10] = [
    ("32-true", Precision::F32),
    ("bf16-mixed", Precision::Bf16Mixed),
    ("bf16-true", Precision::Bf16),
    ("16-mixed", Precision::F16Mixed),
    ("f32", Precision::F32),
    ("bf16", Precision::Bf16Mixed),
    ("f16-mixed", Precision::F16Mixed),
    ("f32-true", Precision::F32),
    ("16-true", Precision::Bf16),
    // This row exists so that `config_error` can reject it with a reason.
    ("64-true", Precision::Bits(64)),
];

impl Precision {
    /// The element type of products, if it differs from that of their operands.
    pub(crate) fn autocast(self) -> Option<DType> {
        match self {
            Precision::Bf16Mixed | Precision::Bits(16) => Some(DType::Bf16),
            Precision::F16Mixed => Some(DType::F16),
            Precision::F32 | Precision::Bf16 | Precision::Bits(_) => None,
        }
    }

    /// The element type to which parameters and the floating-point fields of a batch are converted,
    /// if any.
    pub(crate) fn cast_dtype(self) -> Option<DType> {
        (self == Precision::Bf16).then_some(DType::Bf16)
    }

    /// Whether the loss is scaled, so that small gradients don't vanish in f16.
    pub(crate) fn scales_loss(self) -> bool {
        self == Precision::F16Mixed
    }

    /// Converts a number of bits to the precision that it means. Other precisions stay unchanged.
    pub(crate) fn resolved(self) -> Precision {
        match self {
            Precision::Bits(16) => Precision::Bf16Mixed,
            Precision::Bits(32) => Precision::F32,
            _ => self,
        }
    }

    /// Returns Lightning's name.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|row| row.1 == self.resolved()).map_or("unknown", |row| row.0)
    }

    /// What is expected, if the number of bits is invalid.
    pub(crate) fn config_error(&self) -> Option<&'static str> {
        match self {
            Precision::Bits(16 | 32) => None,
            Precision::Bits(64) => Some("a TPU has no 64-bit floats; use 32-true"),
            Precision::Bits(_) => Some("the number of bits must be 16 or 32"),
            _ => None,
        }
    }
}

impl From<i32> for Precision {
    fn from(bits: i32) -> Precision {
        Precision::Bits(bits)
    }
}

impl FromStr for Precision {
    type Err = Error;
    fn from_str(name: &str) -> Result<Precision> {
        if let Ok(bits) = name.parse() {
            return Ok(Precision::Bits(bits));
        }
        NAMES
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|row| row.1)
            .ok_or_else(|| {
                if let Some(replacement) = replacement_for_value("precision", name) {
                    return Error::usage(format!("`{name}` is not a precision: {replacement}"));
                }
                let known: Vec<_> = NAMES[..4].iter().map(|row| row.0).collect();
                Error::usage(format!(
                    "`{name}` is not a precision; there are: {}, 16 and 32",
                    known.join(", ")
                ))
            })
    }
}

impl TryFrom<&str> for Precision {
    type Error = Error;
    fn try_from(name: &str) -> Result<Precision> {
        name.parse()
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Precision::Bits(16) => write!(f, "{} (16 means bf16 on XLA devices)", self.name()),
            Precision::Bits(32) => f.write_str(self.name()),
            Precision::Bits(bits) => bits.fmt(f),
            _ => f.write_str(self.name()),
        }
    }
}
