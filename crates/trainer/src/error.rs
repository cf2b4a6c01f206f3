//! Why a fit, a validation or a test ended early.

use std::fmt;
use std::path::Path;

use fulmen_data::shorten;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a fit, a validation or a test ended early. The message says what to do next.
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Usage,
    Option,
    Tensor,
    Data,
    Device,
    Logger,
    NotFinite { step: u64 },
    Checkpoint,
    Interrupted,
    Coordination,
}

impl Error {
    pub(crate) fn usage(message: impl Into<String>) -> Error {
        Error { kind: Kind::Usage, message: message.into(), source: None }
    }

    /// An option, on the command line, in a file or in the environment, that cannot be.
    pub(crate) fn option(message: impl Into<String>) -> Error {
        Error { kind: Kind::Option, message: shorten(&message.into()).into_owned(), source: None }
    }

    /// A tensor error, with what was being done.
    pub(crate) fn doing(doing: impl fmt::Display, source: fulmen_tensor::Error) -> Error {
        Error { kind: Kind::Tensor, message: format!("{doing}: {source}"), source: Some(source.into()) }
    }

    /// A failure of the device, with what was being done.
    pub(crate) fn device(doing: &str, source: fulmen_tensor::Error) -> Error {
        Error { kind: Kind::Device, message: format!("{doing}: {source}"), source: Some(source.into()) }
    }

    /// A failure of a plugin that compiles for devices which are not here, with what was being done.
    pub(crate) fn compiler(doing: &str, source: fulmen_pjrt::Error) -> Error {
        Error { kind: Kind::Device, message: format!("{doing}: {source}"), source: Some(source.into()) }
    }

    /// A loader that does not do what it promised.
    pub(crate) fn data(message: impl Into<String>) -> Error {
        Error { kind: Kind::Data, message: message.into(), source: None }
    }

    pub(crate) fn logger(folder: &Path, source: std::io::Error) -> Error {
        let message = format!("a logger cannot write into {}: {source}", folder.display());
        Error { kind: Kind::Logger, message, source: Some(source.into()) }
    }

    /// `what` is no longer finite after this many steps.
    pub(crate) fn not_finite(step: u64, what: &str, kept: Option<&Path>) -> Error {
        let kept = match kept {
            Some(path) => format!("the last checkpoint before it is {}", path.display()),
            None => "no checkpoint had been saved before".to_owned(),
        };
        let message =
            format!("{what} became NaN or infinite at step {step}; {kept}. Lower the learning rate and check the data");
        Error { kind: Kind::NotFinite { step }, message, source: None }
    }

    pub(crate) fn checkpoint(path: &Path, message: impl fmt::Display) -> Error {
        let message = format!("checkpoint {}: {message}", path.display());
        Error { kind: Kind::Checkpoint, message, source: None }
    }

    /// A checkpoint's file that cannot be read or written; the source names it.
    pub(crate) fn checkpoint_file(source: fulmen_nn::Error) -> Error {
        Error { kind: Kind::Checkpoint, message: format!("checkpoint: {source}"), source: Some(source.into()) }
    }

    /// Says from which checkpoint to go on, after one that could not be written.
    pub(crate) fn with_last_checkpoint(mut self, whole: Option<&Path>) -> Error {
        match whole {
            Some(path) => {
                let path = path.display();
                self.message.push_str(&format!(". The last whole checkpoint is {path}; resume from it with ckpt_path"));
            }
            None => self.message.push_str(". No checkpoint was saved before"),
        }
        self
    }

    /// Ctrl-C, where it leaves nothing to go on from.
    pub(crate) fn interrupted(doing: &str) -> Error {
        Error { kind: Kind::Interrupted, message: format!("{doing} was interrupted by Ctrl-C"), source: None }
    }

    /// Whether it was Ctrl-C that ended what was done. An interrupted fit is no error; its
    /// [summary](crate::FitSummary::interrupted) says so.
    pub fn is_interrupted(&self) -> bool {
        self.kind == Kind::Interrupted
    }

    /// The step, counted from 1, whose loss or result was NaN or infinite, if that is what ended the fit (see
    /// [`detect_nan`](crate::Options::detect_nan)).
    pub fn not_finite_step(&self) -> Option<u64> {
        match self.kind {
            Kind::NotFinite { step } => Some(step),
            _ => None,
        }
    }

    /// Whether a checkpoint could not be written or read.
    pub fn is_checkpoint(&self) -> bool {
        self.kind == Kind::Checkpoint
    }

    /// Whether the data set or its loader failed.
    pub fn is_data(&self) -> bool {
        self.kind == Kind::Data
    }

    /// Whether the device failed while it ran a step.
    pub fn is_device(&self) -> bool {
        self.kind == Kind::Device
    }

    /// Whether a logger could not begin to write.
    pub fn is_logger(&self) -> bool {
        self.kind == Kind::Logger
    }

    /// Whether the processes of a run could not come together, are not about to run the same, or one of them is gone. The
    /// source is the [`fulmen_coordination::Error`], which knows of which processes.
    pub fn is_coordination(&self) -> bool {
        self.kind == Kind::Coordination
    }

    /// Whether the mistake is in an argument or an option.
    pub fn is_usage(&self) -> bool {
        matches!(self.kind, Kind::Usage | Kind::Option)
    }

    /// Whether the mistake is in how the program was started, not in its code.
    pub(crate) fn is_option(&self) -> bool {
        self.kind == Kind::Option
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
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
        self.source.as_deref().map(|e| e as _)
    }
}

impl From<fulmen_tensor::Error> for Error {
    fn from(source: fulmen_tensor::Error) -> Error {
        let kind = if source.is_devices() { Kind::Option } else { Kind::Tensor };
        Error { kind, message: source.to_string(), source: Some(source.into()) }
    }
}

impl From<fulmen_coordination::Error> for Error {
    fn from(source: fulmen_coordination::Error) -> Error {
        Error { kind: Kind::Coordination, message: source.to_string(), source: Some(source.into()) }
    }
}

impl From<fulmen_data::Error> for Error {
    fn from(source: fulmen_data::Error) -> Error {
        Error { kind: Kind::Data, message: source.to_string(), source: Some(source.into()) }
    }
}

impl From<fulmen_nn::Error> for Error {
    fn from(source: fulmen_nn::Error) -> Error {
        Error { kind: Kind::Usage, message: source.to_string(), source: Some(source.into()) }
    }
}
