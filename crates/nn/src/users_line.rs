//! Whose line an operation stands at that a layer records: the user's. `#[track_caller]` sees to that, but for closures and
//! for calls through trait objects, which do not tell their caller's line.

use std::panic::Location;

use fulmen_tensor::in_place_of;

/// Runs `record` so that what this crate records in it stands at `line`. What users record keeps its own.
pub(crate) fn at<T>(line: &'static Location<'static>, record: impl FnOnce() -> T) -> T {
    in_place_of(file!().strip_suffix("users_line.rs").unwrap_or(file!()), line, record)
}
