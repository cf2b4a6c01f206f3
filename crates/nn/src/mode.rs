//! [`Mode`]: whether a layer is training or being used.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Module, Visit};

/// The train/eval switch of a layer that behaves differently in the two; training at first, as in PyTorch.
///
/// A clone is the same switch. [`Module::train`] and [`Module::eval`] set all those of a model.
///
/// ```
/// use fulmen_nn::{Mode, Module};
/// let mode = Mode::new();
/// assert!(mode.is_training());
/// mode.eval();
/// assert!(!mode.is_training());
/// ```
#[derive(Clone)]
pub struct Mode(Arc<AtomicBool>);

impl Mode {
    /// A switch that stands on training.
    pub fn new() -> Mode {
        Mode(Arc::new(AtomicBool::new(true)))
    }

    /// Whether the layer is training.
    pub fn is_training(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the switch.
    pub fn set_training(&self, training: bool) {
        self.0.store(training, Ordering::Relaxed);
    }
}

impl Default for Mode {
    fn default() -> Mode {
        Mode::new()
    }
}

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_training() { "Mode(training)" } else { "Mode(eval)" })
    }
}

impl Module for Mode {
    fn visit(&self, visit: &mut Visit<'_>) {
        visit.mode(self);
    }
}
