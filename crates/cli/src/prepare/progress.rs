//! Receiving progress.
//!
//! Out of scope: bars and lines on a terminal, which the program shows.

/// Receives progress from several threads. `()` ignores it.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use fulmen_cli::prepare::Progress;
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
    /// A task of `total` bytes starts; the previous one is finished.
    fn begin(&self, work: &str, total: u64) {
        let _ = (work, total);
    }

    /// This many more bytes are done.
    fn advance(&self, by: u64) {
        let _ = by;
    }

    /// A message for the user.
    fn note(&self, text: &str) {
        let _ = text;
    }
}

impl Progress for () {}
