//! Parameters that are either one number or a range.
//!
//! Out of scope: their meaning, which each transform documents.

use std::fmt;

use fulmen_data::{Error, Result, SampleRng};

/// A parameter that torchvision takes as one number or as a pair. Convert it from an `f64` or from
/// `(least, most)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FactorRange {
    /// One number, from which the transform computes its range.
    One(f64),
    /// The range from the first to the second number.
    Range(f64, f64),
}

impl From<f64> for FactorRange {
    fn from(amount: f64) -> FactorRange {
        FactorRange::One(amount)
    }
}

impl From<(f64, f64)> for FactorRange {
    fn from((least, most): (f64, f64)) -> FactorRange {
        FactorRange::Range(least, most)
    }
}

impl FactorRange {
    /// The range around `center`. A single number extends by the same amount to both sides, but not
    /// below `minimum`.
    pub(super) fn around(self, center: f64, minimum: f64) -> (f64, f64) {
        match self {
            FactorRange::One(amount) => ((center - amount).max(minimum), center + amount),
            FactorRange::Range(from, to) => (from, to),
        }
    }

    /// Rejects a negative number, an empty or reversed range, and values outside `allowed`.
    pub(super) fn check(self, name: &str, center: f64, allowed: (f64, f64)) -> Result<()> {
        if let FactorRange::One(amount) = self
            && !(amount >= 0.0 && amount.is_finite())
        {
            return Err(Error::usage(format!(
                "the {name} is {amount}; it must be at least 0, because it is the largest change from {center}"
            )));
        }
        let (from, to) = self.around(center, allowed.0);
        if allowed.0 <= from && from <= to && to <= allowed.1 && to.is_finite() && from.is_finite()
        {
            Ok(())
        } else {
            let (lower, upper) = allowed;
            let limits = match (lower.is_finite(), upper.is_finite()) {
                (true, true) => format!(", within {lower} to {upper}"),
                (true, false) => format!(", from {lower} up"),
                _ => String::new(),
            };
            let message =
                format!("the {name} goes from {from} to {to}; it must be ascending{limits}");
            Err(Error::usage(message))
        }
    }
}

impl fmt::Display for FactorRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FactorRange::One(amount) => write!(f, "{amount}"),
            FactorRange::Range(from, to) => write!(f, "{from}..{to}"),
        }
    }
}

/// Draws uniformly from a range.
pub(super) fn draw(random: &mut SampleRng, (from, to): (f64, f64)) -> f64 {
    random.uniform(from, to)
}
