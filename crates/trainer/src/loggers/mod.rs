//! Where logged values are kept.

mod csv;

pub use csv::CsvLogger;

use std::path::Path;

use serde_json::{Map, Value as Json};

use crate::LogPoint;

/// Keeps the values of log points.
pub trait Logger: Send {
    /// Before the first values of a run: its folder.
    ///
    /// # Errors
    /// The place cannot be written to.
    fn start(&mut self, run_dir: &Path) -> std::io::Result<()>;

    /// What the run was told: [`TrainerBuilder::hyperparameters`](crate::TrainerBuilder::hyperparameters), and the
    /// arguments of a program with a command line (`fulmen-trainer-cli`). After [`start`](Logger::start), if there are any.
    ///
    /// # Errors
    /// The place cannot be written to.
    fn log_hyperparams(&mut self, hyperparameters: &Map<String, Json>) -> std::io::Result<()> {
        let _ = hyperparameters;
        Ok(())
    }

    /// Values that have arrived, without those that were logged with `logger(false)`. They are with the operating system when this returns.
    ///
    /// # Errors
    /// They cannot be written; the Trainer says so once and goes on training.
    fn log(&mut self, point: &LogPoint) -> std::io::Result<()>;
}
