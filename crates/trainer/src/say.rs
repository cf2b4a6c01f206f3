//! Lines for people, on standard error. One that cannot be written is let go: a closed terminal must not end training.

use std::io::Write as _;

/// Writes a line to standard error.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
