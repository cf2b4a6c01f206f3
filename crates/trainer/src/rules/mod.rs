//! The rules of a step besides the user's code and the optimizer, one per file. Most implement
//! [`StepRule`](step_rule::StepRule), which says what a rule can read, change and log. Recording, the
//! state and checkpoints know no such rule by name.

pub(crate) mod averaging;
pub(crate) mod clip;
pub(crate) mod epoch;
pub(crate) mod evaluated_weights;
pub(crate) mod freeze;
pub(crate) mod group;
pub(crate) mod learning_rates;
pub(crate) mod loss_scale;
pub(crate) mod lr_sweep;
pub(crate) mod norms;
pub(crate) mod rounding;
pub(crate) mod row_gradient;
pub(crate) mod skip_spikes;
pub(crate) mod step_rule;
pub(crate) mod sum_dtype;
pub(crate) mod weight;
