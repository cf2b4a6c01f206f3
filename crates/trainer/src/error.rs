//! Why a fit, a validation or a test ended early.

use std::fmt;
use std::path::{Path, PathBuf};

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a fit, a validation or a test ended early. The message says what to do next.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Usage,
    Tensor,
    Data,
    NotFinite { step: u64 },
    Checkpoint { path: PathBuf },
}

impl Error {
    pub(crate) fn usage(message: impl Into<String>) -> Error {
        Error { kind: Kind::Usage, message: message.into(), source: None }
    }

    /// A tensor error, with what was being done.
    pub(crate) fn doing(doing: impl fmt::Display, source: fulmen_tensor::Error) -> Error {
        Error { kind: Kind::Tensor, message: format!("{doing}: {source}"), source: Some(source.into()) }
    }

    pub(crate) fn not_finite(step: u64, loss: &str, kept: Option<&Path>) -> Error {
        let kept = match kept {
            Some(path) => format!("the last good checkpoint is {}", path.display()),
            None => "no checkpoint had been saved before".to_owned(),
        };
        let message = format!(
            "the training loss `{loss}` became NaN or infinite at step {step}; {kept}. Lower the learning rate, \
             check the data, or clip the gradients"
        );
        Error { kind: Kind::NotFinite { step }, message, source: None }
    }

    pub(crate) fn checkpoint(path: &Path, message: impl fmt::Display) -> Error {
        let message = format!("checkpoint {}: {message}", path.display());
        Error { kind: Kind::Checkpoint { path: path.into() }, message, source: None }
    }

    /// The step whose loss was NaN or infinite, if that is what ended the fit (see [`detect_nan`](crate::Options::detect_nan)).
    pub fn not_finite_step(&self) -> Option<u64> {
        match self.kind {
            Kind::NotFinite { step } => Some(step),
            _ => None,
        }
    }

    /// Whether a checkpoint could not be written or read.
    pub fn is_checkpoint(&self) -> bool {
        matches!(self.kind, Kind::Checkpoint { .. })
    }

    /// Whether the data set or its loader failed.
    pub fn is_data(&self) -> bool {
        self.kind == Kind::Data
    }

    /// Whether the mistake is in an argument or an option.
    pub fn is_usage(&self) -> bool {
        self.kind == Kind::Usage
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|e| e as _)
    }
}

impl From<fulmen_tensor::Error> for Error {
    fn from(source: fulmen_tensor::Error) -> Error {
        Error { kind: Kind::Tensor, message: source.to_string(), source: Some(source.into()) }
    }
}

impl From<fulmen_data::Error> for Error {
    fn from(source: fulmen_data::Error) -> Error {
        Error { kind: Kind::Data, message: source.to_string(), source: Some(source.into()) }
    }
}
