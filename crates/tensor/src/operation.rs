//! The form that every operation has: its shape rule, its derivative and its StableHLO text, side by side.
//!
//! An operation is one `struct` in [`ops`](crate::ops) that implements [`Operation`]; its attributes are the struct's
//! fields. The method of [`Tensor`] that users call, with the formula in its doc, is in the same file.

use std::fmt;
use std::sync::Arc;

use crate::lower::Lowering;
use crate::region::Region;
use crate::{Mesh, Sharding, Tensor, TensorType};

pub(crate) trait Operation: fmt::Debug + Send + Sync + 'static {
    /// The name in error messages: that of the method the user called.
    fn name(&self) -> &'static str;

    /// The types of the results, or a sentence that says why these inputs do not fit.
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String>;

    /// The vector-Jacobian product: for each input the cotangent it gets, `None` where no gradient flows.
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>>;

    /// The right-hand side of the StableHLO statement.
    fn lower(&self, cx: &mut Lowering<'_>) -> String;

    /// Whether the operation can be on this mesh of several devices, or a sentence that says why not.
    fn check(&self, mesh: &Mesh, inputs: &[&TensorType]) -> Result<(), String> {
        let _ = (mesh, inputs);
        Ok(())
    }

    /// The elements, where they are known while recording: all of them, or one that all equal.
    fn constant(&self) -> Option<&[u8]> {
        None
    }

    /// The elements, if they are a value that was given, as data are. A program that runs once takes them as an argument:
    /// in its text they would make it another program for each new value, which is compiled again.
    fn given(&self) -> Option<&Arc<[u8]>> {
        None
    }

    /// What becomes of the operation in the body of a loop, or in a derivative, when its operands come from outside.
    fn recompute_policy(&self) -> RecomputePolicy {
        RecomputePolicy::ConstantsOnly
    }

    /// The body that replaces this operation in a program, if it is only a name for what it contains: its
    /// parameters are the operands. What sets it apart is its derivative.
    fn inlined(&self) -> Option<&Region> {
        None
    }

    /// The body that is a function of its own in a program, which this operation calls: its parameters are the operands.
    fn called(&self) -> Option<&Region> {
        None
    }

    /// The sharding of the operand, if the operation gathers it and does nothing else.
    fn gathers(&self) -> Option<&Sharding> {
        None
    }

    /// Where the box begins that the operation cuts out of its operand, if it does nothing else.
    fn cuts_from(&self) -> Option<&[usize]> {
        None
    }

    /// What tells two uses of this operation on the same inputs apart: all attributes. Two that are alike may differ in
    /// how many results they have; those that both have are the same.
    fn key(&self) -> String {
        format!("{self:?}")
    }
}

/// Whether a value is kept or computed again where it is needed a second time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecomputePolicy {
    /// Again wherever it is needed: another view of its operand, which costs nothing or less than what it would take to
    /// keep.
    Always,
    /// Again in the derivative of a loop, if less is kept for it: elementwise, with a result as large as its operands.
    IfCheap,
    /// Again only if it is computed from constants alone.
    ConstantsOnly,
    /// Never: it is a loop.
    Never,
}

/// What a derivative rule sees of the node it differentiates.
pub(crate) struct Vjp<'a> {
    pub(crate) inputs: &'a [Tensor],
    pub(crate) outputs: &'a [Tensor],
    /// One an output; `None` where nothing depends on it.
    pub(crate) cotangents: &'a [Option<Tensor>],
    /// One an input: whether anybody asks for its cotangent. A rule may give more than is asked for.
    pub(crate) needed: &'a [bool],
}

impl Vjp<'_> {
    pub(crate) fn input(&self, i: usize) -> &Tensor {
        &self.inputs[i]
    }

    /// The only output of an operation that has one.
    pub(crate) fn output(&self) -> &Tensor {
        &self.outputs[0]
    }

    /// The cotangent of the only output. A rule runs only when some output has one.
    pub(crate) fn cotangent(&self) -> Tensor {
        match &self.cotangents[0] {
            Some(cotangent) => cotangent.clone(),
            None => self.outputs[0].zeros_like(),
        }
    }
}

/// For shape rules with one result.
pub(crate) fn one(ty: TensorType) -> Result<Vec<TensorType>, String> {
    Ok(vec![ty])
}
