//! Logged values on the device: sums in one small vector that passes through every step and is read
//! as one tensor.
//!
//! The vector has dtype `i32`. Counters are exact: 64 bits, in two words. Floats are stored as
//! bits. The vector also holds the rounding error of each sum, so the sums of a long epoch stay
//! exact. Each metric in `fulmen_nn::metrics` defines its own sums and computes its value from
//! them.
//!
//! `layout.rs` says where each value is in the vector, `add.rs` adds the values of a step on
//! the device, and `sums.rs` reads them on the host. The vector also says which index was out of
//! range first (`index_faults.rs`).

mod add;
pub(crate) mod index_faults;
mod layout;
pub(crate) mod log_entry;
pub(crate) mod media;
mod sums;

use fulmen_tensor::Tensor;

pub(crate) use add::batch_sums;
pub(crate) use layout::LogLayout;
pub(crate) use media::media_outputs;
pub(crate) use sums::{LogRange, Sums};

/// The name of the logged learning rate.
pub(crate) const LEARNING_RATE: &str = "lr";

/// The name of a value of one optimizer: `VALUE-OPTIMIZER`, or `VALUE` if the optimizer has no
/// name.
pub(crate) fn optimizer_value_name(value: &str, optimizer: &str) -> String {
    if optimizer.is_empty() { value.to_owned() } else { format!("{value}-{optimizer}") }
}

/// Like [`optimizer_value_name`], for values that may belong to a group of parameters,
/// `NAME/GROUP`.
pub(crate) fn group_value_name(value: &str, optimizer: &str) -> String {
    match value.split_once('/') {
        Some((value, group)) => format!("{}/{group}", optimizer_value_name(value, optimizer)),
        None => optimizer_value_name(value, optimizer),
    }
}

/// The values that the Trainer logs for a training step.
pub(crate) struct StepFacts<'a> {
    pub(crate) losses: &'a [Tensor],
    /// The number of steps before it.
    pub(crate) step: &'a Tensor,
    pub(crate) optimizers: Vec<&'a OptimizerFacts>,
}

/// The values that the Trainer logs for one optimizer.
pub(crate) struct OptimizerFacts {
    /// The learning rate of its step.
    pub(crate) learning_rate: Tensor,
    /// The number that the points of epochs have too, if a rule logs one.
    pub(crate) in_epochs: Option<MonitoredValue>,
    /// The other numbers that rules log.
    pub(crate) monitored: Vec<MonitoredValue>,
    /// Whether the optimizer steps in this step, a boolean scalar, if it skips some.
    pub(crate) steps_now: Option<Tensor>,
    /// Whether the values of a whole step exist after this batch, a boolean scalar: at the end of a
    /// step of several batches, or at the log point of a step. `None` if they exist after each.
    pub(crate) has_step_values: Option<Tensor>,
}

/// A number of the latest step that a callback or a rule logs.
pub(crate) struct MonitoredValue {
    pub(crate) name: String,
    /// A scalar: a float, or an i32 counter.
    pub(crate) value: Tensor,
    /// Whether the number exists only at the end of a step of several batches, or at the step of a
    /// log point.
    pub(crate) belongs_to_step: bool,
    /// Whether the points of epochs have it too.
    pub(crate) in_epochs: bool,
    /// Who logs it, in messages: a callback or a rule.
    pub(crate) logger: String,
}
