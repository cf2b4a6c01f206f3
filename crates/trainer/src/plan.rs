//! [`Plan`]: how long training is going to be.

/// How long training is going to be, for schedules that must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Optimizer steps an epoch.
    pub steps_per_epoch: u64,
    /// Epochs.
    pub max_epochs: u64,
    /// Optimizer steps in all (Lightning's `estimated_stepping_batches`).
    pub total_steps: u64,
}
