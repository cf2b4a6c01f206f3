//! [`StepPart`]: an addition to the compiled step that a callback needs.

use std::sync::Arc;

use crate::TrainDuration;
use crate::rules::lr_sweep::LrSweep;
use crate::rules::skip_rule::SkipRule;

/// An addition to the compiled step that a callback needs
/// ([`Callback::step_part`](crate::Callback::step_part)). It is recorded with the step, so it needs
/// no later compilation. Its logged values arrive with the other values of a log point.
#[derive(Clone, Debug)]
pub enum StepPart {
    /// Log the learning rate of each parameter group, and its momentum.
    LearningRates {
        /// Whether to log the momentum too.
        momentum: bool,
    },
    /// Log Euclidean norms of the step of a log point.
    Norms {
        /// Log the norms of gradients, before clipping.
        gradients: bool,
        /// Log the norms of parameters, after the step.
        parameters: bool,
        /// Log the norms of the changes of parameters.
        updates: bool,
        /// Which parameters share a norm.
        group_by: NormGroup,
    },
    /// Skip the steps that this rule selects. A Trainer may have several of these parts, whose rules
    /// have different names: each decides about the steps that the rules before it let pass.
    Skip(Arc<dyn SkipRule>),
    /// Instead of the optimizer's learning rate, use rates that rise.
    LearningRate(LrSweep),
    /// Change the number of accumulated batches at some epochs.
    Accumulation {
        /// Epochs in ascending order, each with its number of batches. Before the first of them,
        /// the number is 1.
        scheduling: Vec<(u64, u64)>,
    },
    /// Freeze parameters at first. Each unfreezing begins a phase with its own program. A Trainer
    /// may have several of these parts. If two match a parameter, the later one applies.
    Unfreeze {
        /// The parameters whose dotted names match.
        pattern: String,
        /// When to unfreeze them: epochs or steps.
        unfreeze_at: TrainDuration,
        /// The initial learning rate of the parameters, as a fraction of the optimizer's.
        initial_ratio: f64,
        /// The factor by which that fraction grows after each epoch.
        multiplier: f64,
        /// Whether the fraction stays at most 1.
        should_align: bool,
        /// Whether batch norm is trained from the beginning.
        train_bn: bool,
    },
}

impl StepPart {
    /// Whether both parts are of the same kind, and a step can have only one part of that kind.
    pub(crate) fn is_like(&self, other: &StepPart) -> bool {
        match (self, other) {
            (StepPart::Unfreeze { .. }, _) => false,
            (StepPart::Skip(rule), StepPart::Skip(other)) => rule.name() == other.name(),
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

/// The parameters that share a norm in [`NormMonitor`](crate::callbacks::NormMonitor).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NormGroup {
    /// The parameters of an optimizer's parameter group, named by its pattern. Parameters without a
    /// pattern are the group `default`.
    #[default]
    ParamGroup,
    /// The parameters of a layer: `encoder.0` has `encoder.0.weight` and `encoder.0.bias`.
    Layer,
    /// Each parameter on its own.
    Parameter,
}

impl NormGroup {
    /// The name of a parameter's group.
    pub(crate) fn name(self, parameter: &str, param_group: impl FnOnce() -> String) -> String {
        match self {
            NormGroup::ParamGroup => {
                Some(param_group()).filter(|name| !name.is_empty()).unwrap_or("default".into())
            }
            NormGroup::Layer => {
                parameter.rsplit_once('.').map_or(parameter, |(layer, _)| layer).to_owned()
            }
            NormGroup::Parameter => parameter.to_owned(),
        }
    }
}
