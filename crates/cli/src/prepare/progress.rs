//! Who is told how far the work is.
//!
//! Not here: bars and lines on a terminal; those are the program's.

/// Is told how far the work is, from several threads. `()` does not listen.
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
    /// A piece of work begins that has `total` bytes; what was begun before is over.
    fn begin(&self, work: &str, total: u64) {
        let _ = (work, total);
    }

    /// So many more bytes of it are done.
    fn advance(&self, by: u64) {
        let _ = by;
    }

    /// Something worth a line.
    fn note(&self, text: &str) {
        let _ = text;
    }
}

impl Progress for () {}
