//! A value that is to lie over the devices in a certain way.

use super::unary::methods;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::{Mesh, Sharding, Tensor, TensorType};

#[derive(Debug)]
struct ShardingConstraint(Sharding);

impl Operation for ShardingConstraint {
    fn name(&self) -> &'static str {
        "with_sharding"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        if self.0.axes().len() > inputs[0].shape.rank() {
            return Err(format!("the sharding {} has more axes than {}", self.0, inputs[0]));
        }
        one(inputs[0].clone())
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        vec![Some(cx.cotangent().with_sharding(&self.0))]
    }
    fn check(&self, mesh: &Mesh, inputs: &[&TensorType]) -> Result<(), String> {
        self.0.shard_shape(mesh, &inputs[0].shape).map(drop)
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        if !cx.is_partitioned() {
            return format!("stablehlo.reshape {} : {}", cx.operand(0), cx.signature());
        }
        let sharding = self.0.attribute(cx.result().shape.rank());
        format!("sdy.sharding_constraint {} {sharding} : {}", cx.operand(0), cx.result().stablehlo())
    }
}

methods! {
    /// The same value, split over the devices as `sharding` says (JAX's `with_sharding_constraint`); so is its gradient.
    /// It changes where the value lies and never what it is. On one device it does nothing.
    ///
    /// A sharding with more axes than the tensor poisons; one that the mesh does not fit is an error when the program is
    /// compiled for that mesh.
    ///
    /// ```
    /// use fulmen_tensor::{Sharding, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0], [2]).with_sharding(&Sharding::new([Some("data")]));
    /// assert_eq!(x.eval()?.to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    with_sharding(sharding: &Sharding) -> Tensor, |x| Tensor::try_apply(ShardingConstraint(sharding.clone()), &[x]);
}
