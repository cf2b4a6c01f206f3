//! Operations that have bodies: branches, loops, and parts whose derivative is made in a way of its own.
//!
//! A body is traced once, with parameters in place of its arguments, and closed ([`Region`]).

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

/// Which derivative is asked for: the results that a body has, the inputs that need a cotangent, the results that have one.
type Asked = (usize, Vec<bool>, Vec<bool>);

/// The derivatives of a body, each traced once, so that two gradients of one loop are one loop.
struct Derivatives<T>(Mutex<HashMap<Asked, Result<Arc<T>, Fault>>>);

impl<T> Derivatives<T> {
    fn new() -> Derivatives<T> {
        Derivatives(Mutex::default())
    }

    fn get(&self, asked: Asked, make: impl FnOnce() -> Result<T, Fault>) -> Result<Arc<T>, Fault> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A body does not contain itself: making one derivative does not come here again.
        known.entry(asked).or_insert_with(|| make().map(Arc::new)).clone()
    }
}

/// The cotangents of `count` inputs where there is no derivative.
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

/// A region, and which input of its operation each of its parameters is.
struct Body {
    region: Region,
    from: Vec<usize>,
}

/// Several bodies of one operation, all with the `given` inputs from number `first` on as their first parameters. What
/// they take from outside becomes further inputs, each once.
fn join(inputs: &mut Vec<Tensor>, first: usize, given: usize, closed: Vec<(Region, Vec<Tensor>)>) -> Vec<Body> {
    let mut bodies = vec![];
    let shared = inputs.len();
    for (region, captures) in closed {
        let mut from: Vec<usize> = (first..first + given).collect();
        for capture in captures {
            let known = inputs[shared..].iter().position(|t| t.is(&capture)).map(|i| shared + i);
            from.push(known.unwrap_or(inputs.len()));
            if known.is_none() {
                inputs.push(capture);
            }
        }
        bodies.push(Body { region, from });
    }
    bodies
}

impl Body {
    /// The names that the parameters have, given those of the operation's inputs.
    fn arguments(&self, name: impl Fn(usize) -> String) -> Vec<String> {
        self.from.iter().map(|&i| name(i)).collect()
    }
}
