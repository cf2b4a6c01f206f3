//! Ctrl-C and SIGTERM: the first one asks a running fit to save and end, the second ends the program. Before the first
//! step of a fit there is nothing to save, so that the first one ends the program.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::say::say;

static INSTALL: Once = Once::new();
static RUNNING: AtomicUsize = AtomicUsize::new(0);
/// Whether a step has ended, so that there is something to save.
static STEPPED: AtomicBool = AtomicBool::new(false);
static REQUESTED: AtomicBool = AtomicBool::new(false);

/// While one of these lives, Ctrl-C is a request.
pub(crate) struct Guard(());

impl Guard {
    pub(crate) fn new() -> Guard {
        INSTALL.call_once(|| {
            // A program with a handler of its own keeps it; then Ctrl-C is its affair.
            let _ = ctrlc::try_set_handler(|| {
                if RUNNING.load(Ordering::SeqCst) == 0 || REQUESTED.swap(true, Ordering::SeqCst) {
                    std::process::exit(130);
                }
                if !STEPPED.load(Ordering::SeqCst) {
                    say("\nInterrupted before the first step: there is nothing to save.");
                    std::process::exit(130);
                }
                say("\nInterrupted: ending after this step. Press Ctrl-C again to end at once.");
            });
        });
        if RUNNING.fetch_add(1, Ordering::SeqCst) == 0 {
            REQUESTED.store(false, Ordering::SeqCst);
            STEPPED.store(false, Ordering::SeqCst);
        }
        Guard(())
    }

    /// From now on there is something to save.
    pub(crate) fn stepped(&self) {
        STEPPED.store(true, Ordering::SeqCst);
    }

    /// Whether Ctrl-C was pressed since the fit began.
    pub(crate) fn requested(&self) -> bool {
        REQUESTED.load(Ordering::SeqCst)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::SeqCst);
    }
}
