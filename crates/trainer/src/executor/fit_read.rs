//! [`Reading`]: values that a loop reads from the device while it continues.

/// Values that are being read, with their epoch and step.
pub(crate) struct Reading {
    pub(crate) epoch: u64,
    pub(crate) global_step: u64,
    pub(crate) kind: ReadKind,
}

pub(crate) enum ReadKind {
    /// A log point, and the factor of its learning rate.
    Log { factor: f64 },
    /// The named outputs of a program.
    Program { name: &'static str, outputs: Vec<String> },
}
