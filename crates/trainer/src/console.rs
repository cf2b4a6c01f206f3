//! Lines for people, on standard error. One that cannot be written is let go: a closed terminal must not end training.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Another process says what there is to say once a run.
static SILENCED: AtomicBool = AtomicBool::new(false);

/// From now on this process only tells its errors.
pub(crate) fn silence() {
    SILENCED.store(true, Ordering::Relaxed);
    fulmen_tensor::set_note_handler(|_| {});
}

pub(crate) fn is_silenced() -> bool {
    SILENCED.load(Ordering::Relaxed)
}

/// Writes a line to standard error, unless another process says the same.
pub(crate) fn note(line: &str) {
    if !is_silenced() {
        print_line(line);
    }
}

/// Writes a line to standard error, and into the log of the run.
pub(crate) fn print_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
    log_line(line);
}

/// The log of the latest run of this process.
static LOG: Mutex<Option<File>> = Mutex::new(None);

/// From now on lines go into this file too.
pub(crate) fn log_to(path: &Path) {
    *LOG.lock() = File::create(path).ok();
}

/// Writes a line into the log of the run alone.
pub(crate) fn log_line(line: &str) {
    if let Some(file) = &mut *LOG.lock() {
        let _ = writeln!(file, "{line}");
    }
}
