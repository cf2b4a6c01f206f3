//! Sharding constraints and all-gather.

use super::unary::methods;
use crate::lower::Lowering;
use crate::operation::{Operation, RecomputePolicy, Vjp, one};
use crate::tensor::Kind;
use crate::whole_axes::WholeAxes;
use crate::{Mesh, Sharding, Tensor, TensorType};

#[derive(Debug)]
struct ShardingConstraint(Sharding);

impl Operation for ShardingConstraint {
    fn name(&self) -> &'static str {
        "with_sharding"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        infer(&self.0, inputs[0])
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        vec![Some(cx.cotangent().with_sharding(&self.0))]
    }
    fn check(&self, mesh: &Mesh, inputs: &[&TensorType]) -> Result<WholeAxes, String> {
        self.0.shard_shape(mesh, &inputs[0].shape)?;
        Ok(WholeAxes::default())
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        lower(&self.0, cx)
    }
}

/// Gathers shards, so that every device has the whole value or a larger part of it.
#[derive(Debug)]
pub(crate) struct AllGather {
    shards: Sharding,
    /// How the result is split.
    gathered: Sharding,
}

impl Operation for AllGather {
    fn name(&self) -> &'static str {
        "all_gather"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        infer(&self.gathered, inputs[0])?;
        infer(&self.shards, inputs[0])
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        vec![Some(cx.cotangent().with_sharding(&self.shards))]
    }
    fn check(&self, mesh: &Mesh, inputs: &[&TensorType]) -> Result<WholeAxes, String> {
        self.shards.shard_shape(mesh, &inputs[0].shape)?;
        self.gathered.shard_shape(mesh, &inputs[0].shape)?;
        Ok(WholeAxes::default())
    }
    /// The derivative of a loop keeps the shards and gathers them again.
    fn recompute_policy(&self) -> RecomputePolicy {
        RecomputePolicy::Always
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        // Without the first constraint, XLA gathers the operand of a conversion in front of this,
        // in its wider dtype.
        let shards = lower(&self.shards, cx);
        if !cx.is_partitioned() {
            return shards;
        }
        let shards = cx.statement(shards);
        let ty = cx.result();
        constraint(&shards, &self.gathered, ty)
    }
}

/// The sharding that an operation gives its result, if that is what it is for.
pub(crate) fn result_sharding(operation: &dyn Operation) -> Option<Sharding> {
    if let Some(ShardingConstraint(sharding)) = operation.downcast() {
        return Some(sharding.clone());
    }
    operation.downcast::<AllGather>().map(|gather| gather.gathered.clone())
}

fn infer(sharding: &Sharding, input: &TensorType) -> Result<Vec<TensorType>, String> {
    if sharding.axes().len() > input.shape.rank() {
        return Err(format!("the sharding {sharding} has more axes than {input}"));
    }
    one(input.clone())
}

fn lower(sharding: &Sharding, cx: &Lowering<'_>) -> String {
    if !cx.is_partitioned() {
        return format!("stablehlo.reshape {} : {}", cx.operand(0), cx.signature());
    }
    constraint(cx.operand(0), sharding, cx.result())
}

fn constraint(operand: &str, sharding: &Sharding, ty: &TensorType) -> String {
    let sharding = sharding.attribute(ty.shape.rank());
    format!("sdy.sharding_constraint {operand} {sharding} : {}", ty.stablehlo())
}

methods! {
    /// Constrains the value, and its gradient, to `sharding` (JAX's `with_sharding_constraint`).
    /// This changes where the shards of a value are, never the value. On one device it does
    /// nothing.
    ///
    /// Poisoned if the sharding has more axes than the tensor. If the sharding does not fit the
    /// mesh, compiling the program for that mesh returns an error.
    ///
    /// ```
    /// use fulmen_tensor::{Sharding, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0], [2]).with_sharding(&Sharding::new([Some("data")]));
    /// assert_eq!(x.eval()?.to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    with_sharding(sharding: &Sharding) -> Tensor, |x| Tensor::try_apply(ShardingConstraint(sharding.clone()), &[x]);

    /// Gathers shards of `sharding`, so that every device has the whole value; the gradient is
    /// sharded in the same way. Fully sharded training (FSDP) reads parameters through this. A
    /// transpose or a conversion to a narrower dtype moves in front of the gather, so that in mixed
    /// precision devices send 16-bit numbers. On one device it does nothing.
    ///
    /// Faults and errors are the same as for [`Tensor::with_sharding`].
    ///
    /// ```
    /// use fulmen_tensor::{DType, Sharding, Tensor};
    /// let rows = Sharding::new([Some("data")]);
    /// let parts = Tensor::from_slice(&[1.0f32, 2.0], [2]);
    /// let half = parts.all_gather(&rows).to_dtype(DType::Bf16);
    /// let (shards, [sharding, _]) = half.gathered_from().unwrap();
    /// assert_eq!((shards.dtype(), sharding), (DType::Bf16, &rows));
    /// assert_eq!(half.eval()?.to_f64(), [1.0, 2.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    all_gather(sharding: &Sharding) -> Tensor, |x| Ok(x.all_gather_to(sharding, &Sharding::replicated()));

    /// Like [`Tensor::all_gather`], but the result stays split as `gathered`: fully sharded training
    /// of a model whose weights are split over further axes of the mesh gathers only its own.
    ///
    /// ```
    /// use fulmen_tensor::{Sharding, Tensor};
    /// let columns = Sharding::new([None, Some("model")]);
    /// let parts = Tensor::from_slice(&[1.0f32, 2.0], [1, 2]);
    /// let gathered = parts.all_gather_to(&Sharding::new([Some("fsdp"), Some("model")]), &columns);
    /// assert_eq!(gathered.gathered_from().unwrap().1[1], &columns);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    all_gather_to(sharding: &Sharding, gathered: &Sharding) -> Tensor, |x| {
        let shards = sharding.clone();
        Tensor::try_apply(AllGather { shards, gathered: gathered.clone() }, &[x])
    };
}

impl Tensor {
    /// If this tensor is the result of [`Tensor::all_gather`] or [`Tensor::all_gather_to`], returns
    /// the operand, its sharding and that of the result. A loop over stacked values uses this to
    /// gather one slice at a time.
    pub fn gathered_from(&self) -> Option<(&Tensor, [&Sharding; 2])> {
        let Kind::Operation(operation) = &self.node.kind else { return None };
        let AllGather { shards, gathered } = operation.downcast()?;
        Some((self.node.inputs.first()?, [shards, gathered]))
    }
}
