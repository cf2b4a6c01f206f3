//! The error type of this crate. Messages are written where the mistakes are detected.

use std::fmt;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a name or a table could not be read. All such mistakes are the user's.
///
/// ```
/// let error = "v9-8".parse::<fulmen_tpu::Slice>().unwrap_err();
/// assert!(error.is_usage());
/// assert!(error.to_string().contains("there is no generation `v9`"));
/// ```
pub struct Error {
    message: String,
}

impl Error {
    pub(crate) fn usage(message: impl Into<String>) -> Error {
        Error { message: message.into() }
    }

    /// Whether the name of a slice or a price table is invalid: always.
    pub fn is_usage(&self) -> bool {
        true
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
