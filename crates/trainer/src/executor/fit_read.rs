//! [`FitRead`]: values that a fit reads from the device while it continues.

use crate::position::StepPosition;

/// What a fit is reading.
pub(crate) struct FitRead {
    /// The position of the latest step when the read started.
    pub(crate) position: StepPosition,
    pub(crate) kind: ReadKind,
}

pub(crate) enum ReadKind {
    /// A log point, and the factor of its learning rate.
    Log { factor: f64 },
    /// The named outputs of a program.
    Program { name: &'static str, outputs: Vec<String> },
}
