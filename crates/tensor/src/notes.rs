//! Notes to the user. They go to standard error unless a handler is set.

use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

type Handler = Arc<dyn Fn(&str) + Send + Sync>;

static HANDLER: Mutex<Option<Handler>> = Mutex::new(None);

/// Passes the notes of this crate, and of the crates that read data, to `handler` instead of standard error. Notes are hints, such as
/// that a source line keeps compiling programs, or that a folder has files that are not read.
///
/// ```
/// fulmen_tensor::set_note_handler(|note| println!("hint: {note}"));
/// ```
pub fn set_note_handler(handler: impl Fn(&str) + Send + Sync + 'static) {
    *HANDLER.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(handler));
}

/// Tells the user something, in one line.
#[doc(hidden)]
pub fn note(text: &str) {
    let handler = HANDLER.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match handler {
        Some(handler) => handler(text),
        // A closed terminal must not end the process, so errors are ignored.
        None => drop(writeln!(std::io::stderr(), "note: {text}")),
    }
}
