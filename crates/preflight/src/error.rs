//! The error type of this crate. Messages are written where the mistakes are detected.

use std::fmt;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a program could not be estimated, or a name or a table could not be read. A program that
/// does not fit is not an error: see [`Report::all_fit`](crate::Report::all_fit).
///
/// The kind is private; use the `is_...` methods. The message is complete:
/// [`source`](std::error::Error::source) returns only causes that the message does not show.
///
/// ```
/// let error = fulmen_preflight::Gpu::find("voodoo2").unwrap_err();
/// assert!(error.is_usage());
/// assert!(error.to_string().contains("there is no GPU `voodoo2`"));
/// ```
pub struct Error(Kind);

enum Kind {
    Usage(String),
    Compiler { action: String, source: fulmen_pjrt::Error },
}

impl Error {
    pub(crate) fn usage(message: impl Into<String>) -> Error {
        Error(Kind::Usage(message.into()))
    }

    /// A failure of libtpu, with the action that failed.
    pub fn compiler(action: impl Into<String>, source: fulmen_pjrt::Error) -> Error {
        Error(Kind::Compiler { action: action.into(), source })
    }

    /// The error of libtpu, if that is the cause.
    pub fn get_ref(&self) -> Option<&fulmen_pjrt::Error> {
        match &self.0 {
            Kind::Compiler { source, .. } => Some(source),
            Kind::Usage(_) => None,
        }
    }

    /// Whether the name of a slice, a price table or another argument is invalid.
    pub fn is_usage(&self) -> bool {
        matches!(self.0, Kind::Usage(_))
    }

    /// Whether libtpu is missing, rejected the program or failed.
    pub fn is_runtime(&self) -> bool {
        matches!(self.0, Kind::Compiler { .. })
    }

    /// Whether the disk is full.
    pub fn is_disk_full(&self) -> bool {
        self.get_ref().is_some_and(fulmen_pjrt::Error::is_disk_full)
    }

    /// Whether there was not enough memory.
    pub fn is_out_of_memory(&self) -> bool {
        self.get_ref().is_some_and(fulmen_pjrt::Error::is_out_of_memory)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Usage(message) => f.write_str(message),
            Kind::Compiler { action, source } => write!(f, "{action}: {source}"),
        }
    }
}

/// Prints the message, as `fn main() -> Result<(), Box<dyn std::error::Error>>` does.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A mistake in the name of a slice or in a table of prices.
impl From<fulmen_tpu::Error> for Error {
    fn from(source: fulmen_tpu::Error) -> Error {
        Error::usage(source.to_string())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(self.get_ref()?)
    }
}
