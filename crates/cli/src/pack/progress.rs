//! The trait that receives progress.
//!
//! Out of scope: bars and lines on a terminal, which the program shows.

/// Receives progress from several threads. `()` ignores it.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use fulmen_cli::pack::Progress;
///
/// #[derive(Default)]
/// struct Bytes(AtomicU64);
/// impl Progress for Bytes {
///     fn advance(&self, by: u64) {
///         self.0.fetch_add(by, Ordering::Relaxed);
///     }
/// }
/// ```
pub trait Progress: Sync {
    /// Starts a task of `total` bytes, and ends the previous one.
    fn begin(&self, work: &str, total: u64) {
        let _ = (work, total);
    }

    /// Adds finished bytes to the current task.
    fn advance(&self, by: u64) {
        let _ = by;
    }

    /// Shows a message to the user.
    fn note(&self, text: &str) {
        let _ = text;
    }
}

impl Progress for () {}
