//! [`Accumulate`]: gradient accumulation. The optimizer steps once per group of batches, with the
//! gradient over all their samples. The sums are part of the training state. Each batch runs the
//! same program, and a run can end within a group.
//!
//! A group ends after `accumulate_grad_batches` batches and at the end of an epoch, as in
//! Lightning. Each batch is weighted by the weight that its loss brings, or by its real samples, so
//! that every group, even the short one at the end of an epoch, equals one large batch. Lightning
//! divides a short group by the full number of batches.

use std::sync::Arc;

use fulmen_tensor::internal::mean_weights;
use fulmen_tensor::{DType, Tensor, TensorType};

use crate::rules::row_gradient::Table;
use crate::rules::step_rule::{StepBatch, StepRule};
use crate::rules::sum_dtype::sum_dtype;
use crate::rules::weight::{counts_padding, weighted};
use crate::{Batch, Error, Options, Result, error};

/// The option with the number of batches per step.
const BATCHES_OPTION: &str = "accumulate_grad_batches";

/// Sums the gradients of the batches of a step, each times its weight.
#[derive(Clone, Debug)]
struct Accumulate {
    /// The number of batches per step, by the first epoch that has it.
    scheduling: Vec<(u64, u64)>,
    /// Whether a rule reads the loss of a step, so that losses are summed too.
    sums_loss: bool,
}

/// The rule, if a step takes several batches. Another rule with a schedule goes before the option.
pub(super) fn of_options(
    options: &Options,
    others: &[Arc<dyn StepRule>],
) -> Option<Arc<dyn StepRule>> {
    let scheduled = others.iter().find_map(|rule| rule.scheduling()).map(<[_]>::to_vec);
    let scheduling = scheduled.unwrap_or_else(|| vec![(0, options.accumulate_grad_batches)]);
    let sums_loss = others.iter().any(|rule| rule.inputs().loss);
    let takes_several = scheduling.iter().any(|(_, batches)| *batches > 1);
    takes_several.then(|| Arc::new(Accumulate { scheduling, sums_loss }) as _)
}

/// Checks that only one of a rule, which the callback `name` adds, and the options sets the number
/// of batches per step.
pub(super) fn check_scheduling(options: &Options, rule: &dyn StepRule, name: &str) -> Result<()> {
    let batches = options.accumulate_grad_batches;
    if rule.scheduling().is_some() && batches > 1 {
        return Err(error::option(format!(
            "{BATCHES_OPTION}: it is {batches}, and there is a {name}; set only one of the two"
        )));
    }
    Ok(())
}

impl StepRule for Accumulate {
    fn name(&self) -> &'static str {
        "accumulation"
    }

    fn state_name(&self, slot: &str) -> String {
        slot.to_owned()
    }

    fn scheduling(&self) -> Option<&[(u64, u64)]> {
        Some(&self.scheduling)
    }

    /// The weight of the batches in the sums, and the sum of their losses.
    fn init(&self) -> Vec<(&'static str, Tensor)> {
        let zero = Tensor::zeros(DType::F32, []);
        let mut state = vec![("accumulated_samples", zero.clone())];
        if self.sums_loss {
            state.push(("accumulated_loss", zero));
        }
        state
    }

    /// The sum of the gradients.
    fn init_parameter(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
        let dtype = sum_dtype(parameter.dtype);
        vec![("gradients", Tensor::zeros(dtype, &parameter.shape))]
    }

    fn collect(&self, batch: &mut StepBatch<'_>, state: &mut [Tensor]) -> Result<()> {
        let Some(ends) = batch.step_ends else { return Ok(()) };
        let own = loss_weight(batch.loss, batch.source, batch.batch)?;
        let count = own.clone().unwrap_or_else(|| batch.batch.mask().sum_all());
        let total = &state[0] + &count;
        let add = |sum: &Tensor, mean: &Tensor| {
            let mean = mean.to_dtype(sum.dtype());
            match &own {
                Some(weight) => sum + weighted(&mean, weight),
                None => sum + mean * count.to_dtype(sum.dtype()),
            }
        };
        // The value for the next batch.
        let next = |sum: &Tensor| ends.select(&sum.zeros_like(), sum);
        // The weights that losses bring may be fractions.
        let divisor = match &own {
            Some(_) => total.gt(0.0).select(&total, &total.ones_like()),
            None => total.maximum(1.0),
        };
        for parameter in &mut batch.parameters {
            if let Some(location) = parameter.sparse {
                return Err(Table { name: &parameter.name, location }.error(&format!(
                    "the gradients of a group of batches would have ever more rows; set {BATCHES_OPTION} to 1"
                )));
            }
            parameter.gradient = add(&parameter.state[0], &parameter.gradient);
            parameter.state[0] = next(&parameter.gradient);
        }
        if let Some(sum) = state.get_mut(1) {
            let losses = add(sum, &batch.mean_loss);
            batch.mean_loss = &losses / &divisor;
            *sum = next(&losses);
        }
        state[0] = next(&total);
        batch.weight = Some(divisor);
        Ok(())
    }
}

/// The weight of a batch in the sums of gradients of its group: an f32 scalar. `None` if it is the
/// number of samples.
fn loss_weight(loss: &Tensor, source: &str, batch: &Batch) -> Result<Option<Tensor>> {
    let error = |problem: String| {
        Err(Error::usage(format!("{source}: {problem}\n  at {}", loss.location())))
    };
    let weights = mean_weights(loss);
    if weights.len() > 1 {
        let lines: Vec<String> =
            weights.iter().map(|found| format!("  weight of {}", found.location)).collect();
        return error(format!(
            "the loss joins means with different weights, so the batches of a group ({BATCHES_OPTION}) have no \
             common weight; give the loss one: loss::with_weight(loss, weight)\n{}",
            lines.join("\n")
        ));
    }
    if weights.iter().any(|found| counts_padding(&found.weight, batch)) {
        return error(
            "the last batch is padded, but the weight of the loss does not depend on the batch's mask, so it would count \
             the padding; multiply the counted elements by batch.mask(), or let the loader drop the last batch"
                .into(),
        );
    }
    Ok(weights.first().map(|found| found.weight.to_dtype(DType::F32)))
}
