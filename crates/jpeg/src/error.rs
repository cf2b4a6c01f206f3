//! The reason why a file could not be decoded.
//!
//! Out of scope: the file's name, which the caller knows.

use std::fmt;

use crate::ffi::Failure;

/// The reason why a file could not be decoded.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    message: String,
    cut_short: bool,
}

impl Error {
    pub(crate) fn other(message: impl Into<String>) -> Error {
        Error { message: message.into(), cut_short: false }
    }

    pub(crate) fn cut_short(message: impl Into<String>) -> Error {
        Error { message: message.into(), cut_short: true }
    }

    pub(crate) fn from_failure(failure: Failure) -> Error {
        match failure {
            Failure::Failed(message) => Error::other(message),
            Failure::CutShort => Error::cut_short("the file is truncated"),
            Failure::TooManyScans => {
                Error::other("it has more than 500 scans, more than any valid file")
            }
        }
    }

    /// Whether the file ends too early.
    pub fn is_cut_short(&self) -> bool {
        self.cut_short
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Prints the message, because `fn main() -> Result<(), Box<dyn std::error::Error>>` prints errors
/// with `Debug`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}
