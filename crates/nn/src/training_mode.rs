//! [`TrainingMode`]: whether a layer is in training or evaluation mode.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The train/eval switch of a layer that behaves differently in the two modes. Initially in
/// training mode, as in PyTorch.
///
/// A clone is the same switch. [`Module::train`](crate::Module::train) and
/// [`Module::eval`](crate::Module::eval) set all switches of a model.
///
/// ```
/// use fulmen_nn::{TrainingMode, Module};
/// let mode = TrainingMode::new();
/// assert!(mode.is_training());
/// mode.eval();
/// assert!(!mode.is_training());
/// ```
#[derive(Clone)]
pub struct TrainingMode(Arc<AtomicBool>);

impl TrainingMode {
    /// A switch in training mode.
    pub fn new() -> TrainingMode {
        TrainingMode(Arc::new(AtomicBool::new(true)))
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

impl Default for TrainingMode {
    fn default() -> TrainingMode {
        TrainingMode::new()
    }
}

impl fmt::Debug for TrainingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_training() {
            "TrainingMode(training)"
        } else {
            "TrainingMode(eval)"
        })
    }
}
