//! The values of the latest step that callbacks and options log: learning rates by parameter group,
//! and norms of gradients, parameters and updates.

use std::cell::Cell;

use fulmen_nn::optim::{GroupStep, Optimizer, gradient_norm};
use fulmen_tensor::{DType, Tensor, cond};

use super::gradients::{Gradient, Gradients, Param};
use super::update::{OptimizerSteps, updated_values};
use super::values::Values;
use crate::Result;
use crate::logs::{GRAD_NORM, LEARNING_RATE, MonitoredValue};
use crate::rules::accumulation;
use crate::state::Entry;
use crate::step_config::StepConfig;
use crate::step_config::optimizers::Member;
use crate::step_config::step_part::StepPart;

/// A parameter of an optimizer. It has no gradient if it is frozen in this phase.
#[derive(Clone, Copy)]
struct MonitoredParam<'a> {
    param: &'a Param<'a>,
    gradient: Option<&'a Gradient<'a>>,
    /// The index of the row, if this is one row of a joined parameter.
    row: Option<usize>,
}

impl<'a> MonitoredParam<'a> {
    fn entry(self, values: &Values) -> &Entry {
        &values.layout[self.param.slots.param]
    }

    /// The rows of a joined parameter, each as a member.
    fn rows(self, values: &Values) -> impl Iterator<Item = MonitoredParam<'a>> + use<'a> {
        let entry = self.entry(values);
        let rows = if entry.is_joined() {
            (0..entry.names().len()).map(Some).collect()
        } else {
            vec![None]
        };
        rows.into_iter().map(move |row| MonitoredParam { row, ..self })
    }

    /// Selects this member's row of a value of the parameter.
    fn select(self, value: &Tensor) -> Tensor {
        self.row.map_or_else(|| value.clone(), |row| value.index(0, row as isize))
    }

    fn name(self, values: &Values) -> &str {
        &self.entry(values).names()[self.row.unwrap_or_default()]
    }
}

/// The parameters of an optimizer, in order. All phases have the same members, so that they log the
/// same names.
fn members<'a>(gradients: &'a Gradients<'a>) -> Vec<MonitoredParam<'a>> {
    let trained = gradients.params.iter().map(|gradient| MonitoredParam {
        param: &gradient.param,
        gradient: Some(gradient),
        row: None,
    });
    let frozen =
        gradients.frozen.iter().map(|param| MonitoredParam { param, gradient: None, row: None });
    let mut members: Vec<MonitoredParam<'_>> = trained.chain(frozen).collect();
    members.sort_by_key(|member| member.param.slots.param.index());
    members
}

/// The group of a parameter, and the learning rate of the group. Parameters that are unfrozen later
/// are separate groups.
fn group(
    optimizer: &dyn Optimizer,
    steps: &OptimizerSteps,
    values: &Values,
    member: &MonitoredParam<'_>,
) -> GroupStep {
    let slots = member.param.slots;
    let ty = member.entry(values).row_type();
    let mut group = optimizer.group_step(steps.step_of(slots), member.name(values), &ty);
    if let Some(number) = slots.unfreezing {
        let pattern = &values.layout.phases.unfreezings()[number].pattern;
        group.name = format!("{pattern} {}", group.name).trim_end().to_owned();
    }
    if member.gradient.is_none() {
        group.learning_rate = Tensor::scalar(0.0f32);
    }
    group
}

/// The learning rates of a step, as values to log.
pub(super) fn learning_rates(
    optimizer: &dyn Optimizer,
    steps: &OptimizerSteps,
    values: &Values,
    gradients: &Gradients<'_>,
    config: &StepConfig,
) -> Vec<MonitoredValue> {
    let mut monitored = Vec::new();
    for part in &config.parts {
        if let StepPart::LearningRates { momentum } = part {
            let group = |member: &MonitoredParam<'_>| group(optimizer, steps, values, member);
            rates(&members(gradients), group, *momentum, &mut monitored);
        }
    }
    monitored
}

/// The norms of gradients, parameters and updates, as values to log. Called before the optimizer's
/// step is recorded. If `is_log_point` is set, a branch at log points computes the step a first
/// time, only for its norms. The actual step then overwrites the parameters after the branch.
/// Without the branch, each step would need a second copy of the parameters.
pub(super) fn norms(
    member: &Member,
    steps: &OptimizerSteps,
    values: &mut Values,
    gradients: &mut Gradients<'_>,
    config: &StepConfig,
    is_log_point: Option<&Tensor>,
) -> Result<Vec<MonitoredValue>> {
    let part = config.parts.iter().find(|part| matches!(part, StepPart::Norms { .. }));
    let Some(StepPart::Norms { gradients: log_gradients, parameters, updates, group_by }) = part
    else {
        return Ok(Vec::new());
    };
    let mut names = Vec::new();
    let mut compute = || -> Result<Vec<Tensor>> {
        let after = updated_values(member, steps, values, gradients)?.after;
        let members = members(gradients);
        let rows: Vec<MonitoredParam<'_>> =
            members.iter().flat_map(|member| member.rows(values)).collect();
        let groups = groups(&rows, |param| {
            let group = || group(&*member.optimizer, steps, values, param).name;
            group_by.name(param.name(values), group)
        });
        let named = groups.iter().map(|(name, members)| (name.as_str(), members));
        let mut norms = Vec::new();
        for (group, members) in
            std::iter::once(("", &members)).chain(named.filter(|_| groups.len() > 1))
        {
            let mut push = |kind: &str, norm: Tensor| {
                names.push(if group.is_empty() {
                    kind.to_owned()
                } else {
                    format!("{kind}/{group}")
                });
                norms.push(norm.to_dtype(DType::F32));
            };
            let new = |member: &MonitoredParam<'_>| {
                wide(&member.select(&after[member.param.slots.param.index()]))
            };
            let change = |member: &MonitoredParam<'_>| {
                new(member) - wide(&member.select(&member.param.value))
            };
            let trained: Vec<_> =
                members.iter().filter(|member| member.gradient.is_some()).copied().collect();
            // The norm of all gradients may exist already.
            if *log_gradients && !(group.is_empty() && gradients.norm.is_some()) {
                let sums =
                    trained.iter().filter_map(|member| Some(member.select(&member.gradient?.sum)));
                push(GRAD_NORM, gradients.norm_of(&sums.collect::<Vec<_>>()));
            }
            if *parameters {
                push("param_norm", norm(members, new));
            }
            if *updates {
                push("update_norm", norm(&trained, change));
            }
        }
        Ok(norms)
    };
    let norms = match is_log_point {
        None => compute()?,
        Some(is_log_point) => {
            let mut failed = Ok(());
            let count = Cell::new(0);
            let taken = |_: &[Tensor]| {
                let norms = compute().unwrap_or_else(|error| {
                    failed = Err(error);
                    Vec::new()
                });
                count.set(norms.len());
                norms
            };
            let norms = cond(is_log_point, &[] as &[Tensor], taken, |_| {
                vec![Tensor::full(DType::F32, [], 0.0); count.get()]
            });
            failed?;
            if !norms.is_empty() {
                wait_for(&norms, values, gradients);
            }
            norms
        }
    };
    let monitored = |(name, value)| MonitoredValue {
        name,
        value,
        belongs_to_group: true,
        logger: "NormMonitor".into(),
    };
    Ok(names.into_iter().zip(norms).map(monitored).collect())
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

/// Adds the rate of each group, `lr/GROUP`, and its momentum. The rate of parameters without a
/// group is logged as `lr` anyway.
fn rates(
    members: &[MonitoredParam<'_>],
    group: impl Fn(&MonitoredParam<'_>) -> GroupStep,
    momentum: bool,
    monitored: &mut Vec<MonitoredValue>,
) {
    for (name, members) in groups(members, |member| group(member).name) {
        let Some(group) = members.first().map(&group) else { continue };
        let suffix = if name.is_empty() { String::new() } else { format!("/{name}") };
        let mut push = |kind: &str, value: Tensor| {
            let name = format!("{kind}{suffix}");
            monitored.push(MonitoredValue {
                name,
                value,
                belongs_to_group: false,
                logger: "LearningRateMonitor".into(),
            });
        };
        if !suffix.is_empty() {
            push(LEARNING_RATE, group.learning_rate);
        }
        if let Some(value) = group.momentum.filter(|_| momentum) {
            push("momentum", value);
        }
    }
}

/// Groups the parameters by the names of their groups, in the order in which the groups first
/// appear.
fn groups<'a>(
    members: &[MonitoredParam<'a>],
    name: impl Fn(&MonitoredParam<'a>) -> String,
) -> Vec<(String, Vec<MonitoredParam<'a>>)> {
    let mut groups: Vec<(String, Vec<MonitoredParam<'_>>)> = Vec::new();
    for member in members {
        let name = name(member);
        match groups.iter_mut().find(|group| group.0 == name) {
            Some(group) => group.1.push(*member),
            None => groups.push((name, vec![*member])),
        }
    }
    groups
}

/// A value in the dtype of sums.
fn wide(value: &Tensor) -> Tensor {
    value.to_dtype(accumulation::dtype(value.dtype()))
}

fn norm(members: &[MonitoredParam<'_>], value: impl Fn(&MonitoredParam<'_>) -> Tensor) -> Tensor {
    let values: Vec<Tensor> = members.iter().map(value).collect();
    gradient_norm(&values)
}
