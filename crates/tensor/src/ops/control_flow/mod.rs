//! Operations with bodies: branches, loops, calls, and expressions with a user-defined derivative.
//!
//! A body is traced once, with parameters as arguments, and closed ([`Region`]).

mod branches;
mod call;
mod carry;
mod checkpoint;
mod cond;
mod custom_gradient;
pub(crate) mod kernel_call;
mod loops;
mod marked_indices;
mod scan;
mod scan_derivative;
mod while_loop;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

pub use call::call;
pub use checkpoint::checkpoint;
pub use cond::{cond, switch};
pub use custom_gradient::custom_gradient;
pub use loops::{Bound, fori_loop, map};
pub use marked_indices::IndexChecks;
pub use scan::{Scan, scan};
pub use while_loop::while_loop;

use crate::operation::{RunBody, Vjp};
use crate::region::Region;
use crate::{Fault, Tensor, TensorType};

/// Identifies a derivative of a body.
#[derive(PartialEq, Eq, Hash)]
struct DerivativeKey {
    /// The number of results.
    results: usize,
    /// Whether each input's cotangent is needed.
    needed: Vec<bool>,
    /// Whether each result has a cotangent.
    has_cotangent: Vec<bool>,
}

impl DerivativeKey {
    fn new(cx: &Vjp<'_>) -> DerivativeKey {
        DerivativeKey {
            results: cx.outputs.len(),
            needed: cx.needed.to_vec(),
            has_cotangent: cx.cotangents.iter().map(Option::is_some).collect(),
        }
    }
}

/// The derivatives of a body. Each is traced once, so that two gradients of one loop share one
/// backward loop.
struct Derivatives<T>(Mutex<HashMap<DerivativeKey, Result<Arc<T>, Fault>>>);

impl<T> Derivatives<T> {
    fn new() -> Derivatives<T> {
        Derivatives(Mutex::default())
    }

    fn get(
        &self,
        key: DerivativeKey,
        make: impl FnOnce() -> Result<T, Fault>,
    ) -> Result<Arc<T>, Fault> {
        let mut derivatives = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A body does not contain itself, so `make` does not lock this again.
        derivatives.entry(key).or_insert_with(|| make().map(Arc::new)).clone()
    }
}

/// The inputs of an operation's derivative: those of the operation, the cotangents of its results,
/// and the tensors that the derivative captured from outside.
fn derivative_inputs(cx: &Vjp<'_>, outside: &[Tensor]) -> Vec<Tensor> {
    let mut inputs = cx.inputs.to_vec();
    // Only floating-point and complex results have cotangents.
    inputs.extend(cx.cotangents.iter().flatten().filter(|c| c.dtype().is_inexact()).cloned());
    inputs.extend(outside.iter().cloned());
    inputs
}

/// Poisoned cotangents for `count` inputs of an operation without a derivative.
fn no_derivative(fault: Fault, count: usize) -> Vec<Option<Tensor>> {
    vec![Some(Tensor::poisoned(fault)); count]
}

fn borrowed(tensors: &[Tensor]) -> Vec<&Tensor> {
    tensors.iter().collect()
}

fn types<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Vec<TensorType> {
    tensors.into_iter().map(|t| t.ty().clone()).collect()
}

/// A region, and the index of the operation's input for each of its parameters.
struct Body {
    region: Region,
    input_indices: Vec<usize>,
}

/// Combines several bodies of one operation. The first parameters of each are the `shared` inputs
/// from index `first` on. Each tensor that a body captures becomes one more input, which bodies
/// share.
fn join(
    inputs: &mut Vec<Tensor>,
    first: usize,
    shared: usize,
    closed: Vec<(Region, Vec<Tensor>)>,
) -> Vec<Body> {
    let mut bodies = Vec::new();
    let captures_start = inputs.len();
    for (region, captures) in closed {
        let mut input_indices: Vec<usize> = (first..first + shared).collect();
        for capture in captures {
            let index = inputs[captures_start..]
                .iter()
                .position(|t| t.is(&capture))
                .map(|i| captures_start + i);
            input_indices.push(index.unwrap_or(inputs.len()));
            if index.is_none() {
                inputs.push(capture);
            }
        }
        bodies.push(Body { region, input_indices });
    }
    bodies
}

impl Body {
    /// Whether each parameter is active, from whether each input of the operation is.
    fn active(&self, inputs: &[bool]) -> Vec<bool> {
        self.input_indices.iter().map(|&i| inputs[i]).collect()
    }

    /// One run, whose results are those of the region.
    fn run(&self) -> RunBody<'_> {
        RunBody {
            region: &self.region,
            operands: self.input_indices.clone(),
            results: self.region.results.clone(),
            is_condition: false,
        }
    }

    /// The names of the parameters, where `name` maps an input of the operation to its name.
    fn arguments(&self, name: impl Fn(usize) -> String) -> Vec<String> {
        self.input_indices.iter().map(|&i| name(i)).collect()
    }
}
