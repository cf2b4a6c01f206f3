//! The callbacks that come with the Trainer.

mod early_stopping;
mod learning_rate_monitor;
mod model_checkpoint;
mod monitor;
mod norm_monitor;
mod progress_bar;
mod reduce_lr_on_plateau;
mod spike_guard;

pub use early_stopping::EarlyStopping;
pub use learning_rate_monitor::LearningRateMonitor;
pub use model_checkpoint::ModelCheckpoint;
pub use monitor::Mode;
pub use norm_monitor::{NormGroup, NormMonitor};
pub use progress_bar::ProgressBar;
pub(crate) use progress_bar::spell;
pub use reduce_lr_on_plateau::{ReduceLROnPlateau, ThresholdMode};
pub use spike_guard::SpikeGuard;
