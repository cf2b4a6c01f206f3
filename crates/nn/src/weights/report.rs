//! The result of loading weights, name by name.

use std::fmt;

use fulmen_durable::messages::quantity;
use fulmen_tensor::{DType, TensorType};

/// What to do if a file's names and shapes differ from the model's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// Load nothing, and report the differences as an error.
    Strict,
    /// Load whatever fits.
    Lenient,
}

/// The result of loading weights, name by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadReport {
    /// Names that were loaded.
    pub loaded: Vec<String>,
    /// Names of the model that the file does not have.
    pub missing: Vec<String>,
    /// Names of the file that the model does not have.
    pub unexpected: Vec<String>,
    /// Names whose types differ; they were not loaded.
    pub mismatched: Vec<Mismatch>,
    /// One parameter in the model, with different values under two of its names in the file. A
    /// lenient load takes the first.
    pub conflicting: Vec<Conflict>,
    /// Loaded from another floating-point type.
    pub converted: Vec<Conversion>,
}

/// A name whose shape or kind of elements differs between the file and the model.
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

/// Two names of one parameter of the model (tied weights) with different values in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Conflict {
    /// The first name in the file.
    pub name: String,
    /// A further name with a different value.
    pub other: String,
}

/// A value that was converted to the model's floating-point type.
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
    /// Whether every name of the model was loaded and the file has no others.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty()
            && self.unexpected.is_empty()
            && self.mismatched.is_empty()
            && self.conflicting.is_empty()
    }

    /// One line for each kind of mismatch that occurs, each starting on a new line.
    pub(crate) fn describe_mismatches(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (problem, names) in
            [("missing in the file", &self.missing), ("not part of the model", &self.unexpected)]
        {
            if !names.is_empty() {
                write!(f, "\n  {problem}: {}", names.join(", "))?;
            }
        }
        for mismatch in &self.mismatched {
            write!(
                f,
                "\n  {}: the model has {}, the file {}",
                mismatch.name, mismatch.expected, mismatch.found
            )?;
        }
        for Conflict { name, other } in &self.conflicting {
            write!(
                f,
                "\n  {name} and {other}: one parameter in the model, two values in the file"
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} loaded", quantity(self.loaded.len(), "value"))?;
        if !self.converted.is_empty() {
            let all: Vec<_> = self
                .converted
                .iter()
                .map(|c| format!("{} ({} to {})", c.name, c.from, c.to))
                .collect();
            write!(f, "\n  converted: {}", all.join(", "))?;
        }
        self.describe_mismatches(f)
    }
}
