//! The integration tests of the crate, in one binary: linking is most of a test's build time.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod anomalies;
mod averaging;
mod callbacks;
mod chain;
mod checkpoint_locations;
mod checkpoints;
mod common;
mod compile_cache;
mod curves;
mod damage;
mod devices;
mod first_batch;
mod fit;
mod full_disk;
mod gradients;
mod index_faults;
mod input;
mod kills;
#[path = "../../../pjrt/tests/it/common/libtpu.rs"]
mod libtpu;
mod limits;
mod loaded_weights;
mod logging;
mod loss_weights;
mod metrics;
mod mistakes;
mod model_shardings;
mod monitors;
mod narrow_state;
mod optimizers;
mod phases;
mod plateau;
mod precision;
mod predict;
#[cfg(feature = "multi-host")]
mod processes;
mod profiler;
mod reloading;
mod report;
mod resume;
mod resume_within_a_group;
mod resume_within_an_epoch;
mod samplers;
mod scanned_layers;
mod sparse_tables;
mod spikes;
mod step_rules;
mod stopping;
mod strategies;
mod subscribers;
#[cfg(feature = "multi-host")]
#[path = "../../../coordination/tests/it/common/mod.rs"]
mod test_processes;
mod train_step;
mod tuner;
#[cfg(feature = "multi-host")]
mod virtual_pod;
mod wide_gradients;
mod without_gradient;
