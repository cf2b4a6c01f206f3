//! Whose line an operation stands at that a layer records: the user's. `#[track_caller]` sees to that, but for closures and
//! for calls through trait objects, which do not tell their caller's line.

use std::panic::Location;

use fulmen_tensor::{Library, Scope};

/// This crate, whose lines stand for its users'.
const LIBRARY: Library = Library::new(file!());

/// Runs `record` so that what this crate records in it stands at `line`. What users record keeps its own.
pub(crate) fn at<T>(line: &'static Location<'static>, record: impl FnOnce() -> T) -> T {
    let _scope = LIBRARY.at(line);
    let _user = Scope::leave();
    record()
}
