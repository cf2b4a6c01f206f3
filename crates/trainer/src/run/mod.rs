//! Runs compiled steps, for all loops: devices, other processes, callbacks and loggers
//! (`session.rs`), steps in flight (`executor.rs`), the step count for a supervisor
//! (`progress_file.rs`), passes that don't train (`evaluate.rs`), predictions (`predict.rs`), and
//! traces (`profiler.rs`).

pub(crate) mod advice;
pub(crate) mod bad_samples;
mod dump;
mod environment;
pub(crate) mod evaluate;
pub(crate) mod executor;
pub(crate) mod predict;
pub(crate) mod prediction_writer;
mod profiler;
mod progress_file;
pub(crate) mod reading;
pub(crate) mod session;
mod trace_file;
