//! The derivative of a scan: a scan in the other direction.
//!
//! The carry of the backward scan is the cotangent of the forward carry, and one sum for each
//! captured tensor. A backward step reads values of the forward step from the forward xs and ys.
//! Any other value becomes one more y of the forward scan, a *residual*. Residuals are only ever
//! added to a step. Of two scans with one step, the scan with more residuals therefore has all
//! results of the other. [`Graph`] keeps only that scan, so the forward pass runs once.

use std::collections::HashMap;
use std::sync::PoisonError;

use super::marked_indices::find;
use super::scan::{Loop, Step};
use super::{DerivativeKey, no_derivative};
use crate::autocast::wide;
use crate::grad::vjp;
use crate::gradient_flow::active_in_loop;
use crate::graph::{Calls, Constants, Graph, Value, dependents, replay, value_id};
use crate::index_checks::IndexCheck;
use crate::operation::{RecomputePolicy, Vjp};
use crate::region::closing::frontier;
use crate::region::{Region, parameters};
use crate::scope::Scope;
use crate::tensor::{Kind, all_live};
use crate::{DType, Fault, Tensor, TensorType};

/// The backward scan, for the inputs that need cotangents and the results that have them.
pub(super) struct Derivative {
    step: std::sync::Arc<Step>,
    /// The residuals that the forward scan must return.
    residuals: Vec<Tensor>,
    /// For each of the first backward carries, the forward carry whose cotangent it is.
    carries: Vec<usize>,
    /// For each of the other backward carries, the forward input whose cotangent it sums up.
    sums: Vec<usize>,
    /// For each of the first backward xs, the forward result whose cotangent it is.
    cotangents: Vec<usize>,
    /// The sources of the other backward xs.
    sources: Vec<Source>,
    /// The captured tensors of the backward step, in terms of the forward step's parameters.
    outside: Vec<Tensor>,
    /// For each backward y, the forward input whose cotangent it is.
    ys: Vec<usize>,
}

/// The forward input or result that holds a value of each step.
enum Source {
    Input(usize),
    Result(usize),
}

fn is_cheap(t: &Tensor) -> bool {
    matches!(&t.node.kind, Kind::Operation(operation) if operation.recompute_policy() == RecomputePolicy::IfCheap)
}

/// Replaces values by the operands of their elementwise computation where those need less memory.
/// For example, of a value, its square and its sigmoid, only the value is kept. `below` returns the
/// values that a value is computed from. Only tensors for which `kept` is true take memory.
fn keep_less(
    needs: Vec<Tensor>,
    below: impl Fn(&Tensor) -> Vec<Tensor>,
    kept: impl Fn(&Tensor) -> bool,
) -> Vec<Tensor> {
    // Groups of values that share an operand, with the operands of each group.
    let mut groups: Vec<(Vec<Tensor>, Vec<Tensor>)> = Vec::new();
    for value in needs {
        let mut values = Vec::new();
        let mut base = below(&value);
        values.push(value);
        let shares =
            |a: &[Tensor], b: &[Tensor]| a.iter().any(|x| kept(x) && b.iter().any(|y| x.is(y)));
        let (joined, apart): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|(_, other)| shares(other, &base));
        groups = apart;
        for (others, other) in joined {
            values.splice(0..0, others);
            base.splice(0..0, other);
        }
        groups.push((values, base));
    }
    let mut all: Vec<Tensor> = Vec::new();
    for (values, base) in groups {
        let mut base_once: Vec<Tensor> = Vec::new();
        for t in base {
            if !base_once.iter().any(|known| known.is(&t)) {
                base_once.push(t);
            }
        }
        let bytes = |tensors: &[Tensor]| -> usize {
            tensors
                .iter()
                .filter(|t| kept(t))
                .fold(0, |sum, t| sum.saturating_add(t.ty().size_in_bytes()))
        };
        let less = bytes(&base_once) < bytes(&values);
        for t in if less { base_once } else { values } {
            if !all.iter().any(|known| known.is(&t)) {
                all.push(t);
            }
        }
    }
    all
}

impl Loop {
    pub(super) fn scan_vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let key = DerivativeKey::new(cx);
        let derivative = match self.step.derivatives.get(key, || self.differentiate(cx)) {
            Ok(derivative) => derivative,
            Err(fault) => return no_derivative(fault, cx.inputs.len()),
        };
        let d = &*derivative;
        let mut cotangents = vec![None; cx.inputs.len()];
        if d.carries.is_empty() && d.sums.is_empty() && d.ys.is_empty() {
            return cotangents;
        }
        let forward = if d.residuals.len() > self.residuals.len() {
            Loop { residuals: d.residuals.clone(), ..self.clone() }.apply(cx.inputs)
        } else {
            cx.outputs.to_vec()
        };
        if let Err(fault) = all_live(&forward) {
            return no_derivative(fault, cx.inputs.len());
        }
        let mut inputs = Vec::new();
        for &carry in &d.carries {
            inputs.push(match &cx.cotangents[carry] {
                Some(cotangent) => cotangent.clone(),
                None => cx.outputs[carry].zeros_like(),
            });
        }
        for &input in &d.sums {
            inputs.push(wide(&cx.inputs[input].zeros_like()));
        }
        inputs.extend(d.cotangents.iter().filter_map(|&result| cx.cotangents[result].clone()));
        inputs.extend(d.sources.iter().map(|source| match source {
            Source::Input(i) => cx.inputs[*i].clone(),
            Source::Result(i) => forward[*i].clone(),
        }));
        let captured = self.step.carries + self.step.xs;
        let actual = |i: usize| (value_id(&self.step.region.parameters[i]), cx.inputs[i].clone());
        let substitutes: HashMap<_, _> = (captured..cx.inputs.len()).map(actual).collect();
        inputs.extend(replay(&d.outside, &substitutes));
        let backward = Loop {
            step: d.step.clone(),
            residuals: Vec::new(),
            length: self.length,
            reverse: !self.reverse,
        }
        .apply(&inputs);
        if let Err(fault) = all_live(&backward) {
            return no_derivative(fault, cx.inputs.len());
        }
        for (&input, cotangent) in d.carries.iter().chain(&d.sums).chain(&d.ys).zip(backward) {
            cotangents[input] = Some(cotangent.to_dtype(cx.inputs[input].dtype()));
        }
        cotangents
    }

    fn differentiate(&self, cx: &Vjp<'_>) -> Result<Derivative, Fault> {
        let carries = self.step.carries;
        let xs = self.step.xs;
        let own = &self.step.region.parameters;
        let results = self.results();
        // A carry that depends on an active input is active in the next step.
        let (active, flows) = active_in_loop(own, &results, carries, cx.needed);
        let active_carries: Vec<usize> = (0..carries).filter(|&i| active[i]).collect();
        let with_cotangent: Vec<usize> =
            (carries..results.len()).filter(|&i| cx.cotangents[i].is_some() && flows[i]).collect();

        let carry_cotangents = parameters(
            "scan",
            "cotangent of carry",
            active_carries.iter().map(|&i| results[i].ty()),
        );
        let y_cotangents =
            parameters("scan", "cotangent of y", with_cotangent.iter().map(|&i| results[i].ty()));
        let seeds: Vec<(Tensor, Tensor)> = (active_carries.iter().zip(&carry_cotangents))
            .chain(with_cotangent.iter().zip(&y_cotangents))
            .map(|(&i, cotangent)| (results[i].clone(), cotangent.clone()))
            .collect();
        let wrt: Vec<usize> = (0..own.len()).filter(|&i| active[i]).collect();
        let cotangents_of_inputs = vjp(&seeds, &wrt.iter().map(|&i| &own[i]).collect::<Vec<_>>())?;
        let mut gradients: HashMap<usize, Tensor> = wrt
            .into_iter()
            .zip(cotangents_of_inputs)
            .filter_map(|(i, gradient)| Some((i, gradient?)))
            .collect();

        let mut backward = Vec::new();
        for &i in &active_carries {
            backward.push(match gradients.remove(&i) {
                Some(gradient) => gradient,
                None => own[i].zeros_like(),
            });
        }
        let sums: Vec<usize> =
            (carries + xs..own.len()).filter(|i| gradients.contains_key(i)).collect();
        // A 16-bit sum over many steps would stop growing.
        let sum_types: Vec<TensorType> = sums.iter().map(|&i| wide(&own[i]).ty().clone()).collect();
        let partial_sums = parameters("scan", "sum of cotangents", &sum_types);
        for (i, sum) in sums.iter().zip(&partial_sums) {
            if let Some(gradient) = gradients.get(i) {
                backward.push(sum + wide(gradient));
            }
        }
        let ys: Vec<usize> =
            (carries..carries + xs).filter(|i| gradients.contains_key(i)).collect();
        backward.extend(ys.iter().filter_map(|i| gradients.get(i).cloned()));

        // The values that the backward step needs but does not compute.
        let own_parameters: Vec<Tensor> =
            carry_cotangents.into_iter().chain(partial_sums).chain(y_cotangents).collect();
        let inside = dependents(&backward, &own_parameters.iter().collect::<Vec<_>>());
        let steps = dependents(&backward, &own[..carries + xs].iter().collect::<Vec<_>>());
        let smaller = |t: &Tensor| {
            let operand = t.node.inputs.first().map_or(usize::MAX, |o| o.ty().size_in_bytes());
            t.node.constant || !steps.contains(&t.node.id) || operand <= t.ty().size_in_bytes()
        };
        let needed = frontier(&backward, |t| inside.contains(&t.node.id), smaller);
        let slices = &own[carries..carries + xs];
        let kept = |t: &Tensor| steps.contains(&t.node.id) && !slices.iter().any(|p| p.is(t));
        let cheap = |t: &Tensor| steps.contains(&t.node.id) && is_cheap(t);
        let residuals_and_inputs =
            keep_less(needed, |t| frontier(std::slice::from_ref(t), cheap, smaller), kept);
        let (mut each, outside): (Vec<Tensor>, Vec<Tensor>) =
            residuals_and_inputs.into_iter().partition(|t| steps.contains(&t.node.id));
        let (sources, residuals) = self.keep(&each)?;
        each.extend(outside.iter().cloned());
        let step_carries = active_carries.len() + sums.len();
        let step_xs = with_cotangent.len() + sources.len();
        let region = Region::cut("scan", own_parameters, each, &backward);
        Ok(Derivative {
            step: Step::new(region, step_carries, step_xs),
            residuals,
            carries: active_carries,
            sums,
            cotangents: with_cotangent,
            sources,
            outside,
            ys,
        })
    }

    /// The checks of indices in a step. Like a residual, the words of each are one more y of the
    /// loop. Those of the first step with an invalid index count.
    pub(super) fn checks_of_steps(&self, inputs: &[Tensor]) -> Vec<IndexCheck> {
        let found = find(&self.step.region.results);
        let words: Vec<Tensor> = found.iter().map(IndexCheck::words).collect();
        if words.is_empty() {
            return Vec::new();
        }
        // A poisoned step has no program.
        let Ok((sources, residuals)) = self.keep(&words) else { return Vec::new() };
        let results = Loop { residuals, ..self.clone() }.apply(inputs);
        let number = Tensor::arange(DType::I32, self.length);
        let mut checks = Vec::new();
        for (check, source) in found.iter().zip(sources) {
            let words = match source {
                Source::Input(i) => inputs[i].clone(),
                Source::Result(i) => results[i].clone(),
            };
            let is_invalid = words.narrow(1, 0, 1).squeeze(1).ne(0.0);
            let none = Tensor::full(DType::I32, [], self.length as f64);
            let first = is_invalid.select(&number, &none).min(0);
            let is_first = number.eq(&first).unsqueeze(1);
            checks.push(check.with_words(is_first.select(&words, &words.zeros_like()).sum(0)));
        }
        checks
    }

    /// The sources of these values of a step, and the residuals that the forward scan then returns.
    fn keep(&self, values: &[Tensor]) -> Result<(Vec<Source>, Vec<Tensor>), Fault> {
        let carries = self.step.carries;
        let xs = self.step.xs;
        let own = &self.step.region;
        let mut residuals = self.step.residuals.lock().unwrap_or_else(PoisonError::into_inner);
        let ys = &own.results[carries..];
        // Equal values are kept once.
        let all: Vec<Tensor> = ys.iter().chain(&*residuals).chain(values).cloned().collect();
        let graph = Graph::new(&all, Constants::InText, Calls::Inlined)
            .map_err(|e| Fault::new("scan", e.to_string(), Scope::line()))?;
        let (kept, identities) = graph.results.split_at(ys.len() + residuals.len());
        let mut kept: Vec<Value> = kept.to_vec();
        let mut sources = Vec::new();
        for (value, identity) in values.iter().zip(identities) {
            let slice = own.parameters[carries..carries + xs].iter().position(|p| p.is(value));
            sources.push(match slice {
                Some(i) => Source::Input(carries + i),
                None => {
                    let known = kept.iter().position(|k| k == identity);
                    if known.is_none() {
                        kept.push(*identity);
                        residuals.push(value.clone());
                    }
                    Source::Result(carries + known.unwrap_or(kept.len() - 1))
                }
            });
        }
        Ok((sources, residuals.clone()))
    }
}
