//! Counts the objects that are alive, for a test that nothing leaks.

use std::sync::atomic::{AtomicUsize, Ordering};

static LIVE: AtomicUsize = AtomicUsize::new(0);

/// A field of each object that is counted.
pub(crate) struct Counted(());

impl Counted {
    pub(crate) fn new() -> Counted {
        LIVE.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(crate) fn count() -> usize {
    LIVE.load(Ordering::Relaxed)
}
