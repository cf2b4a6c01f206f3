//! Lines for people, on standard error. One that cannot be written is let go: a closed terminal must not end training.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Another process says what there is to say once a run.
static HUSHED: AtomicBool = AtomicBool::new(false);

/// From now on this process only tells its errors.
pub(crate) fn hush() {
    HUSHED.store(true, Ordering::Relaxed);
    fulmen_tensor::set_note_handler(|_| {});
}

pub(crate) fn is_hushed() -> bool {
    HUSHED.load(Ordering::Relaxed)
}

/// Writes a line to standard error, unless another process says the same.
pub(crate) fn note(line: &str) {
    if !is_hushed() {
        say(line);
    }
}

/// Writes a line to standard error, and into the log of the run.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
    keep(line);
}

/// The log of the latest run of this process.
static LOG: Mutex<Option<File>> = Mutex::new(None);

/// From now on lines go into this file too.
pub(crate) fn keep_in(path: &Path) {
    *LOG.lock() = File::create(path).ok();
}

/// Writes a line into the log of the run alone.
pub(crate) fn keep(line: &str) {
    if let Some(file) = &mut *LOG.lock() {
        let _ = writeln!(file, "{line}");
    }
}
