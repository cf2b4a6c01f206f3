//! [`Fault`]: a mistake in a recorded expression. [`Error`]: why an expression could not be
//! compiled or run.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The first mistake in an expression: the operation, what is wrong, and the line of the user's
/// code. A poisoned [`Tensor`](crate::Tensor) carries it until its value is requested.
#[derive(Clone, Debug)]
pub struct Fault(Arc<FaultInner>);

#[derive(Debug)]
struct FaultInner {
    operation: String,
    message: String,
    location: &'static Location<'static>,
}

impl Fault {
    pub(crate) fn new(
        operation: impl Into<String>,
        message: impl Into<String>,
        location: &'static Location<'static>,
    ) -> Fault {
        Fault(Arc::new(FaultInner {
            operation: operation.into(),
            message: message.into(),
            location,
        }))
    }

    /// The name of the operation's method.
    pub fn operation(&self) -> &str {
        &self.0.operation
    }

    /// What is wrong, with the shapes and dtypes involved.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The line of the user's code that recorded the operation.
    pub fn location(&self) -> &'static Location<'static> {
        self.0.location
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n  at {}", self.0.operation, self.0.message, self.0.location)
    }
}

/// Why an expression could not be recorded, compiled or run.
///
/// The kind is private; use the predicates. The message is complete:
/// [`source`](std::error::Error::source) returns only errors that the message does not show.
#[derive(Clone)]
pub struct Error(Kind);

#[derive(Clone)]
enum Kind {
    Fault(Fault),
    Usage(String),
    Recorded {
        message: String,
        location: &'static Location<'static>,
    },
    Devices(String),
    /// The accelerator cannot be opened on this machine.
    Accelerator {
        doing: String,
        source: Arc<fulmen_pjrt::Error>,
    },
    Runtime {
        doing: String,
        source: Arc<fulmen_pjrt::Error>,
    },
    Partitioner {
        message: String,
        location: Option<&'static Location<'static>>,
        source: Arc<fulmen_pjrt::Error>,
    },
}

impl Error {
    pub(crate) fn usage(message: impl Into<String>) -> Error {
        Error(Kind::Usage(message.into()))
    }

    /// An error about the selected [`Devices`](crate::Devices).
    pub(crate) fn devices(message: impl std::fmt::Display) -> Error {
        Error(Kind::Devices(format!("devices: {message}")))
    }

    /// The plugin is for another accelerator than the selected one.
    pub(crate) fn wrong_plugin(message: String) -> Error {
        Error(Kind::Devices(message))
    }

    /// The selected accelerator cannot be opened on this machine; `doing` says what failed.
    pub(crate) fn accelerator(doing: String, source: fulmen_pjrt::Error) -> Error {
        if source.is_out_of_memory() || source.is_disk_full() {
            return Error::runtime(doing, source);
        }
        Error(Kind::Accelerator { doing, source: Arc::new(source) })
    }

    /// An error of the runtime; `doing` says what it was doing.
    #[doc(hidden)]
    pub fn runtime(doing: impl Into<String>, source: fulmen_pjrt::Error) -> Error {
        Error(Kind::Runtime { doing: doing.into(), source: Arc::new(source) })
    }

    /// An error of XLA's partitioner; the message has the text of `source`.
    pub(crate) fn partitioner(
        message: String,
        location: Option<&'static Location<'static>>,
        source: fulmen_pjrt::Error,
    ) -> Error {
        Error(Kind::Partitioner { message, location, source: Arc::new(source) })
    }

    pub(crate) fn unbound(name: &str, location: &'static Location<'static>) -> Error {
        let message =
            format!("the placeholder `{name}` has no value: pass it as an input of the function");
        Error(Kind::Recorded { message, location })
    }

    /// A mistake in what the code at `location` recorded.
    pub(crate) fn recorded(message: String, location: &'static Location<'static>) -> Error {
        Error(Kind::Recorded { message, location })
    }

    /// The mistake in the recorded expression, if the error is one.
    pub fn fault(&self) -> Option<&Fault> {
        match &self.0 {
            Kind::Fault(fault) => Some(fault),
            _ => None,
        }
    }

    /// The line of the user's code that recorded the mistake, or what the compiler refuses, if the
    /// error has one.
    pub fn location(&self) -> Option<&'static Location<'static>> {
        match &self.0 {
            Kind::Fault(fault) => Some(fault.location()),
            Kind::Recorded { location, .. } => Some(location),
            Kind::Partitioner { location, .. } => *location,
            Kind::Usage(_) | Kind::Devices(_) | Kind::Accelerator { .. } | Kind::Runtime { .. } => {
                None
            }
        }
    }

    /// Whether the cause is a mistake in the user's code: a fault, or an invalid argument.
    pub fn is_usage(&self) -> bool {
        matches!(self.0, Kind::Fault(_) | Kind::Recorded { .. } | Kind::Usage(_))
    }

    /// Whether the host or a device ran out of memory.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(&self.0, Kind::Runtime { source, .. } if source.is_out_of_memory())
    }

    /// Whether a disk has no room, for example for a plugin that is downloaded.
    pub fn is_disk_full(&self) -> bool {
        matches!(&self.0, Kind::Runtime { source, .. } if source.is_disk_full())
    }

    /// Whether this machine does not have the selected [`Accelerator`](crate::Accelerator), a plugin
    /// for it, or the selected [`Devices`](crate::Devices).
    pub fn is_devices(&self) -> bool {
        matches!(self.0, Kind::Devices(_) | Kind::Accelerator { .. })
    }

    /// Whether the plugin or the device failed, although the expression was valid.
    pub fn is_runtime(&self) -> bool {
        matches!(self.0, Kind::Accelerator { .. } | Kind::Runtime { .. } | Kind::Partitioner { .. })
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        Error(Kind::Fault(fault))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Fault(fault) => fault.fmt(f),
            Kind::Recorded { message, location } => {
                write!(f, "{message}\n  recorded at {location}")
            }
            Kind::Usage(message) | Kind::Devices(message) | Kind::Partitioner { message, .. } => {
                f.write_str(message)
            }
            Kind::Accelerator { doing, source } | Kind::Runtime { doing, source } => {
                write!(f, "{doing}: {source}")
            }
        }
    }
}

/// The same text as `Display`, because `fn main() -> Result<(), Box<dyn std::error::Error>>` prints
/// errors with `Debug`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            Kind::Accelerator { source, .. }
            | Kind::Runtime { source, .. }
            | Kind::Partitioner { source, .. } => source.source(),
            _ => None,
        }
    }
}
