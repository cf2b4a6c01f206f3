//! Where the logged values of a training go: [`CsvLogger`], [`JsonlLogger`], [`TensorBoardLogger`] and, with the feature
//! `mlflow`, `MlflowLogger`; or a [`Logger`] of your own.
//!
//! [`Loggers`] keeps them on a thread of their own, so that a slow or broken one never slows training.
//!
//! Not here: what is logged, and when. The Trainer decides that.

mod appended;
mod csv;
mod event;
mod jsonl;
mod log_point;
mod media;
#[cfg(feature = "mlflow")]
mod mlflow;
mod tensorboard;
mod thread;

use std::path::Path;

use serde_json::{Map, Value as Json};

pub use crate::csv::CsvLogger;
pub use jsonl::JsonlLogger;
#[doc(hidden)]
pub use jsonl::unix_seconds;
#[doc(hidden)]
pub use log_point::number;
pub use log_point::{LogPoint, Sink};
pub use media::{Histogram, Media, Picture};
#[cfg(feature = "mlflow")]
pub use mlflow::MlflowLogger;
pub use tensorboard::TensorBoardLogger;
pub use thread::Loggers;

/// Keeps the values of log points.
///
/// ```
/// use std::path::Path;
/// use fulmen_loggers::{LogPoint, Logger};
///
/// struct Print;
///
/// impl Logger for Print {
///     fn start(&mut self, run_dir: &Path) -> std::io::Result<()> {
///         println!("a run in {}", run_dir.display());
///         Ok(())
///     }
///     fn log(&mut self, point: &LogPoint) -> std::io::Result<()> {
///         println!("{point}");
///         Ok(())
///     }
/// }
/// ```
pub trait Logger: Send {
    /// Its name in messages.
    fn name(&self) -> &'static str {
        let path = std::any::type_name::<Self>();
        path.rsplit("::").next().unwrap_or(path)
    }

    /// Before the first values of a run: its folder.
    ///
    /// # Errors
    /// The place cannot be written to. The run then does not begin.
    fn start(&mut self, run_dir: &Path) -> std::io::Result<()>;

    /// What the run was told: its hyperparameters, and the arguments of a program with a command line. After
    /// [`start`](Logger::start), if there are any.
    ///
    /// # Errors
    /// The place cannot be written to. The run then does not begin.
    fn log_hyperparams(&mut self, hyperparameters: &Map<String, Json>) -> std::io::Result<()> {
        let _ = hyperparameters;
        Ok(())
    }

    /// Values that have arrived, without those that were logged with `logger(false)`. They are with the operating system when this returns.
    ///
    /// # Errors
    /// They cannot be written. That is told once, they are counted as lost, and training goes on. An error of the kind
    /// `WouldBlock` says that they are kept and will be tried again.
    fn log(&mut self, point: &LogPoint) -> std::io::Result<()>;

    /// After the last values of a fit, a validation or a test. A test may follow a fit in the same run.
    ///
    /// # Errors
    /// What is left cannot be written. That is told.
    fn finalize(&mut self, status: Status) -> std::io::Result<()> {
        let _ = status;
        Ok(())
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// All was done.
    Finished,
    /// An error ended it.
    Failed,
    /// A signal ended it.
    Interrupted,
}
