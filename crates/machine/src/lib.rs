//! Finds out what keeps a training from using the devices of a machine, and which processes hold
//! them. The commands `fulmen doctor`, `ps`, `kill` and `top` use it.
//!
//! Out of scope: opening devices; command lines.

pub mod doctor;
mod holders;
mod inventory;
mod kill;
mod libtpu_metrics;
mod lock_file;
mod run_metrics;
#[cfg(test)]
mod tests;

pub use holders::{Holders, Process, ProcessActivity, Step, Tpu, Watch};
pub use inventory::{Inventory, Libtpu};
pub use kill::{Outcome, Plan, Report};
pub use libtpu_metrics::{
    CoresInUse, DeviceMetrics, Latency, Level, METRICS_ADDRESS, MetricsClient, MetricsError,
    Percentiles, RuntimeState,
};
pub use lock_file::LockFile;
pub use run_metrics::{RunMetrics, RunMetricsClient, StepRange};

/// An HTTP client with this time-out.
fn http_client(timeout: std::time::Duration) -> reqwest::Result<reqwest::blocking::Client> {
    // An HTTP error status is an error.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::blocking::Client::builder().timeout(timeout).build()
}
