//! [`StepPart`]: what the compiled step does for a callback, in addition to the user's step.

use crate::TrainDuration;

/// What the compiled step does for a callback ([`Callback::step_part`](crate::Callback::step_part)). It is recorded with
/// the step: nothing is compiled for it later, and what it logs arrives with the other values of a log point.
#[derive(Clone, Debug, PartialEq)]
pub enum StepPart {
    /// Log the learning rate of each group of parameters, and its momentum.
    LearningRates {
        /// Whether to log the momentum too.
        momentum: bool,
    },
    /// Log Euclidean lengths of the step of a log point.
    Norms {
        /// Of the gradients, before they are clipped.
        gradients: bool,
        /// Of the parameters after the step.
        parameters: bool,
        /// Of what the step changed of the parameters.
        updates: bool,
        /// Which parameters are taken together.
        by: NormGroup,
    },
    /// Skip steps whose loss is out of line.
    SpikeGuard {
        /// Whether the length of the gradients is judged too.
        gradients: bool,
        /// Steps that a step is compared with.
        window: usize,
        /// Steps before the first one that can be skipped.
        warmup: u64,
        /// How many standard deviations above the mean are too many.
        deviations: f64,
    },
    /// Train with learning rates that rise from `min` to `max` over `steps` steps, instead of the optimizer's.
    Sweep {
        /// The rate of the first step.
        min: f64,
        /// The rate of the last step.
        max: f64,
        /// How many steps.
        steps: u64,
        /// How the rate rises.
        mode: SweepMode,
    },
    /// Accumulate gradients over another number of batches from some epochs on.
    Accumulation {
        /// The epochs, which rise, with the number of batches; 1 before the first of them.
        scheduling: Vec<(u64, u64)>,
    },
    /// Leave parameters as they are at first. Each time at which some are unfrozen begins a phase with a program of its
    /// own. A Trainer may have several of these parts; of two that fit a parameter, the later holds.
    Unfreeze {
        /// The parameters whose dotted names fit.
        pattern: String,
        /// When: epochs or steps.
        at: TrainDuration,
        /// What their learning rate is at first, as a share of the optimizer's.
        initial_ratio: f64,
        /// What that share is multiplied by after each epoch.
        multiplier: f64,
        /// Whether the share stays at most 1.
        should_align: bool,
        /// Whether batch norm is trained from the beginning.
        train_bn: bool,
    },
}

impl StepPart {
    /// Whether both are of one kind that a step can have only once.
    pub(crate) fn is_like(&self, other: &StepPart) -> bool {
        !matches!(self, StepPart::Unfreeze { .. }) && std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// Which parameters [`NormMonitor`](crate::callbacks::NormMonitor) takes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NormGroup {
    /// Those of a group of the optimizer, by its pattern; `default` for those that no pattern fits.
    #[default]
    ParamGroup,
    /// Those of a layer: `encoder.0` has `encoder.0.weight` and `encoder.0.bias`.
    Layer,
    /// Each by itself.
    Parameter,
}

impl NormGroup {
    /// The name of the group of a parameter.
    pub(crate) fn name(self, parameter: &str, param_group: impl FnOnce() -> String) -> String {
        match self {
            NormGroup::ParamGroup => Some(param_group()).filter(|name| !name.is_empty()).unwrap_or("default".into()),
            NormGroup::Layer => parameter.rsplit_once('.').map_or(parameter, |(layer, _)| layer).to_owned(),
            NormGroup::Parameter => parameter.to_owned(),
        }
    }
}

/// How the learning rate rises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SweepMode {
    /// By the same factor in each step.
    #[default]
    Exponential,
    /// By the same difference in each step.
    Linear,
}

impl SweepMode {
    /// The rate after this share of the way.
    pub(crate) fn rate(self, min: f64, max: f64, share: f64) -> f64 {
        match self {
            SweepMode::Exponential => min * (max / min).powf(share),
            SweepMode::Linear => min + share * (max - min),
        }
    }
}
