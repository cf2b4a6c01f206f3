//! The notes of this test program. There is one handler for all tests, so each test reads the notes
//! about its own folder.

use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};

static NOTES: LazyLock<Mutex<Vec<String>>> = LazyLock::new(|| {
    fulmen_data::internal::set_note_handler(|note| all().push(note.to_owned()));
    Mutex::default()
});

fn all() -> std::sync::MutexGuard<'static, Vec<String>> {
    NOTES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Collects notes from now on.
pub(crate) fn collect() {
    LazyLock::force(&NOTES);
}

/// What the collected notes say about a folder.
pub(crate) fn about(folder: &Path) -> Vec<String> {
    let start = format!("{}: ", folder.display());
    all().iter().filter_map(|note| note.strip_prefix(&start).map(str::to_owned)).collect()
}
