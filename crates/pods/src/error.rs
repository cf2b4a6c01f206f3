//! The error type of this crate.

use std::fmt;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a run over many hosts could not start.
///
/// ```
/// use clap::Parser;
///
/// #[derive(Parser)]
/// struct Cli {
///     #[command(flatten)]
///     pod: fulmen_pods::Arguments,
/// }
///
/// let cli = Cli::parse_from(["pod", "run", "--hosts", "a,b", "--", "./train"]);
/// let error = fulmen_pods::run(cli.pod, &mut std::io::sink(), fulmen_pods::signals).unwrap_err();
/// assert!(error.is_usage() && error.to_string().contains("./train"));
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
