//! [`Region`]: an expression within an operation, the body of a loop or a branch.
//!
//! A region is closed: everything in it is computed from its parameters and from constants. A
//! tensor that a user's closure captures from outside becomes another parameter, and another input
//! of the operation. So a walk over an expression need not look into bodies.
//!
//! Out of scope: how a body is written into a program, see `emit.rs`; its derivative, see each
//! operation.

pub(crate) mod closing;

use crate::{Tensor, TensorType};

/// A closed expression with parameters.
#[derive(Clone)]
pub(crate) struct Region {
    /// Leaves that only this region uses, of the kind [`Kind::Parameter`](crate::tensor::Kind).
    pub(crate) parameters: Vec<Tensor>,
    /// None is poisoned.
    pub(crate) results: Vec<Tensor>,
}

/// Makes a parameter for each of these types, named `prefix` and its index. `operation` is the
/// operation with the body.
pub(crate) fn parameters<'a>(
    operation: &'static str,
    prefix: &str,
    types: impl IntoIterator<Item = &'a TensorType>,
) -> Vec<Tensor> {
    let mut parameters = Vec::new();
    for (i, ty) in types.into_iter().enumerate() {
        parameters.push(Tensor::parameter(operation, format!("{prefix} {i}"), ty.clone()));
    }
    parameters
}
