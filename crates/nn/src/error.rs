//! The error type of this crate: what can go wrong with weight files, with the values in them, and
//! with requests about a whole model. Mistakes in code that records are faults of tensors instead
//! (`fulmen_tensor::Fault`).

use std::fmt;
use std::io;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fulmen_tensor::Fault;

use crate::weights::LoadReport;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why weights could not be saved or loaded, or a model not be changed.
///
/// The kind is private; use the methods. The message is complete:
/// [`source`](std::error::Error::source) returns only causes that the message does not show.
#[derive(Clone)]
pub struct Error(Kind);

#[derive(Clone)]
enum Kind {
    Io { doing: &'static str, path: PathBuf, source: Arc<io::Error> },
    Format { path: PathBuf, format: &'static str, message: String },
    Mismatch { path: PathBuf, report: Box<LoadReport> },
    Value { name: String, source: fulmen_tensor::Error },
    Tensor(fulmen_tensor::Error),
    Usage { message: String, location: &'static Location<'static> },
}

impl Error {
    pub(crate) fn io(doing: &'static str, path: &Path, source: io::Error) -> Error {
        Error(Kind::Io { doing, path: path.into(), source: Arc::new(source) })
    }
    pub(crate) fn format(path: &Path, format: &'static str, message: impl Into<String>) -> Error {
        Error(Kind::Format { path: path.into(), format, message: message.into() })
    }
    pub(crate) fn mismatch(path: &Path, report: LoadReport) -> Error {
        Error(Kind::Mismatch { path: path.into(), report: Box::new(report) })
    }
    pub(crate) fn value(name: &str, source: fulmen_tensor::Error) -> Error {
        Error(Kind::Value { name: name.into(), source })
    }

    /// An invalid request by the line `location`. Return it from
    /// [`Optimizer::check`](crate::optim::Optimizer::check) of your own optimizer. The message
    /// should say what was given and what is expected.
    ///
    /// ```
    /// use std::panic::Location;
    ///
    /// let error = fulmen_nn::Error::usage("SignSgd: the rate must be above 0, but it is -1", Location::caller());
    /// assert!(error.is_usage());
    /// ```
    pub fn usage(message: impl Into<String>, location: &'static Location<'static>) -> Error {
        Error(Kind::Usage { message: message.into(), location })
    }

    fn tensor(&self) -> Option<&fulmen_tensor::Error> {
        match &self.0 {
            Kind::Value { source, .. } | Kind::Tensor(source) => Some(source),
            _ => None,
        }
    }

    /// The mistake in a recorded expression, if that is the cause.
    pub fn fault(&self) -> Option<&Fault> {
        self.tensor()?.fault()
    }

    /// The line of the user's code that made the invalid request, if there is one.
    pub fn location(&self) -> Option<&'static Location<'static>> {
        match &self.0 {
            Kind::Usage { location, .. } => Some(location),
            _ => self.tensor()?.location(),
        }
    }

    /// Whether the request was invalid, such as tying parameters of different shapes.
    pub fn is_usage(&self) -> bool {
        matches!(self.0, Kind::Usage { .. })
            || self.tensor().is_some_and(fulmen_tensor::Error::is_usage)
    }

    /// Whether the plugin or the device failed.
    pub fn is_runtime(&self) -> bool {
        self.tensor().is_some_and(fulmen_tensor::Error::is_runtime)
    }

    /// Whether there was not enough memory, on the host or on the device.
    pub fn is_out_of_memory(&self) -> bool {
        self.tensor().is_some_and(fulmen_tensor::Error::is_out_of_memory)
    }

    /// Whether the file system failed: file not found, permission denied, disk full.
    pub fn is_io(&self) -> bool {
        matches!(self.0, Kind::Io { .. })
    }

    /// Whether the disk is full.
    pub fn is_disk_full(&self) -> bool {
        matches!(&self.0, Kind::Io { source, .. } if fulmen_durable::is_full(source))
            || self.tensor().is_some_and(fulmen_tensor::Error::is_disk_full)
    }

    /// Whether the file has an unknown format or is damaged.
    pub fn is_format(&self) -> bool {
        matches!(self.0, Kind::Format { .. })
    }

    /// Whether the file's names and shapes differ from the model's.
    pub fn is_mismatch(&self) -> bool {
        matches!(self.0, Kind::Mismatch { .. })
    }

    /// The mismatches, if they are the error.
    pub fn report(&self) -> Option<&LoadReport> {
        match &self.0 {
            Kind::Mismatch { report, .. } => Some(report),
            _ => None,
        }
    }
}

impl From<fulmen_tensor::Error> for Error {
    fn from(error: fulmen_tensor::Error) -> Error {
        Error(Kind::Tensor(error))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Io { doing, path, source } => {
                write!(f, "cannot {doing} {}: {source}", path.display())
            }
            Kind::Format { path, format, message } => {
                write!(f, "{}: not a valid {format}: {message}", path.display())
            }
            Kind::Mismatch { path, report } => {
                write!(
                    f,
                    "the weights in {} do not fit the model; nothing was loaded",
                    path.display()
                )?;
                report.describe_mismatches(f)?;
                f.write_str(
                    "\n  load what fits with Strictness::Lenient, or build the model that the file was made for",
                )
            }
            Kind::Value { name, source } => write!(f, "`{name}` has no value to save: {source}"),
            Kind::Tensor(error) => error.fmt(f),
            Kind::Usage { message, location } => write!(f, "{message}\n  at {location}"),
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
            _ => self.tensor()?.source(),
        }
    }
}
