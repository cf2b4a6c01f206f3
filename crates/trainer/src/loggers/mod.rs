//! Where logged values are kept.

mod csv;

pub use csv::CsvLogger;

use std::path::Path;

use crate::LogPoint;

/// Keeps the values of log points.
pub trait Logger: Send {
    /// Before the first values of a run: its folder.
    ///
    /// # Errors
    /// The place cannot be written to.
    fn start(&mut self, run_dir: &Path) -> std::io::Result<()>;

    /// Values that have arrived. They are with the operating system when this returns.
    ///
    /// # Errors
    /// They cannot be written; the Trainer says so once and goes on training.
    fn log(&mut self, point: &LogPoint) -> std::io::Result<()>;
}
