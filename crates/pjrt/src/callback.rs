//! Callbacks from a plugin: a panic ends here, and the thread is marked as the plugin's.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is a plugin's, inside a callback of ours. It must not destroy the client that it belongs to.
pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}

/// Runs what a plugin's call asks for. A panic in it gives `None`, as it must not unwind into the plugin; the panic hook
/// has already told of it.
pub(crate) fn run<R>(function: impl FnOnce() -> R) -> Option<R> {
    let before = INSIDE.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(function));
    INSIDE.set(before);
    // To drop the payload is the caller's code again, and could panic again.
    outcome.map_err(std::mem::forget).ok()
}
