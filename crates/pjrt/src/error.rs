//! The error type of this crate. Callers use its `is_...` methods instead of matching on variants.

use std::fmt;

use crate::abi::PJRT_Error_Code;
use crate::key_value::KeyValueError;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation of this crate failed, where, and what to do next.
///
/// The kind is private, so that it can grow; use the `is_...` methods. The message is complete:
/// [`source`](std::error::Error::source) only returns errors that the message does not include.
///
/// ```
/// let error = fulmen_pjrt::Plugin::load("/no/such/plugin.so").unwrap_err();
/// assert!(error.is_not_found());
/// assert!(error.to_string().contains("/no/such/plugin.so"));
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: Kind,
    message: String,
    source: Option<std::io::Error>,
}

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The caller's arguments were rejected before the plugin saw them.
    InvalidArgument,
    /// A file or plugin does not exist.
    NotFound,
    /// The file exists but is not a usable PJRT plugin.
    NotAPlugin,
    /// The plugin does not have the function.
    Unsupported,
    /// The plugin, or the allocator of this crate, ran out of memory.
    OutOfMemory,
    /// Stored bytes are damaged or belong to a different plugin.
    Corrupt,
    /// The plugin could not be downloaded.
    Fetch,
    /// An input or output operation failed.
    Io,
    /// The plugin violated its own contract.
    Broken,
    /// The plugin returned an error.
    Plugin(PJRT_Error_Code),
}

/// An error of the store in which processes find each other.
impl From<KeyValueError> for Error {
    fn from(error: KeyValueError) -> Error {
        Self::new(Kind::Io, error.to_string())
    }
}

impl Error {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Error {
        Self(Box::new(Inner { kind, message: message.into(), source: None }))
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Self::new(Kind::InvalidArgument, message)
    }

    pub(crate) fn broken(message: impl Into<String>) -> Error {
        Self::new(Kind::Broken, message)
    }

    pub(crate) fn io(what: impl Into<String>, source: std::io::Error) -> Error {
        let kind =
            if source.kind() == std::io::ErrorKind::NotFound { Kind::NotFound } else { Kind::Io };
        Self(Box::new(Inner {
            kind,
            message: format!("{}: {source}", what.into()),
            source: Some(source),
        }))
    }

    /// Prepends the operation that failed to the message.
    pub(crate) fn during(mut self, what: impl fmt::Display) -> Error {
        self.0.message = format!("{what}: {}", self.0.message);
        self
    }

    /// Appends a text to the message.
    pub(crate) fn followed_by(mut self, what: impl fmt::Display) -> Error {
        self.0.message = format!("{}{what}", self.0.message);
        self
    }

    /// Replaces the message.
    pub(crate) fn with_message(mut self, message: String) -> Error {
        self.0.message = message;
        self
    }

    pub(crate) fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The arguments were rejected, here or by the plugin.
    pub fn is_usage(&self) -> bool {
        matches!(
            self.kind(),
            Kind::InvalidArgument | Kind::Plugin(PJRT_Error_Code::INVALID_ARGUMENT)
        )
    }

    /// A file, plugin or device does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self.kind(), Kind::NotFound | Kind::Plugin(PJRT_Error_Code::NOT_FOUND))
    }

    /// The file is not a PJRT plugin, or its version is not supported.
    pub fn is_not_a_plugin(&self) -> bool {
        self.kind() == Kind::NotAPlugin
    }

    /// The plugin does not have the function, or has not implemented it.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.kind(), Kind::Unsupported | Kind::Plugin(PJRT_Error_Code::UNIMPLEMENTED))
    }

    /// There was not enough memory, on the host or on the device.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self.kind(), Kind::OutOfMemory | Kind::Plugin(PJRT_Error_Code::RESOURCE_EXHAUSTED))
    }

    /// The disk does not have enough space for the plugin.
    pub fn is_disk_full(&self) -> bool {
        self.0.source.as_ref().is_some_and(fulmen_durable::is_full)
    }

    /// Stored bytes are damaged, or were written by another plugin or for another machine.
    pub fn is_corrupt(&self) -> bool {
        self.kind() == Kind::Corrupt
    }

    /// The plugin could not be downloaded.
    pub fn is_fetch(&self) -> bool {
        self.kind() == Kind::Fetch
    }

    /// The message comes from the plugin, and may differ between plugins.
    pub fn is_from_plugin(&self) -> bool {
        matches!(self.kind(), Kind::Plugin(_))
    }

    /// The status code with which a plugin reports this error, for `fulmen-virtual-pod`.
    #[doc(hidden)]
    pub fn status(&self) -> PJRT_Error_Code {
        match self.kind() {
            Kind::Plugin(code) => code,
            Kind::InvalidArgument => PJRT_Error_Code::INVALID_ARGUMENT,
            Kind::NotFound => PJRT_Error_Code::NOT_FOUND,
            Kind::Unsupported => PJRT_Error_Code::UNIMPLEMENTED,
            Kind::OutOfMemory => PJRT_Error_Code::RESOURCE_EXHAUSTED,
            _ => PJRT_Error_Code::INTERNAL,
        }
    }

    /// The name of the plugin's status code (`INVALID_ARGUMENT`), if the error came from a plugin.
    pub fn code(&self) -> Option<&'static str> {
        match self.kind() {
            Kind::Plugin(code) => Some(code.name()),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

/// Prints the message, as `fn main() -> Result<(), Box<dyn std::error::Error>>` does.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref()?.source()
    }
}
