//! [`ChainStep`]: the step of the rules around an optimizer.

use fulmen_nn::optim::{GradientTransformation, ParameterUpdate, Step, Updates};
use fulmen_tensor::Tensor;

use super::gradients::{Gradient, Gradients};
use super::values::Values;
use crate::logs::MonitoredValue;
use crate::rules::step_rule::check_type;
use crate::step_config::optimizers::Member;
use crate::{Error, Result};

/// The rules around an optimizer with their state, while a step is recorded.
pub(super) struct ChainStep<'a> {
    member: &'a Member,
    /// The optimizer's step.
    step: &'a Step,
    /// The parameters, in the order of the gradients.
    params: Vec<ChainParam>,
    /// The state of each rule itself.
    pub(super) state: Vec<Vec<Tensor>>,
    /// The values that the rules log.
    pub(super) logged: Vec<MonitoredValue>,
}

/// A parameter of the chain.
struct ChainParam {
    name: String,
    value: Tensor,
    /// The state of each rule for the parameter.
    state: Vec<Vec<Tensor>>,
}

impl<'a> ChainStep<'a> {
    pub(super) fn new(
        member: &'a Member,
        step: &'a Step,
        values: &Values,
        gradients: &Gradients<'_>,
    ) -> ChainStep<'a> {
        let read = |slots: &Vec<_>| slots.iter().map(|&id| values.after(id).clone()).collect();
        let param = |gradient: &Gradient<'_>| ChainParam {
            name: values.layout[gradient.param.slots.param].names()[0].clone(),
            value: gradient.param.value.clone(),
            state: gradient.param.slots.rules.iter().map(read).collect(),
        };
        ChainStep {
            member,
            step,
            params: gradients.params.iter().map(param).collect(),
            state: gradients.slots.rules.iter().map(read).collect(),
            logged: Vec::new(),
        }
    }

    pub(super) fn has_rules(&self) -> bool {
        !self.member.rules.is_empty()
    }

    pub(super) fn has_rules_before(&self) -> bool {
        !self.member.rules.before.is_empty()
    }

    pub(super) fn has_rules_after(&self) -> bool {
        !self.member.rules.after.is_empty()
    }

    /// The gradients for the optimizer.
    pub(super) fn before_optimizer(&mut self, gradients: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let rules = &self.member.rules.before;
        let mut updates = gradients;
        for (index, rule) in rules.iter().enumerate() {
            updates = self.apply(index, &**rule, updates)?;
        }
        Ok(updates)
    }

    /// The new values of the parameters, from those of the optimizer.
    pub(super) fn after_optimizer(&mut self, new: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let rules = &self.member.rules;
        let old: Vec<Tensor> = self
            .params
            .iter()
            .zip(&new)
            .map(|(param, new)| param.value.to_dtype(new.dtype()))
            .collect();
        let changes: Vec<Tensor> = new.iter().zip(&old).map(|(new, old)| new - old).collect();
        let mut updates = changes.clone();
        for (index, rule) in rules.after.iter().enumerate() {
            updates = self.apply(rules.before.len() + index, &**rule, updates)?;
        }
        let mut values = Vec::with_capacity(new.len());
        for (index, update) in updates.into_iter().enumerate() {
            // A change that no rule touched is not rounded once more.
            let is_same = update.is(&changes[index]);
            values.push(if is_same { new[index].clone() } else { &old[index] + &update });
        }
        Ok(values)
    }

    /// The state of all rules for a parameter, in the order of its slots.
    pub(super) fn state_of(&self, param: usize) -> impl Iterator<Item = &Tensor> {
        self.params[param].state.iter().flatten()
    }

    /// Calls a rule, and keeps its new state.
    fn apply(
        &mut self,
        index: usize,
        rule: &dyn GradientTransformation,
        updates: Vec<Tensor>,
    ) -> Result<Vec<Tensor>> {
        let parameters = self
            .params
            .iter()
            .zip(&updates)
            .map(|(param, update)| ParameterUpdate {
                name: param.name.clone(),
                parameter: param.value.clone(),
                update: update.clone(),
                state: param.state[index].clone(),
            })
            .collect();
        let mut changed = Updates::new(parameters, self.state[index].clone());
        rule.update(self.step, &mut changed);
        self.check(index, rule, &updates, &changed)?;
        for (name, value) in changed.logged() {
            let name = name.clone();
            self.logged.push(MonitoredValue::of_rule(rule.name(), name, value, true, false)?);
        }
        self.state[index] = changed.state;
        let mut next = Vec::with_capacity(updates.len());
        for (param, parameter) in self.params.iter_mut().zip(changed.parameters) {
            param.state[index] = parameter.state;
            next.push(parameter.update);
        }
        Ok(next)
    }

    /// Checks that a rule kept the parameters, and the types of updates and state.
    fn check(
        &self,
        index: usize,
        rule: &dyn GradientTransformation,
        before: &[Tensor],
        after: &Updates,
    ) -> Result<()> {
        let names = after.parameters.iter().map(|parameter| &parameter.name);
        if !names.eq(self.params.iter().map(|param| &param.name)) {
            return Err(wrong(
                rule,
                "it changed the list of parameters; change only their updates and states",
            ));
        }
        check_state(rule, "of its own", &self.state[index], &after.state)?;
        for ((param, update), parameter) in self.params.iter().zip(before).zip(&after.parameters) {
            let name = &param.name;
            check_type(rule.name(), &format!("the update of `{name}`"), update, &parameter.update)?;
            check_state(rule, &format!("for `{name}`"), &param.state[index], &parameter.state)?;
        }
        Ok(())
    }
}

/// Checks that a rule returned all tensors of a state, with their types.
fn check_state(
    rule: &dyn GradientTransformation,
    which: &str,
    before: &[Tensor],
    after: &[Tensor],
) -> Result<()> {
    if before.len() != after.len() {
        return Err(wrong(
            rule,
            format!(
                "it has {} tensors of state {which}, but its update() left {}",
                before.len(),
                after.len()
            ),
        ));
    }
    let mut pairs = before.iter().zip(after);
    pairs.try_for_each(|(before, after)| {
        check_type(rule.name(), &format!("its state {which}"), before, after)
    })
}

fn wrong(rule: &dyn GradientTransformation, message: impl std::fmt::Display) -> Error {
    Error::usage(format!("the rule `{}`: {message}", rule.name()))
}
