//! [`StepRule`]: an addition to the compiled step, with a state of its own.

use std::fmt::Debug;
use std::panic::Location;

use fulmen_nn::optim::{GroupStep, Step, gradient_norm};
use fulmen_tensor::{DType, Tensor, TensorType};

use crate::{Batch, Error, Result, TrainDuration};

/// An addition to the compiled step: it can set the learning rate, scale the loss, skip steps, and
/// log values. A callback adds it with [`Callback::step_rule`](crate::Callback::step_rule).
///
/// All methods except `name` have a default that does nothing. They are listed in the order in
/// which a step calls them. The rules are called in the order of their callbacks, for each optimizer
/// separately. They are recorded with the step, so they need no later compilation. A rule that
/// changes gradients or updates is a
/// [`GradientTransformation`](fulmen_nn::optim::GradientTransformation) in the optimizer's chain.
///
/// The rule's state is part of the training state, so a resumed run continues as the earlier run
/// would have. A step may take [several batches](StepRule::scheduling). A skipped step changes
/// neither the parameters nor the optimizer's state, and schedules don't count it.
///
/// ```
/// use std::sync::Arc;
///
/// use fulmen_tensor::Tensor;
/// use fulmen_trainer::{Callback, Candidate, StepInputs, StepRule, Trainer, UpdatedStep};
///
/// /// Skips steps whose loss is at least three times that of the last step that was not skipped.
/// #[derive(Debug)]
/// struct NoJumps;
///
/// impl StepRule for NoJumps {
///     fn name(&self) -> &'static str {
///         "no_jumps"
///     }
///
///     fn init(&self) -> Vec<(&'static str, Tensor)> {
///         vec![("loss", Tensor::scalar(f32::INFINITY))]
///     }
///
///     fn inputs(&self) -> StepInputs {
///         StepInputs { loss: true, ..StepInputs::default() }
///     }
///
///     fn accepts(&self, step: &Candidate, state: &mut [Tensor]) -> Option<Tensor> {
///         let loss = step.loss.as_ref()?;
///         let accepted = loss.lt(&(&state[0] * 3.0));
///         state[0] = accepted.select(loss, &state[0]);
///         Some(accepted)
///     }
///
///     fn logged(&self, _: &UpdatedStep, state: &[Tensor]) -> Vec<(String, Tensor)> {
///         vec![("accepted_loss".into(), state[0].clone())]
///     }
/// }
///
/// struct JumpGuard;
///
/// impl Callback for JumpGuard {
///     fn name(&self) -> &'static str {
///         "JumpGuard"
///     }
///
///     fn step_rule(&self) -> Option<Arc<dyn StepRule>> {
///         Some(Arc::new(NoJumps))
///     }
/// }
///
/// let builder = Trainer::builder().callback(JumpGuard);
/// ```
pub trait StepRule: Debug + Send + Sync {
    /// The name of the rule. Its state is saved as `trainer/NAME/…`. The rules of a step have
    /// different names.
    fn name(&self) -> &'static str;

    /// The name of a tensor of the rule's state, after `trainer/`.
    #[doc(hidden)] // for state that had a name before its rule
    fn state_name(&self, slot: &str) -> String {
        format!("{}/{slot}", self.name())
    }

    /// Checks the rule for a module with these optimizers. A single optimizer has an empty name.
    ///
    /// # Errors
    /// The rule does not fit the optimizers.
    fn check(&self, optimizers: &[&str]) -> Result<()> {
        let _ = optimizers;
        Ok(())
    }

    /// The number of batches per optimizer step, as pairs of a first epoch and a number, instead of
    /// the option's. The epochs are in ascending order. Before the first of them, the
    /// number is 1.
    fn scheduling(&self) -> Option<&[(u64, u64)]> {
        None
    }

    /// The parameters that the rule freezes at first. Each such rule begins a phase of the fit with
    /// a program of its own. A Trainer may have several with the same name. If two match a
    /// parameter, the later one applies.
    fn frozen(&self) -> Option<FrozenParameters> {
        None
    }

    /// The optimizer's step of these parameters once they are trained; without a change by default.
    /// `step` counts the steps since then, and `epochs`, an i32 scalar, the epochs.
    fn unfrozen_step(&self, step: Step, epochs: &Tensor) -> Step {
        let _ = epochs;
        step
    }

    /// The state for one optimizer: names, and the values before the first step. It has none by
    /// default. Each device has a copy.
    fn init(&self) -> Vec<(&'static str, Tensor)> {
        Vec::new()
    }

    /// The state for a parameter, with the parameter's shape, for [`collect`](StepRule::collect).
    #[doc(hidden)]
    fn init_parameter(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
        let _ = parameter;
        Vec::new()
    }

    /// What the rule reads of a step, if that costs something; nothing by default.
    fn inputs(&self) -> StepInputs {
        StepInputs::default()
    }

    /// The learning rate of the step after `finished` steps, an i32 scalar, instead of the
    /// optimizer's. The first rule that has one applies.
    fn learning_rate(&self, finished: &Tensor) -> Option<Tensor> {
        let _ = finished;
        None
    }

    /// The loss to differentiate: a floating-point scalar. Logged values have the loss as it was.
    fn scale_loss(&self, loss: &Tensor, state: &[Tensor]) -> Tensor {
        let _ = state;
        loss.clone()
    }

    /// The gradient of the loss, from that of the [scaled loss](StepRule::scale_loss).
    fn unscale(&self, gradient: &Tensor, state: &[Tensor]) -> Tensor {
        let _ = state;
        gradient.clone()
    }

    /// Joins a batch of a step that takes several with the batches before it, in the gradients, the
    /// loss and the states.
    ///
    /// # Errors
    /// The batches of a step cannot be joined.
    #[doc(hidden)]
    fn collect(&self, batch: &mut StepBatch<'_>, state: &mut [Tensor]) -> Result<()> {
        let _ = (batch, state);
        Ok(())
    }

    /// Whether the optimizer makes the step, a Boolean scalar; `None` if the rule does not decide.
    /// A rule decides about the steps that the rules before it accepted.
    ///
    /// Changes the state; its types must stay the same. Where the optimizer makes no step anyway,
    /// before the last batch of a step or because an earlier rule did not accept it, the Trainer
    /// keeps the state as it was.
    fn accepts(&self, step: &Candidate, state: &mut [Tensor]) -> Option<Tensor> {
        let _ = (step, state);
        None
    }

    /// Whether [`changed_gradient`](StepRule::changed_gradient) reads the norm of all gradients.
    #[doc(hidden)]
    fn changes_by_norm(&self) -> bool {
        false
    }

    /// The gradient of a parameter for the optimizer. `norm` is that of all gradients before, if
    /// the rule [reads](StepRule::changes_by_norm) it.
    #[doc(hidden)]
    fn changed_gradient(&self, gradient: &Tensor, norm: Option<&Tensor>) -> Tensor {
        let _ = norm;
        gradient.clone()
    }

    /// The dtype of the parameters that the rule [rounds](StepRule::round); `None` if it rounds none.
    #[doc(hidden)]
    fn rounds_to(&self) -> Option<DType> {
        None
    }

    /// An updated parameter in its dtype, from its value in f32. `key` is a random key of the
    /// parameter and the step, which no layer has.
    #[doc(hidden)]
    fn round(&self, value: &Tensor, key: &Tensor) -> Tensor {
        let _ = key;
        value.clone()
    }

    /// The values to log of the step of a log point: names, and floating-point scalars. The rule
    /// reads an [update](StepInputs::update). Steps between log points don't compute them.
    fn observed(&self, step: &UpdatedStep) -> Vec<(String, Tensor)> {
        let _ = step;
        Vec::new()
    }

    /// The values to log of each step: names, and scalars that are floating-point or i32. A log
    /// point has those of its latest step. Of rules that log the same name, the first applies.
    fn logged(&self, step: &UpdatedStep, state: &[Tensor]) -> Vec<(String, Tensor)> {
        let _ = (step, state);
        Vec::new()
    }

    /// Whether the points of epochs have the latest value of this name too. That is possible for
    /// one name.
    #[doc(hidden)]
    fn logs_in_epochs(&self, name: &str) -> bool {
        let _ = name;
        false
    }
}

/// Parameters that a [`StepRule`] freezes at first.
#[derive(Clone, Debug)]
pub struct FrozenParameters {
    /// The pattern that their dotted names match.
    pub pattern: String,
    /// When they are trained: after epochs or steps.
    pub until: TrainDuration,
    /// Whether batch norms among them are frozen too.
    pub freezes_batch_norms: bool,
}

/// What a [`StepRule`] reads of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepInputs {
    /// The [loss](Candidate::loss). If steps take several batches, the training state then has its
    /// sum.
    pub loss: bool,
    /// The [norm of the gradients](Candidate::grad_norm). It reads all gradients once more in each
    /// step.
    pub grad_norm: bool,
    /// The parameters before and after the step of a log point, for
    /// [`observed`](StepRule::observed).
    pub update: bool,
}

/// A batch with the loss of an optimizer, and what is known of the step that it belongs to.
#[doc(hidden)]
pub struct StepBatch<'a> {
    pub(crate) batch: &'a Batch,
    /// The loss of the batch.
    pub(crate) loss: &'a Tensor,
    /// The function that computes the loss, for errors.
    pub(crate) source: &'a str,
    /// Whether the step ends with this batch, a Boolean scalar, if it takes several.
    pub(crate) step_ends: Option<&'a Tensor>,
    /// The loss of the step so far, an f32 scalar. At first it is that of the batch.
    pub(crate) mean_loss: Tensor,
    /// The weight of the batches so far, if the gradients are sums.
    pub(crate) weight: Option<Tensor>,
    pub(crate) parameters: Vec<CollectedParameter>,
}

/// A parameter of a [`StepBatch`].
pub(crate) struct CollectedParameter {
    pub(crate) name: String,
    /// The line that asked for sparse gradients.
    pub(crate) sparse: Option<&'static Location<'static>>,
    /// The gradient of the step so far, times its weight. At first it is that of the batch.
    pub(crate) gradient: Tensor,
    /// The rule's [state](StepRule::init_parameter) for it.
    pub(crate) state: Vec<Tensor>,
}

/// A step whose gradients are known, and that may be skipped.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Candidate {
    /// The loss of the step, an f32 scalar, if the rule [reads](StepInputs::loss) it. If steps take
    /// several batches, the mean over their samples.
    pub loss: Option<Tensor>,
    /// The Euclidean norm of all gradients together before clipping, an f32 scalar, if the rule
    /// [reads](StepInputs::grad_norm) it.
    pub grad_norm: Option<Tensor>,
    /// The gradients. If steps take several batches, their sum over the batches so far, each times
    /// the weight of its batch. For a table with sparse gradients, some of its rows.
    pub gradients: Vec<Tensor>,
    /// The number of the step, from 1: an i32 scalar.
    pub number: Tensor,
}

/// A step of an optimizer with its result.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UpdatedStep {
    /// The parameters of the optimizer, frozen ones too.
    pub parameters: Vec<UpdatedParameter>,
    /// The parameters as the training state stores them: those of layers that run as a scan are one.
    /// This is cheaper to read.
    pub stored: Vec<UpdatedParameter>,
    /// The norm of all gradients before clipping, if a rule [needs](StepInputs::grad_norm) it in each
    /// step, as the option [`log_grad_norm`](crate::Options::log_grad_norm) does.
    pub grad_norm: Option<Tensor>,
    /// The weight of the batches, if the gradients are sums.
    pub(crate) weight: Option<Tensor>,
}

/// A parameter before and after a step.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UpdatedParameter {
    /// The dotted name of the parameter, or of the first parameter of those that are stored as one.
    pub name: String,
    /// The parameter's group, with its learning rate and momentum in this step.
    pub group: GroupStep,
    /// The value before the step.
    pub before: Tensor,
    /// The value after the step.
    pub after: Tensor,
    /// The gradient, or the sum of the gradients of several batches. `None` if the parameter is
    /// frozen.
    pub(crate) gradient: Option<Tensor>,
}

impl UpdatedParameter {
    /// Whether the parameter is frozen in this phase.
    pub fn is_frozen(&self) -> bool {
        self.gradient.is_none()
    }
}

impl UpdatedStep {
    /// The gradient of a parameter before clipping; `None` if it is frozen. For a table with sparse
    /// gradients, some of its rows.
    pub fn gradient(&self, parameter: &UpdatedParameter) -> Option<Tensor> {
        let sum = parameter.gradient.as_ref()?;
        Some(mean_gradient(sum, self.weight.as_ref()))
    }

    /// The Euclidean norm of the gradients of some parameters together, before clipping.
    pub fn gradient_norm<'a>(
        &self,
        parameters: impl IntoIterator<Item = &'a UpdatedParameter>,
    ) -> Tensor {
        let sums = parameters.into_iter().filter_map(|parameter| parameter.gradient.as_ref());
        mean_gradient_norm(sums, self.weight.as_ref())
    }
}

/// Parameters with the same name of their group, in the order in which the groups first appear.
pub(crate) fn grouped(
    parameters: &[UpdatedParameter],
    name: impl Fn(&UpdatedParameter) -> String,
) -> Vec<(String, Vec<&UpdatedParameter>)> {
    let mut groups: Vec<(String, Vec<&UpdatedParameter>)> = Vec::new();
    for parameter in parameters {
        let name = name(parameter);
        match groups.iter_mut().find(|group| group.0 == name) {
            Some(group) => group.1.push(parameter),
            None => groups.push((name, vec![parameter])),
        }
    }
    groups
}

/// A gradient, from its sum over batches of this weight.
pub(crate) fn mean_gradient(sum: &Tensor, weight: Option<&Tensor>) -> Tensor {
    weight.map_or_else(|| sum.clone(), |weight| sum / weight.to_dtype(sum.dtype()))
}

/// The global norm of gradients that are sums over batches of this weight.
pub(crate) fn mean_gradient_norm<'a>(
    sums: impl IntoIterator<Item = &'a Tensor>,
    weight: Option<&Tensor>,
) -> Tensor {
    mean_gradient(&gradient_norm(sums), weight)
}

/// A rule with its state.
pub(crate) struct RuleState<'a> {
    pub(crate) rule: &'a dyn StepRule,
    pub(crate) state: Vec<Tensor>,
}

impl RuleState<'_> {
    /// Lets the rule decide, and keeps its new state. `updates` is whether the optimizer would step
    /// without it, the result whether it steps; `None` if it steps in any case.
    pub(crate) fn decide(
        &mut self,
        candidate: &Candidate,
        updates: Option<Tensor>,
    ) -> Result<Option<Tensor>> {
        let inputs = self.rule.inputs();
        let mut candidate = candidate.clone();
        candidate.loss = candidate.loss.filter(|_| inputs.loss);
        candidate.grad_norm = candidate.grad_norm.filter(|_| inputs.grad_norm);
        let mut state = self.state.clone();
        let accepted = self.rule.accepts(&candidate, &mut state);
        self.check(accepted.as_ref(), &state)?;
        for (before, after) in self.state.iter_mut().zip(state) {
            *before = match &updates {
                Some(updates) if !after.is(before) => updates.select(&after, &*before),
                _ => after,
            };
        }
        Ok(match (updates, accepted) {
            (Some(updates), Some(accepted)) => Some(updates.and(accepted)),
            (updates, accepted) => updates.or(accepted),
        })
    }

    /// Checks that the decision is one, and that the types of the state are the same.
    fn check(&self, accepted: Option<&Tensor>, after: &[Tensor]) -> Result<()> {
        let name = self.rule.name();
        if let Some(accepted) = accepted {
            accepted.check()?;
            if *accepted.ty() != TensorType::new(DType::Bool, []) {
                return Err(Error::usage(format!(
                    "the rule `{name}`: accepts() must return a Boolean scalar, but it returned {}\n  at {}",
                    accepted.ty(),
                    accepted.location()
                )));
            }
        }
        for (before, after) in self.state.iter().zip(after) {
            check_type(name, "its state", before, after)?;
        }
        Ok(())
    }
}

/// Checks that a value is valid and that the rule `rule` kept its type.
pub(crate) fn check_type(rule: &str, what: &str, before: &Tensor, after: &Tensor) -> Result<()> {
    after.check()?;
    if before.ty() == after.ty() {
        return Ok(());
    }
    Err(Error::usage(format!(
        "the rule `{rule}`: it changed the type of {what} from {} to {}; it must stay the same\n  at {}",
        before.ty(),
        after.ty(),
        after.location()
    )))
}

/// A value that the rule `rule` logs, as f32 or, if `may_count`, as an i32 counter.
///
/// # Errors
/// The value is neither.
pub(crate) fn logged_value(
    rule: &str,
    name: &str,
    value: &Tensor,
    may_count: bool,
) -> Result<Tensor> {
    value.check()?;
    let is_scalar = value.shape().rank() == 0;
    if is_scalar && value.dtype().is_float() {
        return Ok(value.to_dtype(DType::F32));
    }
    if is_scalar && may_count && value.dtype() == DType::I32 {
        return Ok(value.clone());
    }
    let expected = if may_count { "floating-point or i32" } else { "floating-point" };
    Err(Error::usage(format!(
        "the rule `{rule}`: it logs `{name}`, {}; log a {expected} scalar\n  at {}",
        value.ty(),
        value.location()
    )))
}
