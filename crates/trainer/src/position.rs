//! Positions in a training.

/// The epoch and the optimizer step that logged values belong to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepPosition {
    pub(crate) epoch: u64,
    pub(crate) global_step: u64,
}

/// The number of finished epochs, and of finished batches in the epoch after them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BatchPosition {
    pub(crate) epoch: u64,
    pub(crate) batch: u64,
}
