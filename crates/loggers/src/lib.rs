//! Loggers, which store logged values: [`CsvLogger`], [`JsonlLogger`], [`TensorBoardLogger`] and,
//! with the features `mlflow` and `wandb`, `MlflowLogger` and `WandbLogger`. Your own loggers
//! implement [`Logger`].
//!
//! [`Loggers`] runs each on a thread of its own, so that a slow or broken logger never slows training
//! or another logger.
//!
//! Out of scope: which values are logged, and when. The Trainer decides that.

mod csv;
mod event;
#[cfg(any(feature = "mlflow", feature = "wandb"))]
mod http;
mod jsonl;
mod log_point;
mod logger_thread;
mod loggers;
mod media;
#[cfg(feature = "mlflow")]
mod mlflow;
mod record_file;
mod tensorboard;
#[cfg(feature = "wandb")]
mod wandb;
mod worker;

use std::path::Path;

use serde_json::{Map, Value as Json};

pub use crate::csv::CsvLogger;
pub use jsonl::JsonlLogger;
#[doc(hidden)]
pub use jsonl::unix_seconds;
#[doc(hidden)]
pub use log_point::number;
pub use log_point::{LogPoint, LoggedArray, Sink};
pub use loggers::Loggers;
pub use media::{Histogram, Images, Media};
#[cfg(feature = "mlflow")]
pub use mlflow::MlflowLogger;
pub use tensorboard::TensorBoardLogger;
#[cfg(feature = "wandb")]
pub use wandb::WandbLogger;

/// Stores the values of log points.
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
    /// The name in messages.
    fn name(&self) -> &'static str {
        let path = std::any::type_name::<Self>();
        path.rsplit("::").next().unwrap_or(path)
    }

    /// Called before the first values of a run, with its folder.
    ///
    /// # Errors
    /// The destination cannot be written. The run then does not start.
    fn start(&mut self, run_dir: &Path) -> std::io::Result<()>;

    /// Called after [`start`](Logger::start) with the hyperparameters of the run and, if the
    /// program has a command line, its arguments.
    ///
    /// # Errors
    /// The destination cannot be written. The run then does not start.
    fn log_hyperparams(&mut self, hyperparameters: &Map<String, Json>) -> std::io::Result<()> {
        let _ = hyperparameters;
        Ok(())
    }

    /// Stores values, except those logged with `logger(false)`. They must have reached the
    /// operating system when this returns.
    ///
    /// # Errors
    /// The values cannot be written. The user gets one warning, the values count as lost, and
    /// training continues. An error of the kind `WouldBlock` means that the logger has kept the
    /// values and will try again.
    fn log(&mut self, point: &LogPoint) -> std::io::Result<()>;

    /// Called about every 30 seconds while there is nothing to store, for a logger that has to try
    /// again, or to tell a server that the run is alive.
    ///
    /// # Errors
    /// As for [`log`](Logger::log).
    fn idle(&mut self) -> std::io::Result<()> {
        Ok(())
    }

    /// Called after the last values of a fit, a validation or a test. A test may follow a fit in
    /// the same run.
    ///
    /// # Errors
    /// The remaining values cannot be written. The user gets a warning.
    fn finalize(&mut self, status: Status) -> std::io::Result<()> {
        let _ = status;
        Ok(())
    }
}

/// The outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The run completed.
    Finished,
    /// An error ended the run.
    Failed,
    /// A signal ended the run.
    Interrupted,
}
