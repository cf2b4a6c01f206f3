//! The values that rules log of a step: those of its log point, and those of each step.

use fulmen_nn::optim::GroupStep;
use fulmen_tensor::{DType, Tensor, cond};

use super::gradients::{Gradient, Gradients, Param};
use super::update::{OptimizerSteps, updated_values};
use super::values::Values;
use crate::Result;
use crate::logs::MonitoredValue;
use crate::rules::step_rule::{UpdatedParameter, UpdatedStep, logged_value};
use crate::state::Entry;
use crate::step_config::StepConfig;
use crate::step_config::optimizers::Member;

/// An optimizer's step while it is recorded.
#[derive(Clone, Copy)]
pub(super) struct RecordedUpdate<'a> {
    pub(super) member: &'a Member,
    pub(super) steps: &'a OptimizerSteps,
}

impl RecordedUpdate<'_> {
    /// The step for rules, with the values of the state after it. All phases have the same
    /// parameters, so that they log the same names.
    fn step(self, values: &Values, gradients: &Gradients<'_>, after: &[Tensor]) -> UpdatedStep {
        let trained = gradients.params.iter().map(|gradient| (&gradient.param, Some(gradient)));
        let frozen = gradients.frozen.iter().map(|param| (param, None));
        let mut members: Vec<_> = trained.chain(frozen).collect();
        members.sort_by_key(|(param, _)| param.slots.param.index());
        let mut parameters = Vec::new();
        let mut stored = Vec::new();
        for (param, gradient) in members {
            let entry = &values.layout[param.slots.param];
            // One of the rows of a joined entry, or the whole entry.
            let parameter = |row: Option<usize>| {
                let select = |value: &Tensor| {
                    row.map_or_else(|| value.clone(), |row| value.index(0, row as isize))
                };
                let name = &entry.names()[row.unwrap_or_default()];
                UpdatedParameter {
                    name: name.clone(),
                    group: self.group(param, entry, name, gradient.is_some(), values),
                    before: select(&param.value),
                    after: select(&after[param.slots.param.index()]),
                    gradient: gradient.map(|gradient| select(&gradient.sum)),
                }
            };
            stored.push(parameter(None));
            if entry.is_joined() {
                parameters.extend((0..entry.names().len()).map(|row| parameter(Some(row))));
            } else {
                parameters.extend(stored.last().cloned());
            }
        }
        UpdatedStep {
            parameters,
            stored,
            grad_norm: gradients.norm.clone(),
            weight: gradients.weight.clone(),
        }
    }

    /// The group of a parameter with this name. Parameters that are trained later are separate
    /// groups.
    fn group(
        self,
        param: &Param<'_>,
        entry: &Entry,
        name: &str,
        is_trained: bool,
        values: &Values,
    ) -> GroupStep {
        let step = self.steps.step_of(param.slots);
        let optimizer = &self.member.optimizer;
        let mut group = optimizer.group_step(step, name, &entry.row_type());
        if let Some(number) = param.slots.frozen_part {
            let pattern = &values.layout.phases.frozen_parts()[number].pattern;
            group.name = format!("{pattern} {}", group.name).trim_end().to_owned();
        }
        if !is_trained {
            group.learning_rate = Tensor::scalar(0.0f32);
        }
        group
    }

    /// The values that rules log of each step.
    pub(super) fn logged(
        self,
        values: &Values,
        gradients: &Gradients<'_>,
        config: &StepConfig,
    ) -> Result<Vec<MonitoredValue>> {
        if config.rules.is_empty() {
            return Ok(Vec::new());
        }
        let step = self.step(values, gradients, values.all_after());
        let mut logged = Vec::new();
        for (rule, slots) in config.rules.iter().zip(&gradients.slots.step_rules) {
            let state: Vec<Tensor> = slots.iter().map(|&id| values.after(id).clone()).collect();
            for (name, value) in rule.logged(&step, &state) {
                let in_epochs = rule.logs_in_epochs(&name);
                let rule = rule.name();
                logged.push(MonitoredValue::of_rule(rule, name, &value, false, in_epochs)?);
            }
        }
        Ok(logged)
    }

    /// The values that rules log of the step of a log point. Called before the optimizer's step is
    /// recorded. If `is_log_point` is set, a branch at log points computes the step a first time,
    /// only for these values. The actual step then overwrites the parameters after the branch.
    /// Without the branch, each step would need a second copy of the parameters.
    pub(super) fn observed(
        self,
        values: &mut Values,
        gradients: &mut Gradients<'_>,
        config: &StepConfig,
        is_log_point: Option<&Tensor>,
    ) -> Result<Vec<MonitoredValue>> {
        let rules: Vec<_> = config.rules.iter().filter(|rule| rule.inputs().update).collect();
        if rules.is_empty() {
            return Ok(Vec::new());
        }
        let compute = || -> Result<Vec<MonitoredValue>> {
            let after = updated_values(self.member, self.steps, values, gradients)?.after;
            let step = self.step(values, gradients, &after);
            let mut observed = Vec::new();
            for rule in &rules {
                for (name, value) in rule.observed(&step) {
                    let in_epochs = rule.logs_in_epochs(&name);
                    let rule = rule.name();
                    observed.push(MonitoredValue::of_rule(rule, name, &value, true, in_epochs)?);
                }
            }
            Ok(observed)
        };
        let Some(is_log_point) = is_log_point else { return compute() };
        let mut observed = Ok(Vec::new());
        let taken = || {
            observed = compute();
            let observed = observed.as_ref().map_or(&[][..], Vec::as_slice);
            observed.iter().map(|observed| observed.value.clone()).collect()
        };
        let results = cond_or_zeros(is_log_point, taken);
        let mut observed = observed?;
        if !results.is_empty() {
            wait_for(&results, values, gradients);
        }
        for (observed, value) in observed.iter_mut().zip(results) {
            observed.value = value;
        }
        Ok(observed)
    }
}

/// The f32 scalars that a branch computes, or zeros if it is not taken.
fn cond_or_zeros(condition: &Tensor, taken: impl FnOnce() -> Vec<Tensor>) -> Vec<Tensor> {
    let count = std::cell::Cell::new(0);
    let taken = |()| {
        let results = taken();
        count.set(results.len());
        results
    };
    cond(condition, (), taken, |()| vec![Tensor::full(DType::F32, [], 0.0); count.get()])
}

impl MonitoredValue {
    /// A value that a rule logs.
    ///
    /// # Errors
    /// It is not a number that can be logged.
    pub(super) fn of_rule(
        rule: &str,
        name: String,
        value: &Tensor,
        belongs_to_step: bool,
        in_epochs: bool,
    ) -> Result<MonitoredValue> {
        // The steps that don't compute these have zeros of f32.
        let value = logged_value(rule, &name, value, !belongs_to_step)?;
        let logger = format!("the rule `{rule}`");
        Ok(MonitoredValue { name, value, belongs_to_step, in_epochs, logger })
    }
}

/// Makes the optimizer's step read the entries that it changes only after these values are
/// computed.
fn wait_for(first: &[Tensor], values: &mut Values, gradients: &mut Gradients<'_>) {
    let slots = |gradient: &Gradient<'_>| {
        let slots = gradient.param.slots;
        slots.slots.iter().copied().chain(slots.rule_state()).collect::<Vec<_>>()
    };
    let state = gradients.params.iter().flat_map(slots).map(|slot| values.after(slot));
    let inputs: Vec<&Tensor> = gradients
        .params
        .iter()
        .map(|gradient| &gradient.param.value)
        .chain(state)
        .chain(first)
        .collect();
    let mut later = Tensor::optimization_barrier(&inputs).into_iter();
    for (gradient, value) in gradients.params.iter_mut().zip(&mut later) {
        gradient.param.value = value;
    }
    for (slot, value) in gradients.params.iter().flat_map(slots).zip(later) {
        values.set(slot, value);
    }
}
