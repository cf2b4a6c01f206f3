//! The error type of the data crates.
//!
//! Out of scope: the messages. Each is written where the mistake is detected.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::panic::Location;
use std::path::{Path, PathBuf};

use fulmen_tensor::Fault;

use fulmen_error::shorten;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a dataset could not be opened, a loader could not be built, or a batch could not be read.
///
/// The kind is private; query it with the `is_...` methods. They also look behind the prefix
/// "sample 17:" that the loader adds to the error of a dataset. The message is complete:
/// [`source`](std::error::Error::source) returns only what the message does not show.
/// [`get_ref`](Error::get_ref) returns the original error of a dataset.
///
/// ```
/// use fulmen_data::{DataLoader, TensorDataset};
///
/// let data = TensorDataset::builder().array("x", [3], [1.0f32, 2.0, 3.0]).build()?;
/// let error = DataLoader::builder(data).batch_size(0).build().unwrap_err();
/// assert!(error.is_usage());
/// assert!(error.to_string().contains("batch size is 0"));
/// # Ok::<(), fulmen_data::Error>(())
/// ```
pub struct Error(Box<Kind>);

enum Kind {
    Usage(String),
    Field(String),
    Label(String),
    File { path: PathBuf, message: String, source: Option<io::Error> },
    Missing(String),
    Content(String),
    Sample { index: u64, origin: Option<String>, source: Error },
    Panic(String),
    Runtime { doing: String, source: Box<dyn StdError + Send + Sync> },
    Other(Box<dyn StdError + Send + Sync>),
}

impl Error {
    /// An error of a user's [`Dataset`](crate::Dataset): any error type, or just a message.
    ///
    /// ```
    /// let error = fulmen_data::Error::new("the archive has no entry 17.png");
    /// assert_eq!(error.to_string(), "the archive has no entry 17.png");
    /// ```
    pub fn new(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        Error(Box::new(Kind::Other(source.into())))
    }

    /// Options or arguments that do not fit together.
    pub fn usage(message: impl Into<String>) -> Error {
        Error(Box::new(Kind::Usage(message.into())))
    }

    /// A field whose name, dtype or size differs from the declaration.
    pub fn field(message: impl Into<String>) -> Error {
        Error(Box::new(Kind::Field(message.into())))
    }

    /// A label outside the classes.
    pub fn label(message: impl Into<String>) -> Error {
        Error(Box::new(Kind::Label(message.into())))
    }

    /// A file that exists but cannot be used.
    pub fn file(path: &Path, message: impl Into<String>) -> Error {
        Error(Box::new(Kind::File { path: path.to_owned(), message: message.into(), source: None }))
    }

    /// A file operation that failed.
    pub fn io(path: &Path, doing: &str, source: io::Error) -> Error {
        Error(Box::new(Kind::File {
            path: path.to_owned(),
            message: doing.to_owned(),
            source: Some(source),
        }))
    }

    /// Invalid bytes of a file whose name is not known at this point.
    pub fn content(message: impl Into<String>) -> Error {
        Error(Box::new(Kind::Content(message.into())))
    }

    /// A file that does not exist. The message names it.
    pub fn missing(message: impl Into<String>) -> Error {
        Error(Box::new(Kind::Missing(message.into())))
    }

    /// A panic in the user's code or in a library.
    pub fn panic(message: impl Into<String>) -> Error {
        Error(Box::new(Kind::Panic(message.into())))
    }

    /// An error of the device, its plugin or a host allocation while `doing` something.
    pub fn runtime(
        doing: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Error {
        Error(Box::new(Kind::Runtime { doing: doing.into(), source: source.into() }))
    }

    /// Adds the index of the sample in the loader's dataset, and its origin.
    #[doc(hidden)]
    #[must_use]
    pub fn at_sample(self, index: u64, origin: Option<String>) -> Error {
        Error(Box::new(Kind::Sample { index, origin, source: self }))
    }

    /// The index of the unreadable sample in the loader's dataset.
    pub fn sample_index(&self) -> Option<usize> {
        self.index().and_then(|index| usize::try_from(index).ok())
    }

    #[doc(hidden)]
    pub fn index(&self) -> Option<u64> {
        match *self.0 {
            Kind::Sample { index, .. } => Some(index),
            _ => None,
        }
    }

    /// Where the unreadable sample comes from, if its dataset says so: a file and a position in it.
    pub fn origin(&self) -> Option<&str> {
        match &*self.0 {
            Kind::Sample { origin, .. } => origin.as_deref(),
            _ => None,
        }
    }

    fn root(&self) -> &Kind {
        match &*self.0 {
            Kind::Sample { source, .. } => source.root(),
            kind => kind,
        }
    }

    /// The error of another crate or of the user that this one wraps.
    ///
    /// ```
    /// use fulmen_data::Error;
    /// use std::num::ParseIntError;
    ///
    /// let error = Error::new("x".parse::<u8>().unwrap_err());
    /// assert!(error.get_ref().is_some_and(|inner| inner.is::<ParseIntError>()));
    /// ```
    pub fn get_ref(&self) -> Option<&(dyn StdError + Send + Sync + 'static)> {
        match self.root() {
            Kind::File { source: Some(source), .. } => Some(source),
            Kind::Runtime { source, .. } | Kind::Other(source) => Some(source.as_ref()),
            _ => None,
        }
    }

    fn io_error(&self) -> Option<&io::Error> {
        self.get_ref()?.downcast_ref()
    }

    fn tensor_error(&self) -> Option<&fulmen_tensor::Error> {
        self.get_ref()?.downcast_ref()
    }

    fn pjrt_error(&self) -> Option<&fulmen_pjrt::Error> {
        self.get_ref()?.downcast_ref()
    }

    /// The mistake in a tensor expression, if this error is about one.
    pub fn fault(&self) -> Option<&Fault> {
        self.tensor_error()?.fault()
    }

    /// The line of the user's code that caused the error, if it is known.
    pub fn location(&self) -> Option<&'static Location<'static>> {
        self.tensor_error()?.location()
    }

    /// Whether options or arguments do not fit together (batch size 0, an empty dataset, arrays of
    /// different length), or a tensor expression has a mistake.
    pub fn is_usage(&self) -> bool {
        matches!(self.root(), Kind::Usage(_))
            || self.tensor_error().is_some_and(fulmen_tensor::Error::is_usage)
    }

    /// Whether a field's name, dtype or size differs from the declaration.
    pub fn is_field(&self) -> bool {
        matches!(self.root(), Kind::Field(_))
    }

    /// Whether a label is outside the classes.
    pub fn is_label(&self) -> bool {
        matches!(self.root(), Kind::Label(_))
    }

    /// Whether a file could not be read or has invalid content.
    pub fn is_file(&self) -> bool {
        matches!(self.root(), Kind::File { .. } | Kind::Missing(_) | Kind::Content(_))
    }

    /// Whether a file does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self.root(), Kind::Missing(_))
            || self.io_error().is_some_and(|e| e.kind() == io::ErrorKind::NotFound)
    }

    /// Whether a disk is full.
    pub fn is_disk_full(&self) -> bool {
        self.io_error().is_some_and(fulmen_durable::is_full)
            || self.tensor_error().is_some_and(fulmen_tensor::Error::is_disk_full)
            || self.pjrt_error().is_some_and(fulmen_pjrt::Error::is_disk_full)
    }

    /// Whether the host or the device ran out of memory.
    pub fn is_out_of_memory(&self) -> bool {
        self.tensor_error().is_some_and(fulmen_tensor::Error::is_out_of_memory)
            || self.pjrt_error().is_some_and(fulmen_pjrt::Error::is_out_of_memory)
    }

    /// Whether a dataset or a sampler panicked.
    pub fn is_panic(&self) -> bool {
        matches!(self.root(), Kind::Panic(_))
    }

    /// Whether the device, its plugin or a host allocation failed.
    pub fn is_runtime(&self) -> bool {
        let failed = matches!(self.root(), Kind::Runtime { .. })
            || self.tensor_error().is_some_and(fulmen_tensor::Error::is_runtime);
        failed && !self.is_usage()
    }
}

impl From<io::Error> for Error {
    fn from(source: io::Error) -> Error {
        Error::new(source)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            // The messages of other crates stay as they are.
            Kind::Other(source) => source.fmt(f),
            kind => f.write_str(&shorten(&kind.to_string())),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Usage(message)
            | Kind::Field(message)
            | Kind::Label(message)
            | Kind::Missing(message)
            | Kind::Content(message)
            | Kind::Panic(message) => f.write_str(message),
            Kind::File { path, message, source: None } => {
                write!(f, "{}: {message}", path.display())
            }
            Kind::File { path, message, source: Some(source) } => {
                write!(f, "{}: {message}: {source}", path.display())
            }
            Kind::Sample { index, origin, source } => {
                let message = source.to_string();
                // A message about a file already names the position: it reads `file: place: …`
                // where the origin is `file, place`.
                let named = |origin: &str| {
                    message.contains(origin) || message.starts_with(&origin.replacen(", ", ": ", 1))
                };
                match origin {
                    Some(origin) if !named(origin) => {
                        write!(f, "sample {index} ({origin}): {message}")
                    }
                    _ => write!(f, "sample {index}: {message}"),
                }
            }
            Kind::Runtime { doing, source } => write!(f, "{doing}: {source}"),
            Kind::Other(source) => source.fmt(f),
        }
    }
}

/// Prints the message, because `fn main() -> Result<(), Box<dyn std::error::Error>>` prints errors
/// with `Debug`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.get_ref()?.source()
    }
}

/// The error for a panic in foreign code, with its message if it has one.
pub fn panicked(doing: &str, payload: Box<dyn Any + Send>) -> Error {
    let message = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(no message)".to_owned());
    // The payload is leaked: if its own drop panicked, the thread that catches it would end.
    std::mem::forget(payload);
    Error::panic(format!("{doing}: {message}"))
}
