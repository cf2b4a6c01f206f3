//! The callbacks that come with the Trainer.

mod early_stopping;
mod model_checkpoint;
mod monitor;
mod progress_bar;

pub use early_stopping::EarlyStopping;
pub use model_checkpoint::ModelCheckpoint;
pub use monitor::Mode;
pub use progress_bar::ProgressBar;
pub(crate) use progress_bar::spell;
