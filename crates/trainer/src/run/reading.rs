//! [`Reading`]: what a loop reads from the device while it goes on.

/// What is being read, of which epoch and step.
pub(crate) struct Reading {
    pub(crate) epoch: u64,
    pub(crate) global_step: u64,
    pub(crate) what: What,
}

pub(crate) enum What {
    /// A log point, and the factor that its learning rate was computed with.
    Log { factor: f64 },
    /// The results of a program, by their names.
    Program { name: &'static str, outputs: Vec<String> },
}
