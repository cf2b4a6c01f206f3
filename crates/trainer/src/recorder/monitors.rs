//! Numbers of the latest step that callbacks and options have it log: rates by group of parameters, and lengths of gradients,
//! parameters and updates.

use fulmen_nn::optim::{Optimizer, Step};
use fulmen_tensor::{DType, Tensor};

use super::gradients::{Gradient, Gradients};
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

/// What is logged of a step that the optimizer has made; `values` are those after it.
pub(super) fn monitored(
    optimizer: &dyn Optimizer,
    step: &Step,
    values: &Values,
    gradients: &Gradients<'_>,
    setting: &Setting,
) -> Vec<Monitored> {
    let mut all = vec![];
    for part in &setting.parts {
        match part {
            StepPart::LearningRates { momentum } => rates(optimizer, step, values, gradients, *momentum, &mut all),
            StepPart::Norms { gradients: of_gradients, parameters, updates, by } => {
                let groups = groups(gradients, |gradient| {
                    let entry = &values.layout[gradient.param.slots.param];
                    by.name(&entry.name, || optimizer.group_step(step, &entry.name, &entry.ty).name)
                });
                let whole = || ("", gradients.of.iter().collect::<Vec<_>>());
                let named = groups.iter().map(|(name, members)| (name.as_str(), members.clone()));
                let groups = std::iter::once(whole()).chain(named.filter(|_| groups.len() > 1));
                for (group, members) in groups {
                    let mut push = |kind: &str, norm: Tensor| {
                        let name = if group.is_empty() { kind.to_owned() } else { format!("{kind}/{group}") };
                        all.push(Monitored { name, value: norm, of_group: true, asked_by: "NormMonitor" });
                    };
                    let after = |gradient: &Gradient<'_>| values.after(gradient.param.slots.param).clone();
                    let change = |gradient: &Gradient<'_>| {
                        let before = gradient.param.value.to_dtype(DType::F32);
                        after(gradient).to_dtype(DType::F32) - before
                    };
                    // That of all is logged anyway.
                    if *of_gradients && !group.is_empty() {
                        push(GRAD_NORM, gradients.norm_of(members.iter().copied()));
                    }
                    if *parameters {
                        push("param_norm", norm(&members, after));
                    }
                    if *updates {
                        push("update_norm", norm(&members, change));
                    }
                }
            }
            StepPart::SpikeGuard { .. } | StepPart::Sweep { .. } => {}
        }
    }
    all
}

/// The rate of each group, `lr/GROUP`, and its momentum. That of the parameters without a group is logged as `lr` already.
fn rates(
    optimizer: &dyn Optimizer,
    step: &Step,
    values: &Values,
    gradients: &Gradients<'_>,
    momentum: bool,
    all: &mut Vec<Monitored>,
) {
    let group = |gradient: &Gradient<'_>| {
        let entry = &values.layout[gradient.param.slots.param];
        optimizer.group_step(step, &entry.name, &entry.ty)
    };
    for (name, members) in groups(gradients, |gradient| group(gradient).name) {
        let Some(group) = members.first().map(|gradient| group(gradient)) else { continue };
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
fn groups<'a, 'b>(
    gradients: &'a Gradients<'b>,
    name: impl Fn(&Gradient<'b>) -> String,
) -> Vec<(String, Vec<&'a Gradient<'b>>)> {
    let mut groups: Vec<(String, Vec<&Gradient<'_>>)> = vec![];
    for gradient in &gradients.of {
        let name = name(gradient);
        match groups.iter_mut().find(|group| group.0 == name) {
            Some(group) => group.1.push(gradient),
            None => groups.push((name, vec![gradient])),
        }
    }
    groups
}

fn norm(members: &[&Gradient<'_>], value: impl Fn(&Gradient<'_>) -> Tensor) -> Tensor {
    let values: Vec<Tensor> = members.iter().map(|gradient| value(gradient)).collect();
    clip::norm(values.iter())
}
