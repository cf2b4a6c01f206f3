//! Parts of a program that become separate functions: [`call`].

use std::fmt;
use std::sync::Arc;

use super::{DerivativeKey, Derivatives, borrowed, derivative_inputs, no_derivative, types};
use crate::grad::vjp;
use crate::lower::{Lowering, identifier};
use crate::operation::{Contents, Operation, Vjp};
use crate::region::{Region, parameters};
use crate::scope::Scope;
use crate::tensor::{all_live, next_id};
use crate::{Fault, IntoTree, Tensor, TensorType, Tree};

/// The name and the body of a function.
struct Callee {
    name: String,
    region: Region,
    derivatives: Derivatives<Derivative>,
}

/// A function that returns the cotangents of the inputs `wrt`.
struct Derivative {
    callee: Arc<Callee>,
    wrt: Vec<usize>,
    /// Tensors from outside the function that a user-defined derivative captured.
    outside: Vec<Tensor>,
}

struct Call(Arc<Callee>);

impl Callee {
    fn new(name: String, region: Region) -> Arc<Callee> {
        Arc::new(Callee { name, region, derivatives: Derivatives::new() })
    }

    /// The results. There may be none.
    fn apply(self: Arc<Callee>, inputs: &[Tensor]) -> Vec<Tensor> {
        if self.region.results.is_empty() {
            Vec::new()
        } else {
            Tensor::apply_all(Call(self), &borrowed(inputs))
        }
    }

    fn differentiate(&self, cx: &Vjp<'_>) -> Result<Derivative, Fault> {
        let Region { parameters: own, results } = &self.region;
        let with_cotangent: Vec<&Tensor> = (0..cx.outputs.len())
            .filter(|&o| cx.cotangents[o].is_some() && cx.outputs[o].dtype().is_inexact())
            .map(|o| &results[o])
            .collect();
        let cotangents = parameters("call", "cotangent", with_cotangent.iter().map(|t| t.ty()));
        let seeds: Vec<_> =
            with_cotangent.iter().map(|&t| t.clone()).zip(cotangents.iter().cloned()).collect();
        let needed: Vec<usize> = (0..own.len()).filter(|&i| cx.needed[i]).collect();
        let cotangents_of_inputs =
            vjp(&seeds, &needed.iter().map(|&i| &own[i]).collect::<Vec<_>>())?;
        let cotangents_of_inputs = needed
            .into_iter()
            .zip(cotangents_of_inputs)
            .filter_map(|(i, gradient)| Some((i, gradient?)));
        let (wrt, gradients): (Vec<usize>, Vec<Tensor>) = cotangents_of_inputs.unzip();
        let all = own.iter().chain(&cotangents).cloned().collect();
        let (region, outside) = Region::close("call", 0, all, &gradients);
        Ok(Derivative { callee: Callee::new(format!("{}_vjp", self.name), region), wrt, outside })
    }
}

impl Operation for Call {
    fn name(&self) -> &'static str {
        "call"
    }
    fn infer(&self, _: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(types(&self.0.region.results))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let mut cotangents = vec![None; cx.inputs.len()];
        let key = DerivativeKey::new(cx);
        let derivative = match self.0.derivatives.get(key, || self.0.differentiate(cx)) {
            Ok(derivative) => derivative,
            Err(fault) => return no_derivative(fault, cx.inputs.len()),
        };
        let inputs = derivative_inputs(cx, &derivative.outside);
        for (&i, cotangent) in derivative.wrt.iter().zip(derivative.callee.clone().apply(&inputs)) {
            cotangents[i] = Some(cotangent);
        }
        cotangents
    }
    fn active_results(&self, active: &[bool], _: usize) -> Vec<bool> {
        self.0.region.active_results(active)
    }
    fn contents(&self) -> Contents<'_> {
        Contents::Called(&self.0.region)
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let name = cx.function(&self.0.name, &self.0.region);
        format!("func.call @{name}({}) : {}", cx.operands(), cx.signature())
    }
    fn key(&self) -> String {
        format!("{:p}", Arc::as_ptr(&self.0))
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call of {}", self.0.name)
    }
}

/// Computes `f(inputs)` in a separate function of the program, named `name`. All calls that record
/// the same operations on the same types share one function, which makes the program shorter (like
/// a `jit` inside a `jit` in JAX). The compiler inlines it: values and gradients are those of `f`.
///
/// `f` is called once, with symbolic tensors for `inputs`: any [`Tree`](trait@crate::Tree). It may
/// use tensors from outside. Values that depend only on such tensors are computed outside the
/// function. Don't set a [`Variable`](crate::Variable) in `f`: it would hold a value that exists
/// only within the function. Return the value instead, and set the variable after the call.
///
/// ```
/// use fulmen_tensor::{DType, Function, TensorType, call};
///
/// let ty = TensorType::new(DType::F32, [3]);
/// let function = Function::trace("f", [&ty, &ty], |tensors| {
///     tensors.map(|x| call("softsign", x, |x| &x / (x.abs() + 1.0)))
/// });
/// let text = function.stablehlo()?;
/// assert_eq!((text.matches("stablehlo.divide").count(), text.matches("func.call @softsign(").count()), (1, 2));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn call<I: IntoTree, T: Tree>(name: &str, inputs: I, f: impl FnOnce(I::Tree) -> T) -> T {
    let _scope = Scope::open();
    let inputs = inputs.into_tree();
    let mut outside = inputs.flatten();
    let start = next_id();
    // With a poisoned input, record the body here instead of in a function. Then only the results
    // that use the input are poisoned.
    if all_live(&outside).is_err() {
        return Scope::outside(|| f(inputs));
    }
    let own = parameters("call", "input", outside.iter().map(Tensor::ty));
    let results = Scope::outside(|| f(inputs.unflatten(own.iter().cloned())));
    let results_of_body = results.flatten();
    if let Err(fault) = all_live(&results_of_body) {
        // The other results are values within the body, so they are poisoned too.
        return results.map_tensors(&mut |_| Tensor::poisoned(fault.clone()));
    }
    let (region, captures) = Region::close("call", start, own, &results_of_body);
    outside.extend(captures);
    results.unflatten(Callee::new(identifier(name), region).apply(&outside))
}
