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

use step_rule::StepRule;

use crate::{Error, Options, Result};

/// Makes the rule of an option, if the option asks for it. The other rules are those of callbacks.
type OfOptions = fn(&Options, &[Arc<dyn StepRule>]) -> Option<Arc<dyn StepRule>>;

/// The rules of options that are called before the others, and those that are called after them.
const BEFORE: [OfOptions; 2] = [loss_scale::of_options, norms::of_options];
const AFTER: [OfOptions; 3] = [accumulate::of_options, clip::of_options, rounding::of_options];

/// All rules of a step, in the order in which they are called: those of the options around the
/// others, which callbacks add.
pub(crate) fn with_options(
    options: &Options,
    others: &[Arc<dyn StepRule>],
) -> Vec<Arc<dyn StepRule>> {
    let of_options = |of_options: &OfOptions| of_options(options, others);
    let before = BEFORE.iter().filter_map(of_options);
    before.chain(others.iter().cloned()).chain(AFTER.iter().filter_map(of_options)).collect()
}

/// The rules that callbacks add. `rules` has each with the name of its callback.
///
/// # Errors
/// A rule's name is not valid, two rules have it, or a rule contradicts the options.
pub(crate) fn of_callbacks<'a>(
    rules: impl IntoIterator<Item = (&'a str, Arc<dyn StepRule>)>,
    options: &Options,
) -> Result<Vec<Arc<dyn StepRule>>> {
    let mut checked: Vec<Arc<dyn StepRule>> = Vec::new();
    for (callback, rule) in rules {
        let name = rule.name();
        if name.is_empty() || name.contains('/') {
            return Err(Error::usage(format!(
                "{callback}: `{name}` is not a valid name for a rule: a name must not be empty or contain `/`"
            )));
        }
        let is_unique = rule.frozen().is_none();
        if is_unique && checked.iter().any(|other| other.name() == name) {
            return Err(Error::usage(format!("{callback}: there are two of them; keep one")));
        }
        accumulate::check_scheduling(options, &*rule, callback)?;
        checked.push(rule);
    }
    Ok(checked)
}
