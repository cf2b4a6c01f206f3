//! What became of each name when weights were loaded.

use std::fmt;

use fulmen_tensor::{DType, TensorType};

/// What to do when a file's names and shapes are not the model's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// Load nothing and say what does not fit.
    Strict,
    /// Load what fits.
    Lenient,
}

/// What became of each name when weights were loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadReport {
    /// In both and loaded.
    pub loaded: Vec<String>,
    /// In the model, not in the file.
    pub missing: Vec<String>,
    /// In the file, not in the model.
    pub unexpected: Vec<String>,
    /// In both with different types, and not loaded.
    pub mismatched: Vec<Mismatch>,
    /// One parameter in the model, with different values under two of its names in the file. A lenient load takes the
    /// first.
    pub conflicting: Vec<Conflict>,
    /// Loaded from another floating-point type.
    pub converted: Vec<Conversion>,
}

/// A name with another shape, or another kind of elements, in the file than in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mismatch {
    /// The name.
    pub name: String,
    /// The model's type.
    pub expected: TensorType,
    /// The file's type.
    pub found: TensorType,
}

/// Two names of one parameter of the model, tied weights, that the file has different values for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Conflict {
    /// The first name that the file has.
    pub name: String,
    /// Another, with another value.
    pub other: String,
}

/// A value that was rounded or widened to the model's floating-point type.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Conversion {
    /// The name.
    pub name: String,
    /// The file's dtype.
    pub from: DType,
    /// The model's dtype.
    pub to: DType,
}

impl LoadReport {
    /// Whether every name of the model was loaded and the file has nothing else.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty()
            && self.unexpected.is_empty()
            && self.mismatched.is_empty()
            && self.conflicting.is_empty()
    }

    /// One line for each kind of mismatch that there is, each begun on a new line.
    pub(crate) fn describe_mismatches(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, names) in [("missing in the file", &self.missing), ("not part of the model", &self.unexpected)] {
            if !names.is_empty() {
                write!(f, "\n  {what}: {}", names.join(", "))?;
            }
        }
        for mismatch in &self.mismatched {
            write!(f, "\n  {}: the model has {}, the file {}", mismatch.name, mismatch.expected, mismatch.found)?;
        }
        for Conflict { name, other } in &self.conflicting {
            write!(f, "\n  {name} and {other}: one parameter in the model, two values in the file")?;
        }
        Ok(())
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values loaded", self.loaded.len())?;
        if !self.converted.is_empty() {
            let all: Vec<_> = self.converted.iter().map(|c| format!("{} ({} to {})", c.name, c.from, c.to)).collect();
            write!(f, "\n  converted: {}", all.join(", "))?;
        }
        self.describe_mismatches(f)
    }
}
