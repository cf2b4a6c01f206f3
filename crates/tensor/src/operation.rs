//! [`Operation`]: the trait of every operation, with its shape rule, its derivative and its
//! StableHLO text.
//!
//! An operation is a struct in [`ops`](crate::ops), whose fields are the attributes. The same file
//! has the public method of [`Tensor`], with the formula in its doc.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::index_checks::{IndexCheck, IndexRule};
use crate::lower::Lowering;
use crate::region::Region;
use crate::whole_axes::WholeAxes;
use crate::{Mesh, Sharding, Tensor, TensorType};

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

    /// Checks that the operation can run on this mesh of several devices. The error is a message.
    fn check(&self, mesh: &Mesh, inputs: &[&TensorType]) -> Result<(), String> {
        let _ = (mesh, inputs);
        Ok(())
    }

    /// The axes that must not be split over devices.
    fn whole_axes(&self, inputs: &[&TensorType], mesh: &Mesh) -> WholeAxes {
        let _ = (inputs, mesh);
        WholeAxes::default()
    }

    /// The elements, if they are known while recording: all of them, or one if all are equal.
    fn constant(&self) -> Option<&[u8]> {
        None
    }

    /// The elements, if they are a value from the user, such as data. A program that runs once
    /// takes them as an argument. If its text contained them, each new value would need another
    /// compilation.
    fn host_value(&self) -> Option<&Arc<[u8]>> {
        None
    }

    /// Whether a loop body or a derivative computes the operation again, or keeps its result from
    /// outside.
    fn recompute_policy(&self) -> RecomputePolicy {
        RecomputePolicy::ConstantsOnly
    }

    /// The body that replaces this operation in a program, if only its derivative differs from the
    /// body's. The body's parameters are the operands.
    fn inlined_body(&self) -> Option<&Region> {
        None
    }

    /// The body that this operation calls, as a private function of the program. Its parameters are
    /// the operands.
    fn called_body(&self) -> Option<&Region> {
        None
    }

    /// The body whose results are those of the operation. Its parameters are the operands.
    fn body(&self) -> Option<&Region> {
        self.inlined_body().or_else(|| self.called_body())
    }

    /// The bodies that the operation runs itself: those of a loop or of branches.
    fn run_bodies(&self) -> Vec<RunBody<'_>> {
        Vec::new()
    }

    /// The weight of the operand among the means of other batches, if this operation adds it.
    fn mean_weight(&self) -> Option<&Tensor> {
        None
    }

    /// The rule of the indices that this operation marks, if it is a mark.
    fn index_rule(&self) -> Option<&Arc<IndexRule>> {
        None
    }

    /// The checks of indices within the operation's bodies, for these operands, unless the body is
    /// inlined or called.
    fn index_checks(&self, inputs: &[Tensor]) -> Vec<IndexCheck> {
        let _ = inputs;
        Vec::new()
    }

    /// Whether the operation adds rows, its third operand, at indices, its second operand, to the
    /// first operand, along the first axis.
    fn adds_rows(&self) -> bool {
        false
    }

    /// The sharding of the operand, if the operation only gathers it.
    fn gathered_sharding(&self) -> Option<&Sharding> {
        None
    }

    /// The sharding that the operation gives its result.
    fn result_sharding(&self) -> Option<Sharding> {
        None
    }

    /// The start indices of the slice, if the operation only slices its operand.
    fn slice_start(&self) -> Option<&[usize]> {
        None
    }

    /// Whether each element of the result depends only on the operands' elements at its position.
    /// All operands have the shape of the result.
    fn is_elementwise(&self) -> bool {
        self.recompute_policy() == RecomputePolicy::IfCheap
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
