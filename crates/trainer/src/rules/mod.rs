//! The rules of a step besides the user's code and the optimizer, one per file. Most implement
//! [`StepRule`](step_rule::StepRule), which says what a rule can read, change and log. Recording, the
//! state and checkpoints know no such rule by name.

pub(crate) mod accumulate;
pub(crate) mod averaging;
pub(crate) mod clip;
pub(crate) mod epoch;
pub(crate) mod evaluated_weights;
pub(crate) mod freeze;
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

use std::sync::Arc;

use accumulate::Accumulate;
pub(crate) use accumulate::{BATCHES_OPTION, check_alone};
use loss_scale::LossScale;
use step_rule::StepRule;

use crate::Options;

/// All rules of a step, in the order in which they are called: those of the options around the
/// others, which callbacks add.
pub(crate) fn with_options(
    options: &Options,
    others: &[Arc<dyn StepRule>],
) -> Vec<Arc<dyn StepRule>> {
    let scale = options.precision.scales_loss().then(|| Arc::new(LossScale) as Arc<dyn StepRule>);
    let accumulate = Accumulate::with(options, others).map(|rule| Arc::new(rule) as _);
    scale.into_iter().chain(others.iter().cloned()).chain(accumulate).collect()
}
