//! What runs compiled steps, for every loop: devices, the other processes, callbacks and loggers (`session.rs`), steps in
//! flight (`executor.rs`), what a supervisor reads of them (`progress_file.rs`), a pass that does not train (`evaluate.rs`), predictions,
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
