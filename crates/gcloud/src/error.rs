//! The error type of this crate.

use std::fmt;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a command for TPU VMs failed.
///
/// ```
/// let error = fulmen_gcloud::hosts("--help", None, None).unwrap_err();
/// assert!(error.is_usage() && error.to_string().contains("`--help` is not a name"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    usage: bool,
    message: String,
}

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Error {
        Error { usage: false, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Error {
        Error { usage: true, message: message.into() }
    }

    /// Whether an argument is invalid.
    pub fn is_usage(&self) -> bool {
        self.usage
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Prints the message, as `fn main() -> Result<(), Box<dyn std::error::Error>>` does.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}
