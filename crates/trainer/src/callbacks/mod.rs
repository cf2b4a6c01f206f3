//! The callbacks that come with the Trainer.

mod backbone_finetuning;
pub(crate) mod callback;
mod device_stats_monitor;
mod early_stopping;
mod gradient_accumulation_scheduler;
pub(crate) mod hook_calls;
mod lambda_callback;
mod learning_rate_monitor;
#[cfg(feature = "prometheus")]
pub(crate) mod metrics_endpoint;
mod model_checkpoint;
mod monitor;
pub(crate) mod progress_bar;
mod reduce_lr_on_plateau;
mod spike_guard;
mod throughput;
mod throughput_monitor;
mod timer;
pub(crate) mod train_start;

pub use backbone_finetuning::BackboneFinetuning;
pub use device_stats_monitor::DeviceStatsMonitor;
pub use early_stopping::EarlyStopping;
pub use gradient_accumulation_scheduler::GradientAccumulationScheduler;
pub use lambda_callback::{Event, Filter, LambdaCallback, Occurrence, every, on, once, when};
pub use learning_rate_monitor::LearningRateMonitor;
pub use model_checkpoint::ModelCheckpoint;
pub use monitor::Mode;
pub use progress_bar::ProgressBar;
pub use reduce_lr_on_plateau::{ReduceLROnPlateau, ThresholdMode};
pub use spike_guard::SpikeGuard;
pub use throughput_monitor::ThroughputMonitor;
pub use timer::{Timer, TimerInterval};

pub use crate::rules::norms::{NormGroup, NormMonitor};
