//! Operations with bodies: branches, loops, calls, and expressions with a derivative of their own.
//!
//! A body is traced once, with parameters as arguments, and closed ([`Region`]).

mod branches;
mod call;
mod checkpoint;
mod cond;
mod custom_gradient;
mod loops;
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
pub use scan::{Scan, scan};
pub use while_loop::while_loop;

use crate::region::Region;
use crate::{Fault, Tensor, TensorType};

/// Identifies a derivative of a body: the number of results, which inputs need a cotangent, and
/// which results have one.
type Request = (usize, Vec<bool>, Vec<bool>);

/// The derivatives of a body. Each is traced once, so that two gradients of one loop share one
/// backward loop.
struct Derivatives<T>(Mutex<HashMap<Request, Result<Arc<T>, Fault>>>);

impl<T> Derivatives<T> {
    fn new() -> Derivatives<T> {
        Derivatives(Mutex::default())
    }

    fn get(
        &self,
        request: Request,
        make: impl FnOnce() -> Result<T, Fault>,
    ) -> Result<Arc<T>, Fault> {
        let mut derivatives = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A body does not contain itself, so `make` does not lock this again.
        derivatives.entry(request).or_insert_with(|| make().map(Arc::new)).clone()
    }
}

/// Poisoned cotangents for `count` inputs of an operation without a derivative.
fn no_derivative(fault: Fault, count: usize) -> Vec<Option<Tensor>> {
    vec![Some(Tensor::poisoned(fault)); count]
}

fn owned(tensors: &[&Tensor]) -> Vec<Tensor> {
    tensors.iter().map(|&t| t.clone()).collect()
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
    from: Vec<usize>,
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
        let mut from: Vec<usize> = (first..first + shared).collect();
        for capture in captures {
            let index = inputs[captures_start..]
                .iter()
                .position(|t| t.is(&capture))
                .map(|i| captures_start + i);
            from.push(index.unwrap_or(inputs.len()));
            if index.is_none() {
                inputs.push(capture);
            }
        }
        bodies.push(Body { region, from });
    }
    bodies
}

impl Body {
    /// The names of the parameters, where `name` maps an input of the operation to its name.
    fn arguments(&self, name: impl Fn(usize) -> String) -> Vec<String> {
        self.from.iter().map(|&i| name(i)).collect()
    }
}
