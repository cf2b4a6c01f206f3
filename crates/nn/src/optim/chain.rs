//! [`Chain`]: an optimizer with rules before and after it.

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::Location;

use fulmen_tensor::{Tensor, TensorType};

use super::{GradientTransformation, GroupStep, Optimizer, Sgd, Step};
use crate::{Error, Result};

/// An optimizer with rules before and after it; [`chain`] makes it. Return it from
/// `configure_optimizers`, or give it to `Optimizers::add`. It can't be part of another optimizer,
/// such as [`ParamGroups`](super::ParamGroups), because its rules see all parameters together; the
/// chain's optimizer can be one.
#[derive(Debug)]
#[must_use]
pub struct Chain {
    rules: ChainRules,
    optimizer: Box<dyn Optimizer>,
}

/// The rules of a chain.
#[doc(hidden)] // for the Trainer
#[derive(Debug, Default)]
pub struct ChainRules {
    /// They change the gradients, in this order.
    pub before: Vec<Box<dyn GradientTransformation>>,
    /// They change the changes of the parameters, in this order.
    pub after: Vec<Box<dyn GradientTransformation>>,
    /// The line that made the chain.
    location: Option<&'static Location<'static>>,
}

/// Rules and, at the end, an optimizer: `(rule, rule, optimizer)`, with up to eight rules.
pub trait IntoChain {
    /// The chain of them.
    #[track_caller]
    fn into_chain(self) -> Chain;
}

/// Puts rules before an optimizer: each gets the gradients of all parameters, changes them and
/// passes them on. [`Chain::then`] adds a rule after the optimizer.
///
/// ```
/// use fulmen_nn::optim::{AdamW, ClipNorm, Optimizer, chain};
///
/// let optimizer = chain((ClipNorm::new(1.0), AdamW::new(3e-4)));
/// assert!(optimizer.check(&[]).is_ok());
/// assert!(chain((ClipNorm::new(-1.0), AdamW::new(3e-4))).check(&[]).is_err());
/// ```
#[track_caller]
pub fn chain(rules: impl IntoChain) -> Chain {
    rules.into_chain()
}

macro_rules! into_chain {
    ($($rule:ident)*) => {
        impl<$($rule: GradientTransformation,)* Last: Optimizer> IntoChain for ($($rule,)* Last,) {
            #[allow(non_snake_case, reason = "a variable has the name of its type")]
            #[track_caller]
            fn into_chain(self) -> Chain {
                let ($($rule,)* optimizer,) = self;
                let rules = ChainRules {
                    before: vec![$(Box::new($rule),)*],
                    after: Vec::new(),
                    location: Some(Location::caller()),
                };
                Chain { rules, optimizer: Box::new(optimizer) }
            }
        }
    };
}

into_chain!();
into_chain!(A);
into_chain!(A B);
into_chain!(A B C);
into_chain!(A B C D);
into_chain!(A B C D E);
into_chain!(A B C D E F);
into_chain!(A B C D E F G);
into_chain!(A B C D E F G H);

impl Chain {
    /// Adds a rule after the optimizer, and after the rules that were added so before. It gets the
    /// changes of all parameters: their new values minus the old ones.
    pub fn then(mut self, rule: impl GradientTransformation) -> Chain {
        self.rules.after.push(Box::new(rule));
        self
    }

    /// The rules and the optimizer of a chain. Any other optimizer is a chain without rules.
    #[doc(hidden)] // for the Trainer
    pub fn split(optimizer: Box<dyn Optimizer>) -> (ChainRules, Box<dyn Optimizer>) {
        let mut rules = ChainRules::default();
        let mut optimizer = optimizer;
        loop {
            let Some(chain) = (&mut *optimizer as &mut dyn Any).downcast_mut::<Chain>() else {
                return (rules, optimizer);
            };
            rules = rules.around(std::mem::take(&mut chain.rules));
            optimizer = std::mem::replace(&mut chain.optimizer, Box::new(Sgd::new(0.0)));
        }
    }
}

impl ChainRules {
    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.before.is_empty() && self.after.is_empty()
    }

    /// All rules: those before the optimizer, then those after it.
    pub fn iter(&self) -> impl Iterator<Item = &dyn GradientTransformation> {
        self.before.iter().chain(&self.after).map(|rule| &**rule)
    }

    /// The rules of a chain whose optimizer is a chain with the rules `inner`.
    fn around(mut self, inner: ChainRules) -> ChainRules {
        self.before.extend(inner.before);
        let mut after = inner.after;
        after.append(&mut self.after);
        ChainRules { before: self.before, after, location: self.location.or(inner.location) }
    }

    /// Checks the rules for a model with these parameters.
    ///
    /// # Errors
    /// A name is invalid or occurs twice, or a setting of a rule is invalid.
    pub fn check(&self, parameters: &[(String, TensorType)]) -> Result<()> {
        let Some(location) = self.location else { return Ok(()) };
        let wrong = |message: String| Err(Error::usage_at(format!("chain: {message}"), location));
        let mut names = BTreeSet::new();
        for rule in self.iter() {
            let name = rule.name();
            if name.is_empty() || name.contains('/') {
                return wrong(format!(
                    "`{name}` is not a valid name for a rule: a name must not be empty or contain `/`"
                ));
            }
            if !names.insert(name) {
                return wrong(format!(
                    "there are two rules with the name `{name}`, but the name identifies the state of a rule; rename one"
                ));
            }
            rule.check(parameters)?;
        }
        Ok(())
    }
}

/// The parts that do not need the rules are those of the chain's optimizer.
impl Optimizer for Chain {
    fn state(&self, name: &str, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
        self.optimizer.state(name, parameter)
    }

    /// The Trainer calls the rules itself. Where it cannot, because the chain is a part of another
    /// optimizer, the result is an error instead of a step without rules.
    fn update(
        &self,
        step: &Step,
        name: &str,
        parameter: &Tensor,
        gradient: &Tensor,
        state: &[Tensor],
    ) -> (Tensor, Vec<Tensor>) {
        if self.rules.is_empty() {
            return self.optimizer.update(step, name, parameter, gradient, state);
        }
        let line = self.rules.location.map_or(String::new(), |line| format!(" (made at {line})"));
        let poison = Tensor::poison(
            "chain",
            format!(
                "a chain with rules{line} cannot be a part of another optimizer, since its rules see all parameters together; \
                 put the other optimizer into the chain: chain((rule, ParamGroups::new(…)))"
            ),
        );
        (poison.clone(), vec![poison; state.len()])
    }

    fn learning_rate(&self, step: &Step) -> Tensor {
        self.optimizer.learning_rate(step)
    }

    fn group_step(&self, step: &Step, name: &str, parameter: &TensorType) -> GroupStep {
        self.optimizer.group_step(step, name, parameter)
    }

    fn trains(&self, name: &str, parameter: &TensorType) -> bool {
        self.optimizer.trains(name, parameter)
    }

    fn draws(&self, name: &str, parameter: &TensorType) -> bool {
        self.optimizer.draws(name, parameter)
    }

    fn check(&self, parameters: &[(String, TensorType)]) -> Result<()> {
        self.rules.check(parameters)?;
        self.optimizer.check(parameters)
    }
}
