//! [`SkipRule`]: a rule that decides on the device whether the optimizer makes a step.

use std::fmt::Debug;

use fulmen_tensor::{DType, Tensor, TensorType};

use crate::rules::accumulation::Group;
use crate::{Error, Result};

/// A rule that decides on the device whether the optimizer makes a step. A callback adds it with
/// [`StepPart::Skip`](crate::StepPart::Skip).
///
/// A skipped step changes neither the parameters nor the optimizer's state, and schedules don't
/// count it. With `accumulate_grad_batches`, a step is a group of batches. With several optimizers,
/// the rule decides for each separately. The rule's state is part of the training state, so a
/// resumed run decides as the earlier run would have.
///
/// ```
/// use std::sync::Arc;
///
/// use fulmen_tensor::Tensor;
/// use fulmen_trainer::{Callback, Candidate, SkipRule, StepPart, Trainer};
///
/// /// Skips steps whose loss is at least three times that of the last step that was not skipped.
/// #[derive(Debug)]
/// struct NoJumps;
///
/// impl SkipRule for NoJumps {
///     fn name(&self) -> &'static str {
///         "no_jumps"
///     }
///
///     fn init(&self) -> Vec<(&'static str, Tensor)> {
///         vec![("loss", Tensor::scalar(f32::INFINITY))]
///     }
///
///     fn decide(&self, step: &Candidate, state: &mut [Tensor]) -> Tensor {
///         let jumps = step.loss.ge(&(&state[0] * 3.0));
///         state[0] = jumps.select(&state[0], &step.loss);
///         jumps
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
///     fn step_part(&self) -> Option<StepPart> {
///         Some(StepPart::Skip(Arc::new(NoJumps)))
///     }
/// }
///
/// let builder = Trainer::builder().callback(JumpGuard);
/// ```
pub trait SkipRule: Debug + Send + Sync {
    /// The name of the rule. Its state is saved as `trainer/NAME/…`. The rules of a step have
    /// different names.
    fn name(&self) -> &'static str;

    /// The state for one optimizer: names, and the values before the first step. It has none by
    /// default. Each device has a copy.
    fn init(&self) -> Vec<(&'static str, Tensor)> {
        Vec::new()
    }

    /// Whether [`decide`](SkipRule::decide) needs the norm of the gradients; false by default. It
    /// reads all gradients once more in each step.
    fn needs_grad_norm(&self) -> bool {
        false
    }

    /// Whether the step is skipped, a Boolean scalar. Changes the state; its types must stay the
    /// same. Where the optimizer makes no step anyway, within a group of batches or after an
    /// overflow in f16, the Trainer keeps the state as it was.
    fn decide(&self, step: &Candidate, state: &mut [Tensor]) -> Tensor;

    /// The values to log after a step: names, and scalars of its state. Nothing by default.
    fn logged(&self, state: &[Tensor]) -> Vec<(&'static str, Tensor)> {
        let _ = state;
        Vec::new()
    }
}

/// A step that may be skipped.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Candidate {
    /// The loss of the step, an f32 scalar. For a group of batches, the mean over its samples.
    pub loss: Tensor,
    /// The Euclidean norm of all gradients together before clipping, an f32 scalar, if the rule
    /// [needs](SkipRule::needs_grad_norm) it.
    pub grad_norm: Option<Tensor>,
    /// The number of the step, from 1: an i32 scalar.
    pub number: Tensor,
}

/// The state of a rule before and after a step. The last tensor is the sum of the losses over the
/// samples of a group of batches, if batches are accumulated.
pub(crate) struct SkipStep<'a> {
    pub(crate) rule: &'a dyn SkipRule,
    pub(crate) state: Vec<Tensor>,
}

/// What a rule decided.
pub(crate) struct Decision {
    /// Whether the optimizer makes a step.
    pub(crate) updates: Tensor,
    pub(crate) state: Vec<Tensor>,
}

impl SkipStep<'_> {
    /// Lets the rule decide. `updates` is whether the optimizer would step without it; `None` if it
    /// steps in any case. `group` is the group of batches whose end is the step.
    pub(crate) fn decide(
        &self,
        candidate: Candidate,
        updates: Option<&Tensor>,
        group: Option<&Group>,
    ) -> Result<Decision> {
        let mut candidate = candidate;
        let mut before = self.state.clone();
        let mut loss_sum = None;
        if let Some(group) = group
            && let Some(sum) = before.pop()
        {
            let total = group.add(&sum, &candidate.loss);
            candidate.loss = &total / group.divisor();
            loss_sum = Some(group.group_complete().select(&total.zeros_like(), &total));
        }
        if !self.rule.needs_grad_norm() {
            candidate.grad_norm = None;
        }
        let mut state = before.clone();
        let skips = self.rule.decide(&candidate, &mut state);
        self.check(&skips, &before, &state)?;
        let passes = skips.not();
        let mut decision = match updates {
            Some(updates) => {
                let pairs = state.iter().zip(&before);
                let kept = pairs.map(|(after, before)| updates.select(after, before)).collect();
                Decision { updates: updates.and(&passes), state: kept }
            }
            None => Decision { updates: passes, state },
        };
        decision.state.extend(loss_sum);
        Ok(decision)
    }

    /// Checks that the decision is one, and that the types of the state are the same.
    fn check(&self, skips: &Tensor, before: &[Tensor], after: &[Tensor]) -> Result<()> {
        let name = self.rule.name();
        skips.check()?;
        if *skips.ty() != TensorType::new(DType::Bool, []) {
            return Err(Error::usage(format!(
                "the rule `{name}`: decide() must return a Boolean scalar, but it returned {}\n  at {}",
                skips.ty(),
                skips.location()
            )));
        }
        for (before, after) in before.iter().zip(after) {
            after.check()?;
            if before.ty() != after.ty() {
                return Err(Error::usage(format!(
                    "the rule `{name}`: it changed the type of its state from {} to {}; it must stay the same\n  at {}",
                    before.ty(),
                    after.ty(),
                    after.location()
                )));
            }
        }
        Ok(())
    }
}
