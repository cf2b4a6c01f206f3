//! The crate's error: what can go wrong with weight files, with the values in them, and with what is asked of a whole
//! model. Mistakes in the code that records are faults of the tensors instead (`fulmen_tensor::Fault`).

use std::fmt;
use std::io;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fulmen_tensor::Fault;

use crate::weights::LoadReport;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why weights could not be saved or loaded, or a model not changed.
///
/// The kind is private; ask with the methods. The message is whole: [`source`](std::error::Error::source) returns only
/// what the message does not show.
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

    /// Something impossible was asked for at a line: what [`Optimizer::check`](crate::optim::Optimizer::check) of an
    /// optimizer of your own says. The message should tell what was given and what is expected.
    ///
    /// ```
    /// use std::panic::Location;
    ///
    /// let error = fulmen_nn::Error::usage("SignSgd: the rate must be above 0, it is -1", Location::caller());
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

    /// The mistake in a recorded expression, if that is what this error is about.
    pub fn fault(&self) -> Option<&Fault> {
        self.tensor()?.fault()
    }

    /// The line of the user's code that asked for what is wrong, where it is about one.
    pub fn location(&self) -> Option<&'static Location<'static>> {
        match &self.0 {
            Kind::Usage { location, .. } => Some(location),
            _ => self.tensor()?.location(),
        }
    }

    /// Whether the program asked for something impossible, such as tying parameters of different shapes.
    pub fn is_usage(&self) -> bool {
        matches!(self.0, Kind::Usage { .. }) || self.tensor().is_some_and(fulmen_tensor::Error::is_usage)
    }

    /// Whether the plugin or the device refused or failed.
    pub fn is_runtime(&self) -> bool {
        self.tensor().is_some_and(fulmen_tensor::Error::is_runtime)
    }

    /// Whether there was not enough memory, on the host or on the device.
    pub fn is_out_of_memory(&self) -> bool {
        self.tensor().is_some_and(fulmen_tensor::Error::is_out_of_memory)
    }

    /// Whether the file system refused: no such file, no permission, a full disk.
    pub fn is_io(&self) -> bool {
        matches!(self.0, Kind::Io { .. })
    }

    /// Whether the disk is full.
    pub fn is_disk_full(&self) -> bool {
        matches!(&self.0, Kind::Io { source, .. } if fulmen_durable::is_full(source))
    }

    /// Whether the file is of no format that is read here, or damaged.
    pub fn is_format(&self) -> bool {
        matches!(self.0, Kind::Format { .. })
    }

    /// Whether the file's names and shapes are not the model's.
    pub fn is_mismatch(&self) -> bool {
        matches!(self.0, Kind::Mismatch { .. })
    }

    /// What did not match, if that is the error.
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
            Kind::Io { doing, path, source } => write!(f, "cannot {doing} {}: {source}", path.display()),
            Kind::Format { path, format, message } => {
                write!(f, "{}: not a valid {format}: {message}", path.display())
            }
            Kind::Mismatch { path, report } => {
                write!(f, "the weights in {} do not fit the model; nothing was loaded", path.display())?;
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

/// As the message, which is what `fn main() -> Result<(), Box<dyn std::error::Error>>` prints.
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
