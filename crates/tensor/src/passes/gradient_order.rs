//! The order of gradients, which a derivative gives as a hint (`ops/gradient_order.rs`).
//!
//! On a TPU, the gradient of a narrow weight comes first: libtpu puts some of these gradients off, and
//! keeps the activations in memory until then. Elsewhere the hint is dropped.

use std::sync::Arc;

use super::Replacement;
use crate::TensorType;
use crate::operation::Operation;
use crate::ops::optimization_barrier::ComputedAfter;
use crate::region::{Region, parameters};

/// A barrier in the place of a hint.
pub(super) fn rule(operation: &dyn Operation, _: &[&TensorType]) -> Option<Replacement> {
    operation.downcast::<ComputedAfter>().filter(|after| after.is_hint)?;
    Some(Replacement::Operation(Arc::new(ComputedAfter { is_hint: false })))
}

/// The operands in the place of a hint.
pub(super) fn without_hint(
    operation: &dyn Operation,
    operands: &[&TensorType],
) -> Option<Replacement> {
    operation.downcast::<ComputedAfter>().filter(|after| after.is_hint)?;
    let parameters = parameters(operation.name(), "operand", operands.iter().copied());
    Some(Replacement::Expression(Region { results: parameters.clone(), parameters }))
}

#[cfg(test)]
mod tests {
    use fulmen_pjrt::locate::Platform;

    use super::*;
    use crate::passes::tests::{count, texts};
    use crate::{DType, Function, Tensor, checkpoint, grad};

    #[test]
    fn on_tpus_the_gradient_of_a_narrow_weight_is_first() -> crate::Result<()> {
        // The number of barriers in the gradients of a product of 16 rows.
        let barriers = |weight: [usize; 2], platform, recompute| -> crate::Result<usize> {
            let types = [[16, weight[0]], weight].map(|shape| TensorType::new(DType::F32, shape));
            let function = Function::trace("gradients", types, |[x, w]| {
                let product = |[a, b]: [Tensor; 2]| a.matmul(&b).sin().sum_all();
                let both = [x.clone(), w.clone()];
                let loss = if recompute {
                    checkpoint(product, both.clone())
                } else {
                    product(both.clone())
                };
                grad(&loss, &both)
            });
            let texts = texts(&function, 1, platform, "gradient-order")?;
            let of_checkpoint = usize::from(recompute);
            assert_eq!(count(&texts.without, "optimization_barrier"), of_checkpoint);
            Ok(count(&texts.with, "optimization_barrier"))
        };
        assert_eq!(barriers([8, 4], Platform::Tpu, false)?, 1);
        assert_eq!(barriers([8, 8], Platform::Tpu, false)?, 1);
        assert_eq!(barriers([8, 9], Platform::Tpu, false)?, 0);
        assert_eq!(barriers([32, 16], Platform::Tpu, false)?, 0, "more weights than activations");
        assert_eq!(barriers([8, 4], Platform::Cpu, false)?, 0);
        // The one barrier is the checkpoint's.
        assert_eq!(barriers([8, 4], Platform::Tpu, true)?, 1);
        Ok(())
    }
}
