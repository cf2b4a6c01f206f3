//! Notes to the user: events of `tracing`, at the level INFO and of the kind `note`. A process
//! without a subscriber prints them.

use std::fmt;
use std::io::Write as _;

/// Tells the user something, in one line.
#[doc(hidden)]
#[macro_export]
macro_rules! note {
    ($($text:tt)+) => {
        if ::tracing::dispatcher::has_been_set() {
            ::tracing::info!(kind = "note", $($text)+);
        } else {
            $crate::internal::print_note(format_args!($($text)+));
        }
    };
}

/// Writes a note to standard error.
pub fn print_note(text: fmt::Arguments<'_>) {
    // A closed terminal must not end the process, so errors are ignored.
    let _ = writeln!(std::io::stderr(), "note: {text}");
}
