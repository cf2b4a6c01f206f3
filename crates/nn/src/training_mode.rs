//! [`TrainingMode`]: whether a layer is in training or evaluation mode; and [`SavedModes`], the modes
//! of all layers of a module.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Module;
use crate::module::each_mode;

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

/// The modes that all layers of a module had. Dropping this restores them, even after a panic.
///
/// ```
/// use fulmen_nn::{Module, SavedModes, TrainingMode};
///
/// #[derive(Module)]
/// struct Noise {
///     mode: TrainingMode,
/// }
///
/// let noise = Noise { mode: TrainingMode::new() };
/// {
///     let _modes = SavedModes::of(&noise);
///     noise.eval();
///     assert!(!noise.mode.is_training());
/// }
/// assert!(noise.mode.is_training());
/// ```
#[must_use = "dropping this restores the modes"]
pub struct SavedModes(Vec<(TrainingMode, bool)>);

impl SavedModes {
    /// Saves the modes of a module's layers.
    pub fn of<M: Module + ?Sized>(module: &M) -> SavedModes {
        let mut modes = Vec::new();
        each_mode(module, |mode| modes.push((mode.clone(), mode.is_training())));
        SavedModes(modes)
    }
}

impl Drop for SavedModes {
    fn drop(&mut self) {
        for (mode, training) in &self.0 {
            mode.set_training(*training);
        }
    }
}
