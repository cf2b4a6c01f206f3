//! [`Optimizers`]: several named optimizers for one module, each with its own parameters.

use std::any::Any;
use std::fmt::Display;
use std::panic::Location;

use fulmen_nn::Parameter;
use fulmen_nn::optim::pattern::{check_pattern, matches_pattern};
use fulmen_nn::optim::{Chain, ChainRules, Optimizer, Step};
use fulmen_tensor::{DType, Tensor, TensorType};

use crate::{Error, Result};

/// Several optimizers for one module, as in a GAN. Each has a name and the parameters that match
/// one of its patterns. [`StepContext::minimize`](crate::StepContext::minimize) selects an
/// optimizer by its name.
///
/// In a pattern, `*` matches any text, including dots, and `?` matches one character. A pattern
/// must match the whole dotted name. Each parameter belongs to one optimizer. A parameter without
/// an optimizer must be frozen with [`set_requires_grad`](fulmen_nn::Parameter::set_requires_grad).
///
/// ```
/// use fulmen_nn::optim::{Adam, Optimizer};
/// use fulmen_trainer::Optimizers;
///
/// fn configure_optimizers() -> Box<dyn Optimizer> {
///     let optimizers = Optimizers::new()
///         .add("discriminator", ["discriminator.*"], Adam::new(2e-4).betas(0.5, 0.999))
///         .add("generator", ["generator.*"], Adam::new(2e-4).betas(0.5, 0.999))
///         .every("generator", 2);
///     Box::new(optimizers)
/// }
/// # configure_optimizers();
/// ```
#[derive(Debug)]
#[must_use]
pub struct Optimizers {
    members: Vec<Member>,
    cadences: Vec<StepInterval>,
    line: &'static Location<'static>,
    is_single: bool,
    /// The rules of a chain whose optimizer is these optimizers. That is an error.
    refused_rules: ChainRules,
}

/// The interval at which an optimizer steps, in steps of the training.
#[derive(Debug)]
struct StepInterval {
    optimizer: String,
    steps: u64,
    location: &'static Location<'static>,
}

/// One of the optimizers. The only optimizer of a module has an empty name.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) name: String,
    patterns: Vec<String>,
    pub(crate) optimizer: Box<dyn Optimizer>,
    /// The rules around the optimizer.
    pub(crate) rules: ChainRules,
    pub(crate) location: &'static Location<'static>,
}

impl Member {
    fn has(&self, parameter: &str) -> bool {
        self.patterns.iter().any(|pattern| matches_pattern(pattern, parameter))
    }
}

impl Optimizers {
    /// Starts with no optimizer.
    #[track_caller]
    #[allow(
        clippy::new_without_default,
        reason = "an empty one is refused, and its line is in the message"
    )]
    pub fn new() -> Optimizers {
        Optimizers {
            members: Vec::new(),
            cadences: Vec::new(),
            line: Location::caller(),
            is_single: false,
            refused_rules: ChainRules::default(),
        }
    }

    /// Adds an optimizer with this name, for the parameters that match one of the patterns.
    #[track_caller]
    pub fn add(
        mut self,
        name: impl Into<String>,
        patterns: impl IntoIterator<Item = impl Into<String>>,
        optimizer: impl Optimizer,
    ) -> Optimizers {
        let patterns = patterns.into_iter().map(Into::into).collect();
        let (rules, optimizer) = Chain::split(Box::new(optimizer));
        self.members.push(Member {
            name: name.into(),
            patterns,
            optimizer,
            rules,
            location: Location::caller(),
        });
        self
    }

    /// Makes the optimizer with this name step in the first step of the training and in every
    /// `steps`-th step after it. It skips the other steps: they compute neither its loss nor its
    /// gradients.
    ///
    /// The interval counts steps as [`Plan`](crate::Plan) does: with `accumulate_grad_batches`, a
    /// group of batches is one step. A schedule counts only the steps that its optimizer makes.
    #[track_caller]
    pub fn every(mut self, name: impl Into<String>, steps: u64) -> Optimizers {
        let location = Location::caller();
        self.cadences.push(StepInterval { optimizer: name.into(), steps, location });
        self
    }

    /// The optimizers that a module's `configure_optimizers` returned: several, or a single one.
    pub(crate) fn from_module(optimizer: Box<dyn Optimizer>) -> Optimizers {
        let (rules, mut optimizer) = Chain::split(optimizer);
        if let Some(several) = (&mut *optimizer as &mut dyn Any).downcast_mut::<Optimizers>() {
            let several = std::mem::replace(several, Optimizers::new());
            return Optimizers { refused_rules: rules, ..several };
        }
        let member = Member {
            name: String::new(),
            patterns: vec!["*".into()],
            optimizer,
            rules,
            location: Location::caller(),
        };
        Optimizers { members: vec![member], is_single: true, ..Optimizers::new() }
    }

    /// Whether there is only one optimizer, without a name, which minimizes the loss that
    /// `training_step` returns.
    pub(crate) fn is_single(&self) -> bool {
        self.is_single
    }

    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    /// The index of the optimizer with this name.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.members.iter().position(|member| member.name == name)
    }

    /// The index of the optimizer that a parameter belongs to.
    pub(crate) fn optimizer_of(&self, parameter: &str) -> Option<usize> {
        self.members.iter().position(|member| member.has(parameter))
    }

    /// The index of the optimizer that trains a parameter, if it is trained.
    pub(crate) fn training(&self, name: &str, parameter: &Parameter) -> Option<usize> {
        self.optimizer_of(name)
            .filter(|_| parameter.requires_grad() && self.trains(name, &parameter.ty()))
    }

    /// The number of training steps per step of this optimizer.
    pub(crate) fn cadence(&self, member: usize) -> u64 {
        let name = &self.members[member].name;
        self.cadences
            .iter()
            .rev()
            .find(|cadence| cadence.optimizer == *name)
            .map_or(1, |cadence| cadence.steps)
    }

    /// The names, for messages.
    pub(crate) fn names(&self) -> String {
        let names: Vec<String> =
            self.members.iter().map(|member| format!("`{}`", member.name)).collect();
        names.join(", ")
    }

    /// Checks the optimizers against the module's parameters, some of which are frozen.
    pub(crate) fn check_for(
        &self,
        parameters: &[(String, TensorType)],
        frozen: &[String],
    ) -> Result<()> {
        if let ([single], true) = (&self.members[..], self.is_single) {
            single.rules.check(parameters)?;
            return single.optimizer.check(parameters);
        }
        if let Some(rule) = self.refused_rules.iter().next() {
            let name = rule.name();
            return Err(wrong(
                self.line,
                format!(
                    "the rule `{name}` is around all optimizers, but a rule belongs to one; put it into add()"
                ),
            ));
        }
        if self.members.is_empty() {
            return Err(wrong(self.line, "there are no optimizers; add one with add()"));
        }
        for (i, member) in self.members.iter().enumerate() {
            let name = &member.name;
            if name.is_empty() || name.contains('/') {
                return Err(wrong(
                    member.location,
                    format!(
                        "`{name}` is not a valid name: a name must not be empty or contain `/`"
                    ),
                ));
            }
            if self.position(name) != Some(i) {
                return Err(wrong(
                    member.location,
                    format!("there are two with the name `{name}`; rename one"),
                ));
            }
            let names = parameters.iter().map(|(name, _)| name.as_str());
            if let Some(message) =
                member.patterns.iter().find_map(|pattern| check_pattern(pattern, names.clone()))
            {
                return Err(wrong(member.location, format!("`{name}`: {message}")));
            }
            let own: Vec<_> =
                parameters.iter().filter(|(parameter, _)| member.has(parameter)).cloned().collect();
            for (parameter, _) in &own {
                if let Some(other) = self.optimizer_of(parameter).filter(|&other| other != i) {
                    let other = &self.members[other].name;
                    let message = format!(
                        "`{parameter}` belongs to `{other}` and to `{name}`; it can have one optimizer"
                    );
                    return Err(wrong(member.location, message));
                }
            }
            member.rules.check(&own)?;
            member.optimizer.check(&own)?;
        }
        if let Some((parameter, _)) = parameters
            .iter()
            .find(|(name, _)| self.optimizer_of(name).is_none() && !frozen.contains(name))
        {
            let message = format!(
                "the parameter `{parameter}` belongs to none of {}; add a pattern that matches it, or freeze it with \
                 set_requires_grad(false)",
                self.names()
            );
            return Err(wrong(self.line, message));
        }
        for StepInterval { optimizer: name, steps, location } in &self.cadences {
            if self.position(name).is_none() {
                return Err(wrong(
                    location,
                    format!("every: there is no optimizer `{name}`; there are {}", self.names()),
                ));
            }
            if *steps == 0 {
                return Err(wrong(
                    location,
                    format!("every: the interval of `{name}` must be at least 1 step, not 0"),
                ));
            }
        }
        Ok(())
    }
}

fn wrong(line: &Location<'_>, message: impl Display) -> Error {
    Error::usage(format!("Optimizers: {message}\n  at {line}"))
}

/// Updates each parameter with the optimizer that it belongs to.
impl Optimizer for Optimizers {
    fn state(&self, name: &str, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
        self.optimizer_of(name)
            .map_or(Vec::new(), |i| self.members[i].optimizer.state(name, parameter))
    }

    fn update(
        &self,
        step: &Step,
        name: &str,
        parameter: &Tensor,
        gradient: &Tensor,
        state: &[Tensor],
    ) -> (Tensor, Vec<Tensor>) {
        match self.optimizer_of(name) {
            Some(i) => self.members[i].optimizer.update(step, name, parameter, gradient, state),
            None => (parameter.clone(), state.to_vec()),
        }
    }

    /// The learning rate of the first optimizer.
    fn learning_rate(&self, step: &Step) -> Tensor {
        match self.members.first() {
            Some(first) => first.optimizer.learning_rate(step),
            None => Tensor::zeros(DType::F32, []),
        }
    }

    fn trains(&self, name: &str, parameter: &TensorType) -> bool {
        self.optimizer_of(name).is_some_and(|i| self.members[i].optimizer.trains(name, parameter))
    }
}
