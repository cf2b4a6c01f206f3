//! Messages on standard error. A line that cannot be written is dropped: a closed terminal must not
//! end training.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::secret::without_secrets;

/// Set if another process reports for this one.
static SILENCED: AtomicBool = AtomicBool::new(false);

/// Prints only errors from now on.
pub(crate) fn silence() {
    SILENCED.store(true, Ordering::Relaxed);
    fulmen_tensor::set_note_handler(|_| {});
}

pub(crate) fn is_silenced() -> bool {
    SILENCED.load(Ordering::Relaxed)
}

/// Writes a line to standard error, unless another process reports it.
pub(crate) fn note(line: &str) {
    if !is_silenced() {
        print_line(line);
    }
}

/// Writes a line to standard error and to the run's log.
pub(crate) fn print_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", without_secrets(line));
    log_line(line);
}

/// The log of this process's latest run.
static LOG: Mutex<Option<File>> = Mutex::new(None);

/// Copies lines to this file from now on.
pub(crate) fn log_to(path: &Path) {
    *LOG.lock() = File::create(path).ok();
}

/// Writes a line only to the run's log.
pub(crate) fn log_line(line: &str) {
    if let Some(file) = &mut *LOG.lock() {
        let _ = writeln!(file, "{}", without_secrets(line));
    }
}
