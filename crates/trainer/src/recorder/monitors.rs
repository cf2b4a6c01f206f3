//! Numbers of the latest step that callbacks and options have it log: rates by group of parameters, and lengths of gradients,
//! parameters and updates.

use fulmen_nn::optim::{GroupStep, Optimizer};
use fulmen_tensor::{DType, Tensor};

use super::gradients::{Gradient, Gradients, Param};
use super::update::Steps;
use super::values::Values;
use crate::logs::{GRAD_NORM, LEARNING_RATE, Monitored};
use crate::rules::clip;
use crate::setting::Setting;
use crate::setting::step_part::{StepPart, SweepMode};

/// The rate of the step after `finished` ones where rates are tried out instead of the optimizer's.
pub(super) fn swept(setting: &Setting, finished: &Tensor) -> Option<Tensor> {
    setting.parts.iter().find_map(|part| match *part {
        StepPart::Sweep { min, max, steps, mode } => {
            let share = finished.to_dtype(DType::F32) / steps.saturating_sub(1).max(1) as f64;
            Some(match mode {
                SweepMode::Exponential => (share * (max / min).ln()).exp() * min,
                SweepMode::Linear => share * (max - min) + min,
            })
        }
        _ => None,
    })
}

/// A parameter of an optimizer; without a gradient where it is frozen in this phase.
#[derive(Clone, Copy)]
struct Member<'a> {
    param: &'a Param<'a>,
    gradient: Option<&'a Gradient<'a>>,
}

/// The parameters of an optimizer, in order: the same in all phases, which log the same.
fn members<'a>(gradients: &'a Gradients<'a>) -> Vec<Member<'a>> {
    let trained = gradients.of.iter().map(|gradient| Member { param: &gradient.param, gradient: Some(gradient) });
    let frozen = gradients.frozen.iter().map(|param| Member { param, gradient: None });
    let mut members: Vec<Member<'_>> = trained.chain(frozen).collect();
    members.sort_by_key(|member| member.param.slots.param.index());
    members
}

/// The group of a parameter and its rate. Parameters that are unfrozen later are a group.
fn group(optimizer: &dyn Optimizer, steps: &Steps, values: &Values, member: &Member<'_>) -> GroupStep {
    let slots = member.param.slots;
    let entry = &values.layout[slots.param];
    let mut group = optimizer.group_step(steps.of(slots), &entry.name, &entry.ty);
    if let Some(number) = slots.unfreezing {
        let pattern = &values.layout.phases.unfreezings()[number].pattern;
        group.name = format!("{pattern} {}", group.name).trim_end().to_owned();
    }
    if member.gradient.is_none() {
        group.learning_rate = Tensor::scalar(0.0f32);
    }
    group
}

/// What is logged of a step that the optimizer has made; `values` are those after it.
pub(super) fn monitored(
    optimizer: &dyn Optimizer,
    steps: &Steps,
    values: &Values,
    gradients: &Gradients<'_>,
    setting: &Setting,
) -> Vec<Monitored> {
    let mut all = vec![];
    let members = members(gradients);
    let group = |member: &Member<'_>| group(optimizer, steps, values, member);
    for part in &setting.parts {
        match part {
            StepPart::LearningRates { momentum } => rates(&members, group, *momentum, &mut all),
            StepPart::Norms { gradients: of_gradients, parameters, updates, by } => {
                let groups = groups(&members, |member| {
                    by.name(&values.layout[member.param.slots.param].name, || group(member).name)
                });
                let named = groups.iter().map(|(name, members)| (name.as_str(), members.clone()));
                let groups = std::iter::once(("", members.clone())).chain(named.filter(|_| groups.len() > 1));
                for (group, members) in groups {
                    let mut push = |kind: &str, norm: Tensor| {
                        let name = if group.is_empty() { kind.to_owned() } else { format!("{kind}/{group}") };
                        all.push(Monitored { name, value: norm, of_group: true, asked_by: "NormMonitor" });
                    };
                    let after = |member: &Member<'_>| values.after(member.param.slots.param).clone();
                    let trained: Vec<Member<'_>> =
                        members.iter().filter(|member| member.gradient.is_some()).copied().collect();
                    let change = |member: &Member<'_>| {
                        let before = member.param.value.to_dtype(DType::F32);
                        after(member).to_dtype(DType::F32) - before
                    };
                    // That of all is logged anyway.
                    if *of_gradients && !group.is_empty() {
                        push(GRAD_NORM, gradients.norm_of(trained.iter().filter_map(|member| member.gradient)));
                    }
                    if *parameters {
                        push("param_norm", norm(&members, after));
                    }
                    if *updates {
                        push("update_norm", norm(&trained, change));
                    }
                }
            }
            StepPart::SpikeGuard { .. }
            | StepPart::Sweep { .. }
            | StepPart::Accumulation { .. }
            | StepPart::Unfreeze { .. } => {}
        }
    }
    all
}

/// The rate of each group, `lr/GROUP`, and its momentum. That of the parameters without a group is logged as `lr` already.
fn rates(members: &[Member<'_>], group: impl Fn(&Member<'_>) -> GroupStep, momentum: bool, all: &mut Vec<Monitored>) {
    for (name, members) in groups(members, |member| group(member).name) {
        let Some(group) = members.first().map(&group) else { continue };
        let suffix = if name.is_empty() { String::new() } else { format!("/{name}") };
        let mut push = |kind: &str, value: Tensor| {
            let name = format!("{kind}{suffix}");
            all.push(Monitored { name, value, of_group: false, asked_by: "LearningRateMonitor" });
        };
        if !suffix.is_empty() {
            push(LEARNING_RATE, group.learning_rate);
        }
        if let Some(value) = group.momentum.filter(|_| momentum) {
            push("momentum", value);
        }
    }
}

/// The parameters by the names of their groups, in the order in which groups first appear.
fn groups<'a>(members: &[Member<'a>], name: impl Fn(&Member<'a>) -> String) -> Vec<(String, Vec<Member<'a>>)> {
    let mut groups: Vec<(String, Vec<Member<'_>>)> = vec![];
    for member in members {
        let name = name(member);
        match groups.iter_mut().find(|group| group.0 == name) {
            Some(group) => group.1.push(*member),
            None => groups.push((name, vec![*member])),
        }
    }
    groups
}

fn norm(members: &[Member<'_>], value: impl Fn(&Member<'_>) -> Tensor) -> Tensor {
    let values: Vec<Tensor> = members.iter().map(value).collect();
    clip::norm(values.iter())
}
