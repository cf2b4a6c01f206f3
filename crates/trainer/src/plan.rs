//! [`Plan`]: how long training is going to be.

/// What a run without an end has of something.
pub(crate) const NO_LIMIT: u64 = u64::MAX;

/// How long training is going to be, for schedules that must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Optimizer steps an epoch; of an endless loader those of the run. Where the accumulation changes, those of the first.
    pub steps_per_epoch: u64,
    /// Epochs, the last of which may not be whole; `u64::MAX` where only `max_time` ends training.
    pub max_epochs: u64,
    /// Optimizer steps in all (Lightning's `estimated_stepping_batches`); `u64::MAX` where only `max_time` ends training. A
    /// schedule over this number of steps stays where it begins.
    pub total_steps: u64,
}
