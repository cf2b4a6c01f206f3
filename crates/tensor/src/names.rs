//! Values that are chosen by name: an accelerator, a precision.

use crate::{Error, Result};

/// The value with this name, in capitals or not. `what` describes the values in the error.
///
/// # Errors
/// There is no such name. The error lists the names.
pub(crate) fn find<T: Copy>(names: &[(&str, T)], name: &str, what: &str) -> Result<T> {
    let row = names.iter().find(|row| row.0.eq_ignore_ascii_case(name));
    row.map(|row| row.1).ok_or_else(|| {
        let all: Vec<_> = names.iter().map(|row| row.0).collect();
        Error::usage(format!("`{name}` is not {what}; there are: {}", all.join(", ")))
    })
}
