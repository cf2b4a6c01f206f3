//! [`ParamGroups`]: another optimizer, weight decay or learning rate for some parameters, or none at all.

use std::panic::Location;

use fulmen_tensor::{Tensor, TensorType};

use super::pattern::{fits, misfit};
use super::{GroupStep, Optimizer, Step};
use crate::{Error, Result};

/// An optimizer that treats some parameters differently, by patterns over their dotted names: PyTorch's parameter groups.
///
/// In a pattern `*` stands for any text, dots included, and `?` for one character; it must fit the whole name. Of two
/// settings of one kind that fit a parameter, the later holds. A pattern that fits no parameter is refused before
/// training begins.
///
/// ```
/// use fulmen_nn::optim::{AdamW, Optimizer, ParamGroups};
/// use fulmen_tensor::{DType, TensorType};
///
/// let optimizer = ParamGroups::new(AdamW::new(1e-3).weight_decay(0.05))
///     .no_decay_on_biases_and_norms()
///     .freeze("encoder.*")
///     .lr_factor("head.*", 10.0);
///
/// let matrix = TensorType::new(DType::F32, [8, 8]);
/// assert!(optimizer.trains("head.weight", &matrix) && !optimizer.trains("encoder.0.weight", &matrix));
///
/// let error = optimizer.check(&[("encoder.0.weight".into(), matrix.clone()), ("haed.weight".into(), matrix)]);
/// let message = error.unwrap_err().to_string();
/// assert!(message.contains("`head.*` fits no parameter; the nearest are `haed.weight`"), "{message}");
/// ```
#[derive(Debug)]
pub struct ParamGroups {
    /// For what no group has another optimizer for.
    optimizer: Box<dyn Optimizer>,
    settings: Vec<Setting>,
}

#[derive(Debug)]
struct Setting {
    whose: Whose,
    what: What,
    at: &'static Location<'static>,
}

#[derive(Debug)]
enum Whose {
    Pattern(String),
    /// Parameters of fewer than two axes.
    Vectors,
}

#[derive(Debug)]
enum What {
    Optimizer(Box<dyn Optimizer>),
    WeightDecay(f64),
    LrFactor(f64),
    Trained(bool),
}

impl Whose {
    fn has(&self, name: &str, parameter: &TensorType) -> bool {
        match self {
            Whose::Pattern(pattern) => fits(pattern, name),
            Whose::Vectors => parameter.shape.rank() < 2,
        }
    }
}

impl ParamGroups {
    /// All parameters by this optimizer, until something else is said of some.
    pub fn new(optimizer: impl Optimizer + 'static) -> ParamGroups {
        ParamGroups { optimizer: Box::new(optimizer), settings: vec![] }
    }

    /// The parameters that fit the pattern by another optimizer, with its own learning rate and weight decay.
    #[track_caller]
    pub fn group(self, pattern: impl Into<String>, optimizer: impl Optimizer + 'static) -> ParamGroups {
        self.set(Whose::Pattern(pattern.into()), What::Optimizer(Box::new(optimizer)), Location::caller())
    }

    /// Another weight decay for the parameters that fit the pattern.
    #[track_caller]
    pub fn weight_decay(self, pattern: impl Into<String>, weight_decay: f64) -> ParamGroups {
        self.set(Whose::Pattern(pattern.into()), What::WeightDecay(weight_decay), Location::caller())
    }

    /// No weight decay for parameters of fewer than two axes: biases, and the scales of norms.
    #[track_caller]
    pub fn no_decay_on_biases_and_norms(self) -> ParamGroups {
        self.set(Whose::Vectors, What::WeightDecay(0.0), Location::caller())
    }

    /// The learning rate times a factor for the parameters that fit the pattern.
    #[track_caller]
    pub fn lr_factor(self, pattern: impl Into<String>, factor: f64) -> ParamGroups {
        self.set(Whose::Pattern(pattern.into()), What::LrFactor(factor), Location::caller())
    }

    /// Leaves the parameters that fit the pattern as they are: no gradient, no state, no weight decay.
    #[track_caller]
    pub fn freeze(self, pattern: impl Into<String>) -> ParamGroups {
        self.set(Whose::Pattern(pattern.into()), What::Trained(false), Location::caller())
    }

    /// Trains the parameters that fit the pattern although an earlier pattern froze them. One that was frozen by
    /// [`set_requires_grad`](crate::Parameter::set_requires_grad) stays so.
    #[track_caller]
    pub fn unfreeze(self, pattern: impl Into<String>) -> ParamGroups {
        self.set(Whose::Pattern(pattern.into()), What::Trained(true), Location::caller())
    }

    fn set(mut self, whose: Whose, what: What, at: &'static Location<'static>) -> ParamGroups {
        self.settings.push(Setting { whose, what, at });
        self
    }

    /// What is said of a parameter, the latest first.
    fn of(&self, name: &str, parameter: &TensorType) -> impl Iterator<Item = &What> {
        let (name, parameter) = (name.to_owned(), parameter.clone());
        self.settings.iter().rev().filter(move |s| s.whose.has(&name, &parameter)).map(|s| &s.what)
    }

    /// The step as the optimizer of a parameter is told of it.
    fn step(&self, step: &Step, name: &str, parameter: &TensorType) -> Step {
        let said = self.of(name, parameter).fold((None, None), |(factor, decay), what| match what {
            What::LrFactor(new) => (factor.or(Some(*new)), decay),
            What::WeightDecay(new) => (factor, decay.or(Some(*new))),
            What::Optimizer(_) | What::Trained(_) => (factor, decay),
        });
        let step = said.0.map_or_else(|| step.clone(), |factor| step.scaled(factor));
        said.1.map_or(step.clone(), |decay| step.with_weight_decay(decay))
    }

    fn optimizer(&self, name: &str, parameter: &TensorType) -> &dyn Optimizer {
        let own = |what: &What| matches!(what, What::Optimizer(_));
        match self.of(name, parameter).find(|what| own(what)) {
            Some(What::Optimizer(optimizer)) => &**optimizer,
            _ => &*self.optimizer,
        }
    }
}

impl Setting {
    fn check(&self, parameters: &[(String, TensorType)]) -> Result<()> {
        let wrong = |message: String| Err(Error::usage(format!("ParamGroups: {message}"), self.at));
        let number = |what: &str, value: f64| {
            let fits = value.is_finite() && value >= 0.0;
            if fits { Ok(()) } else { wrong(format!("{what} must be finite and at least 0, it is {value}")) }
        };
        if let Whose::Pattern(pattern) = &self.whose
            && let Some(message) = misfit(pattern, parameters.iter().map(|(name, _)| name.as_str()))
        {
            return wrong(message);
        }
        match &self.what {
            What::Optimizer(optimizer) => optimizer.check(parameters),
            What::WeightDecay(value) => number("weight_decay", *value),
            What::LrFactor(value) => number("lr_factor", *value),
            What::Trained(_) => Ok(()),
        }
    }
}

impl Optimizer for ParamGroups {
    fn state(&self, name: &str, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
        self.optimizer(name, parameter).state(name, parameter)
    }

    fn update(
        &self,
        step: &Step,
        name: &str,
        parameter: &Tensor,
        gradient: &Tensor,
        state: &[Tensor],
    ) -> (Tensor, Vec<Tensor>) {
        let ty = &step.parameter_type(parameter.ty());
        self.optimizer(name, ty).update(&self.step(step, name, ty), name, parameter, gradient, state)
    }

    fn updates_stacked(&self, names: &[&str], parameter: &TensorType) -> bool {
        let said = |name: &str| self.settings.iter().map(|s| s.whose.has(name, parameter)).collect::<Vec<_>>();
        let Some((&first, others)) = names.split_first() else { return false };
        let of_first = said(first);
        others.iter().all(|other| said(other) == of_first)
            && self.optimizer(first, parameter).updates_stacked(names, parameter)
    }

    /// A group is what has another optimizer or another learning rate; the patterns that say so are its name.
    fn group_step(&self, step: &Step, name: &str, parameter: &TensorType) -> GroupStep {
        let own = |is: fn(&What) -> bool| {
            let mut settings = self.settings.iter().rev();
            let setting = settings.find(|setting| is(&setting.what) && setting.whose.has(name, parameter));
            setting.and_then(|setting| match &setting.whose {
                Whose::Pattern(pattern) => Some(pattern.clone()),
                Whose::Vectors => None,
            })
        };
        let group = self.optimizer(name, parameter).group_step(&self.step(step, name, parameter), name, parameter);
        let patterns = [
            own(|what| matches!(what, What::Optimizer(_))),
            own(|what| matches!(what, What::LrFactor(_))),
            (!group.name.is_empty()).then_some(group.name),
        ];
        let mut names: Vec<String> = patterns.into_iter().flatten().collect();
        names.dedup();
        GroupStep { name: names.join(" "), ..group }
    }

    fn learning_rate(&self, step: &Step) -> Tensor {
        self.optimizer.learning_rate(step)
    }

    fn trains(&self, name: &str, parameter: &TensorType) -> bool {
        let said = self.of(name, parameter).find_map(|what| if let What::Trained(t) = what { Some(*t) } else { None });
        said.unwrap_or(true) && self.optimizer(name, parameter).trains(name, parameter)
    }

    fn check(&self, parameters: &[(String, TensorType)]) -> Result<()> {
        self.optimizer.check(parameters)?;
        self.settings.iter().try_for_each(|setting| setting.check(parameters))
    }
}
