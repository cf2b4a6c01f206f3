//! Callbacks from a plugin: catches panics, and marks the thread as the plugin's.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread belongs to a plugin and runs one of our callbacks. It must not destroy the
/// client that it belongs to.
pub(crate) fn is_inside() -> bool {
    IS_INSIDE.get()
}

/// Runs the body of a callback. Returns `None` if it panics, because a panic must not unwind into
/// the plugin. The panic hook has already reported the panic.
pub(crate) fn run<R>(function: impl FnOnce() -> R) -> Option<R> {
    let before = IS_INSIDE.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(function));
    IS_INSIDE.set(before);
    // Dropping the payload runs the caller's code, which may panic again.
    outcome.map_err(std::mem::forget).ok()
}
