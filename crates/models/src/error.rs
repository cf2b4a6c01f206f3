//! The crate's error: what is wrong with a config, with a folder, or with the weights in it.
//! Mistakes in recorded operations are faults of tensors instead.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a model could not be built, loaded or saved.
///
/// The kind is private; use the methods to query it. The message is complete.
#[derive(Clone)]
pub struct Error(Kind);

#[derive(Clone)]
enum Kind {
    Io { action: &'static str, path: PathBuf, source: Arc<io::Error> },
    Config { path: Option<PathBuf>, message: String },
    Weights(fulmen_nn::Error),
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Error {
        Error(Kind::Io { action, path: path.into(), source: Arc::new(source) })
    }

    /// `message` names the key, what was found there and what was expected.
    pub(crate) fn config(message: impl Into<String>) -> Error {
        Error(Kind::Config { path: None, message: message.into() })
    }

    /// Says that the error is about the table of a config under this key.
    pub(crate) fn in_key(self, key: &str) -> Error {
        match self.0 {
            Kind::Config { path, message } => {
                Error(Kind::Config { path, message: format!("`{key}`: {message}") })
            }
            kind => Error(kind),
        }
    }

    /// Adds the config's file to the error.
    pub(crate) fn in_file(self, file: &Path) -> Error {
        match self.0 {
            Kind::Config { path: None, message } => {
                Error(Kind::Config { path: Some(file.into()), message })
            }
            kind => Error(kind),
        }
    }

    /// Whether a config belongs to a different model, or asks for an unsupported feature.
    pub fn is_config(&self) -> bool {
        matches!(self.0, Kind::Config { .. })
    }

    /// Whether it is an error of the file system: no such file, no permission, a full disk.
    pub fn is_io(&self) -> bool {
        matches!(self.0, Kind::Io { .. }) || self.get_ref().is_some_and(fulmen_nn::Error::is_io)
    }

    /// Whether the disk is full.
    pub fn is_disk_full(&self) -> bool {
        match &self.0 {
            Kind::Io { source, .. } => fulmen_durable::is_full(source),
            Kind::Config { .. } => false,
            Kind::Weights(error) => error.is_disk_full(),
        }
    }

    /// Whether the request was invalid, such as an optimizer with a negative rate. A config that
    /// cannot be used is not: see [`is_config`](Error::is_config).
    pub fn is_usage(&self) -> bool {
        self.get_ref().is_some_and(fulmen_nn::Error::is_usage)
    }

    /// Whether the plugin or the device failed.
    pub fn is_runtime(&self) -> bool {
        self.get_ref().is_some_and(fulmen_nn::Error::is_runtime)
    }

    /// Whether there was not enough memory, on the host or on the device.
    pub fn is_out_of_memory(&self) -> bool {
        self.get_ref().is_some_and(fulmen_nn::Error::is_out_of_memory)
    }

    /// The error of the weights, if it is about them.
    pub fn get_ref(&self) -> Option<&fulmen_nn::Error> {
        match &self.0 {
            Kind::Weights(error) => Some(error),
            _ => None,
        }
    }
}

impl From<fulmen_nn::Error> for Error {
    fn from(error: fulmen_nn::Error) -> Error {
        Error(Kind::Weights(error))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Io { action, path, source } => {
                write!(f, "cannot {action} {}: {source}", path.display())
            }
            Kind::Config { path: Some(path), message } => {
                write!(f, "{}: {message}", path.display())
            }
            Kind::Config { path: None, message } => write!(f, "config: {message}"),
            Kind::Weights(error) => error.fmt(f),
        }
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
        match &self.0 {
            Kind::Io { source, .. } => source.source(),
            Kind::Config { .. } => None,
            Kind::Weights(error) => error.source(),
        }
    }
}
