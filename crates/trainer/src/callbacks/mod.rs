//! The callbacks that come with the Trainer.

mod early_stopping;
mod file_name;
mod model_checkpoint;
mod monitor;
mod on;
mod progress_bar;
mod reduce_lr_on_plateau;

pub use early_stopping::EarlyStopping;
pub use model_checkpoint::ModelCheckpoint;
pub use monitor::Mode;
pub use on::{Event, Filter, Happening, On, every, on, once, when};
pub use progress_bar::ProgressBar;
pub(crate) use progress_bar::spell;
pub use reduce_lr_on_plateau::{ReduceLROnPlateau, ThresholdMode};
