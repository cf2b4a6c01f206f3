//! [`Operation`]: the trait of every operation, with its shape rule, its derivative and its
//! StableHLO text.
//!
//! An operation is a struct in [`ops`](crate::ops), whose fields are the attributes. The same file
//! has the public method of [`Tensor`], with the formula in its doc.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::lower::Lowering;
use crate::region::Region;
use crate::whole_axes::WholeAxes;
use crate::{Mesh, Tensor, TensorType};

pub(crate) trait Operation: Any + fmt::Debug + Send + Sync {
    /// The name in messages: the method that the user called.
    fn name(&self) -> &'static str;

    /// The types of the results, or a message that says why these inputs are invalid.
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String>;

    /// The vector-Jacobian product: the cotangent of each input, `None` if no gradient flows to it.
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>>;

    /// Whether each of the `count` results has a derivative with respect to an input for which
    /// `active` is true. At least one input is active. Integers and booleans never have one,
    /// whatever this returns.
    fn active_results(&self, active: &[bool], count: usize) -> Vec<bool> {
        let _ = active;
        vec![true; count]
    }

    /// The right-hand side of the StableHLO statement.
    fn lower(&self, cx: &mut Lowering<'_>) -> String;

    /// Checks that the operation can run on this mesh of several devices. Returns the axes that must
    /// not be split over devices. The error is a message.
    fn check(&self, mesh: &Mesh, inputs: &[&TensorType]) -> Result<WholeAxes, String> {
        let _ = (mesh, inputs);
        Ok(WholeAxes::default())
    }

    /// Whether a loop body or a derivative computes the operation again, or keeps its result from
    /// outside.
    fn recompute_policy(&self) -> RecomputePolicy {
        RecomputePolicy::ConstantsOnly
    }

    /// The user's value or the bodies in the operation, which walks over expressions look at.
    fn contents(&self) -> Contents<'_> {
        Contents::Nothing
    }

    /// All attributes as text: two operations with equal keys and inputs have equal results. They
    /// may differ in the number of results; the common ones are equal.
    fn key(&self) -> String {
        format!("{self:?}")
    }
}

impl dyn Operation {
    /// This operation, if it is of the type `T`.
    pub(crate) fn downcast<T: Operation>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }

    /// The elements, if they are a value from the user.
    pub(crate) fn host_value(&self) -> Option<&Arc<[u8]>> {
        match self.contents() {
            Contents::HostValue(elements) => Some(elements),
            _ => None,
        }
    }

    /// The body whose results are those of the operation. Its parameters are the operands.
    pub(crate) fn body(&self) -> Option<&Region> {
        match self.contents() {
            Contents::Inlined(body) | Contents::Called(body) => Some(body),
            _ => None,
        }
    }
}

/// What is in an operation, besides its attributes.
pub(crate) enum Contents<'a> {
    Nothing,
    /// The elements of a value from the user, such as data. A program that runs once takes them as
    /// an argument. If its text contained them, each new value would need another compilation.
    HostValue(&'a Arc<[u8]>),
    /// The body that replaces the operation in a program, if only its derivative differs from the
    /// body's. The body's parameters are the operands.
    Inlined(&'a Region),
    /// The body that the operation calls, as a private function of the program. Its parameters are
    /// the operands.
    Called(&'a Region),
    /// The bodies that the operation runs itself: those of a loop or of branches.
    Run(Vec<RunBody<'a>>),
}

/// One run of a body of a loop or a branch.
pub(crate) struct RunBody<'a> {
    pub(crate) region: &'a Region,
    /// For each parameter of the region, the index of the operation's operand.
    pub(crate) operands: Vec<usize>,
    /// The results of the run: one for each result of the operation, or a condition.
    pub(crate) results: Vec<Tensor>,
    pub(crate) is_condition: bool,
}

/// When a value is computed again instead of kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecomputePolicy {
    /// Always compute it again: it is a view of its operand, which costs less than keeping it.
    Always,
    /// Compute it again in the derivative of a loop, if that keeps less memory: it is elementwise,
    /// and its result has the size of its operands.
    IfCheap,
    /// Compute it again only if all its inputs are constants.
    ConstantsOnly,
    /// Never compute it again: it is a loop.
    Never,
}

/// A derivative rule's view of the node that it differentiates.
pub(crate) struct Vjp<'a> {
    pub(crate) inputs: &'a [Tensor],
    pub(crate) outputs: &'a [Tensor],
    /// One per output; `None` if the loss does not depend on it.
    pub(crate) cotangents: &'a [Option<Tensor>],
    /// Whether each input's cotangent is needed. A rule may return more than the needed ones.
    pub(crate) needed: &'a [bool],
    /// Whether the inputs stay in memory from the forward pass until the derivative is computed.
    /// The body of a checkpoint computes them again, and a scan keeps them all to its end.
    pub(crate) keeps_activations: bool,
}

impl Vjp<'_> {
    pub(crate) fn input(&self, i: usize) -> &Tensor {
        &self.inputs[i]
    }

    /// The output of an operation with one output.
    pub(crate) fn output(&self) -> &Tensor {
        &self.outputs[0]
    }

    /// The cotangent of the output of an operation with one output.
    pub(crate) fn cotangent(&self) -> Tensor {
        match &self.cotangents[0] {
            Some(cotangent) => cotangent.clone(),
            None => self.outputs[0].zeros_like(),
        }
    }
}

/// The return value of a shape rule with one result.
pub(crate) fn one(ty: TensorType) -> Result<Vec<TensorType>, String> {
    Ok(vec![ty])
}
