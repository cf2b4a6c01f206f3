//! [`ParamGroups`]: a different optimizer, weight decay or learning rate for some parameters, or
//! frozen parameters.

use std::panic::Location;
use std::ptr;

use fulmen_tensor::{Tensor, TensorType};

use super::pattern::{check_pattern, matches_pattern};
use super::{GroupStep, Optimizer, Step};
use crate::{Error, Result};

/// PyTorch's parameter groups: an optimizer that treats the parameters that match a pattern
/// differently. Patterns match dotted names.
///
/// In a pattern, `*` matches any text, including dots, and `?` matches one character; the pattern
/// must match the whole name. If two settings of the same kind match a parameter, the later one
/// applies. A pattern that matches no parameter is an error, reported before training begins.
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
/// assert!(message.contains("`head.*` matches no parameter; the nearest are `haed.weight`"), "{message}");
/// ```
#[derive(Debug)]
#[must_use]
pub struct ParamGroups {
    /// For parameters that no group gives a different optimizer.
    optimizer: Box<dyn Optimizer>,
    settings: Vec<Setting>,
}

#[derive(Debug)]
struct Setting {
    selector: Selector,
    change: Change,
    location: &'static Location<'static>,
}

#[derive(Debug)]
enum Selector {
    Pattern(String),
    /// Parameters of two axes whose names match a pattern.
    Matrices(String),
    /// Parameters of fewer than two axes.
    Vectors,
}

#[derive(Debug)]
enum Change {
    Optimizer(Box<dyn Optimizer>),
    WeightDecay(f64),
    LrFactor(f64),
    Trained(bool),
}

impl Selector {
    fn pattern(&self) -> Option<&str> {
        match self {
            Selector::Pattern(pattern) | Selector::Matrices(pattern) => Some(pattern),
            Selector::Vectors => None,
        }
    }

    fn selects(&self, name: &str, parameter: &TensorType) -> bool {
        match self {
            Selector::Pattern(pattern) => matches_pattern(pattern, name),
            Selector::Matrices(pattern) => {
                parameter.shape.rank() == 2 && matches_pattern(pattern, name)
            }
            Selector::Vectors => parameter.shape.rank() < 2,
        }
    }
}

impl ParamGroups {
    /// Uses this optimizer for all parameters that no group changes.
    pub fn new(optimizer: impl Optimizer + 'static) -> ParamGroups {
        ParamGroups { optimizer: Box::new(optimizer), settings: Vec::new() }
    }

    /// Uses a different optimizer, with its own learning rate and weight decay, for the parameters
    /// that match the pattern.
    #[track_caller]
    pub fn group(
        self,
        pattern: impl Into<String>,
        optimizer: impl Optimizer + 'static,
    ) -> ParamGroups {
        self.set(
            Selector::Pattern(pattern.into()),
            Change::Optimizer(Box::new(optimizer)),
            Location::caller(),
        )
    }

    /// Like [`ParamGroups::group`], but only for parameters with two axes, which [`Muon`] needs. The
    /// others that match the pattern, such as biases, keep their optimizer.
    ///
    /// ```
    /// use fulmen_nn::optim::{AdamW, Muon, ParamGroups};
    /// let optimizer = ParamGroups::new(AdamW::new(3e-4)).matrices("layers.*", Muon::new(0.02));
    /// ```
    ///
    /// [`Muon`]: super::Muon
    #[track_caller]
    pub fn matrices(
        self,
        pattern: impl Into<String>,
        optimizer: impl Optimizer + 'static,
    ) -> ParamGroups {
        self.set(
            Selector::Matrices(pattern.into()),
            Change::Optimizer(Box::new(optimizer)),
            Location::caller(),
        )
    }

    /// Sets the weight decay of the parameters that match the pattern.
    #[track_caller]
    pub fn weight_decay(self, pattern: impl Into<String>, weight_decay: f64) -> ParamGroups {
        self.set(
            Selector::Pattern(pattern.into()),
            Change::WeightDecay(weight_decay),
            Location::caller(),
        )
    }

    /// Disables weight decay for parameters with fewer than two axes: biases, and the scales of
    /// norms.
    #[track_caller]
    pub fn no_decay_on_biases_and_norms(self) -> ParamGroups {
        self.set(Selector::Vectors, Change::WeightDecay(0.0), Location::caller())
    }

    /// Multiplies the learning rate of the parameters that match the pattern.
    #[track_caller]
    pub fn lr_factor(self, pattern: impl Into<String>, factor: f64) -> ParamGroups {
        self.set(Selector::Pattern(pattern.into()), Change::LrFactor(factor), Location::caller())
    }

    /// Freezes the parameters that match the pattern: no gradient, no state, no weight decay.
    #[track_caller]
    pub fn freeze(self, pattern: impl Into<String>) -> ParamGroups {
        self.set(Selector::Pattern(pattern.into()), Change::Trained(false), Location::caller())
    }

    /// Trains the parameters that match the pattern, although an earlier pattern froze them.
    /// Parameters frozen by [`set_requires_grad`](crate::Parameter::set_requires_grad) stay frozen.
    #[track_caller]
    pub fn unfreeze(self, pattern: impl Into<String>) -> ParamGroups {
        self.set(Selector::Pattern(pattern.into()), Change::Trained(true), Location::caller())
    }

    fn set(
        mut self,
        selector: Selector,
        change: Change,
        location: &'static Location<'static>,
    ) -> ParamGroups {
        self.settings.push(Setting { selector, change, location });
        self
    }

    /// The changes that apply to a parameter, the latest first.
    fn changes(&self, name: &str, parameter: &TensorType) -> impl Iterator<Item = &Change> {
        let name = name.to_owned();
        let parameter = parameter.clone();
        self.settings
            .iter()
            .rev()
            .filter(move |s| s.selector.selects(&name, &parameter))
            .map(|s| &s.change)
    }

    /// The step for a parameter's optimizer, with the changes of its groups.
    fn step(&self, step: &Step, name: &str, parameter: &TensorType) -> Step {
        let (factor, decay) = self.changes(name, parameter).fold(
            (None, None),
            |(factor, decay), change| match change {
                Change::LrFactor(new) => (factor.or(Some(*new)), decay),
                Change::WeightDecay(new) => (factor, decay.or(Some(*new))),
                Change::Optimizer(_) | Change::Trained(_) => (factor, decay),
            },
        );
        let step = factor.map_or_else(|| step.clone(), |factor| step.scaled(factor));
        decay.map_or(step.clone(), |decay| step.with_weight_decay(decay))
    }

    fn optimizer(&self, name: &str, parameter: &TensorType) -> &dyn Optimizer {
        let is_optimizer = |change: &Change| matches!(change, Change::Optimizer(_));
        match self.changes(name, parameter).find(|change| is_optimizer(change)) {
            Some(Change::Optimizer(optimizer)) => &**optimizer,
            _ => &*self.optimizer,
        }
    }
}

impl Setting {
    /// Checks everything but a group's optimizer.
    fn check(&self, parameters: &[(String, TensorType)]) -> Result<()> {
        let wrong = |message: String| {
            Err(Error::usage_at(format!("ParamGroups: {message}"), self.location))
        };
        let number = |name: &str, value: f64| {
            let is_valid = value.is_finite() && value >= 0.0;
            if is_valid {
                Ok(())
            } else {
                wrong(format!("{name} must be finite and at least 0, but it is {value}"))
            }
        };
        if let Some(pattern) = self.selector.pattern() {
            let names = parameters.iter().map(|(name, _)| name.as_str());
            if let Some(message) = check_pattern(pattern, names) {
                return wrong(message);
            }
            if !parameters.iter().any(|(name, ty)| self.selector.selects(name, ty)) {
                return wrong(format!("no parameter that `{pattern}` matches has two axes"));
            }
        }
        match &self.change {
            Change::Optimizer(_) | Change::Trained(_) => Ok(()),
            Change::WeightDecay(value) => number("weight_decay", *value),
            Change::LrFactor(value) => number("lr_factor", *value),
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
        self.optimizer(name, ty).update(
            &self.step(step, name, ty),
            name,
            parameter,
            gradient,
            state,
        )
    }

    fn updates_stacked(&self, names: &[&str], parameter: &TensorType) -> bool {
        let matching = |name: &str| {
            self.settings.iter().map(|s| s.selector.selects(name, parameter)).collect::<Vec<_>>()
        };
        let Some((&first, others)) = names.split_first() else { return false };
        let first_matches = matching(first);
        others.iter().all(|other| matching(other) == first_matches)
            && self.optimizer(first, parameter).updates_stacked(names, parameter)
    }

    fn draws(&self, name: &str, parameter: &TensorType) -> bool {
        self.optimizer(name, parameter).draws(name, parameter)
    }

    fn refuses_rows(&self, step: &Step, name: &str, parameter: &TensorType) -> Option<String> {
        let step = self.step(step, name, parameter);
        self.optimizer(name, parameter).refuses_rows(&step, name, parameter)
    }

    /// A group has its own optimizer or learning rate. It is named after the patterns that set
    /// them.
    fn group_step(&self, step: &Step, name: &str, parameter: &TensorType) -> GroupStep {
        let pattern_of = |is: fn(&Change) -> bool| {
            let mut settings = self.settings.iter().rev();
            let setting = settings
                .find(|setting| is(&setting.change) && setting.selector.selects(name, parameter));
            setting.and_then(|setting| setting.selector.pattern()).map(str::to_owned)
        };
        let group = self.optimizer(name, parameter).group_step(
            &self.step(step, name, parameter),
            name,
            parameter,
        );
        let patterns = [
            pattern_of(|change| matches!(change, Change::Optimizer(_))),
            pattern_of(|change| matches!(change, Change::LrFactor(_))),
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
        let trains = self
            .changes(name, parameter)
            .find_map(|change| if let Change::Trained(t) = change { Some(*t) } else { None });
        trains.unwrap_or(true) && self.optimizer(name, parameter).trains(name, parameter)
    }

    fn check(&self, parameters: &[(String, TensorType)]) -> Result<()> {
        self.settings.iter().try_for_each(|setting| setting.check(parameters))?;
        let of_groups = self.settings.iter().filter_map(|setting| match &setting.change {
            Change::Optimizer(optimizer) => Some(optimizer),
            _ => None,
        });
        std::iter::once(&self.optimizer).chain(of_groups).try_for_each(|optimizer| {
            let is_own = |(name, ty): &&(String, TensorType)| {
                self.trains(name, ty) && ptr::addr_eq(self.optimizer(name, ty), &**optimizer)
            };
            let own: Vec<_> = parameters.iter().filter(is_own).cloned().collect();
            optimizer.check(&own)
        })
    }
}
