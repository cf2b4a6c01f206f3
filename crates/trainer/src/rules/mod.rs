//! The rules of a step besides the user's code and the optimizer, one per file: gradient
//! accumulation, clipping, steps that are skipped, swept learning rates, rounding, rows of tables,
//! weight averaging, the weights of means, and the epoch counters that they share.

pub(crate) mod accumulation;
pub(crate) mod averaging;
pub(crate) mod clip;
pub(crate) mod epoch;
pub(crate) mod freeze;
pub(crate) mod learning_rates;
pub(crate) mod loss_scale;
pub(crate) mod lr_sweep;
pub(crate) mod norms;
pub(crate) mod rounding;
pub(crate) mod row_gradient;
pub(crate) mod skip_spikes;
pub(crate) mod step_rule;
pub(crate) mod weight;
