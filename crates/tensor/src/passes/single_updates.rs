//! Scatters of one update, about which XLA is wrong.

use super::Replacement;
use crate::operation::Operation;
use crate::ops::scatter::{Combine, Scatter};
use crate::region::{Region, parameters};
use crate::{DType, Tensor, TensorType};

/// If there is one update, or one in each batch, a second one, whose index is out of range. Devices
/// that share the batches may have one update each.
///
/// XLA turns a scatter of one update into a dynamic slice and its update. Each device takes its
/// part of a replicated operand by a dynamic slice, too. XLA merges the two slices, but not how
/// their starts are clamped: on devices that do not have the index, the first element becomes
/// one of another device.
pub(super) fn with_second_update(
    operation: &dyn Operation,
    inputs: &[&TensorType],
) -> Option<Replacement> {
    let scatter = operation.downcast::<Scatter>()?;
    let [operand, indices, updates] = inputs else { return None };
    if updates.shape.num_elements() == 0 {
        return None;
    }
    if !scatter.dimensions.has_one_index(&indices.shape) {
        return with_second_update_of_batches(scatter, inputs);
    }
    let (dimensions, rest) = scatter.dimensions.for_list(&operand.shape);
    let components = indices.shape.num_elements();
    let past_end = operand.shape.iter().copied().max().unwrap_or(0) as f64;
    let parameters = parameters(scatter.method, "operand", inputs.iter().copied());
    let index = parameters[1].reshape([1, components]);
    let dropped = Tensor::full(index.dtype(), [1, components], past_end);
    let update = parameters[2].reshape([&[1], &rest[..]].concat());
    let two_updates = Scatter { method: scatter.method, combine: scatter.combine, dimensions };
    let result = Tensor::apply(
        two_updates,
        &[
            &parameters[0],
            &Tensor::concatenate(&[&index, &dropped], 0),
            &Tensor::concatenate(&[&update, &update], 0),
        ],
    );
    Some(Replacement::Expression(Region { parameters, results: vec![result] }))
}

fn with_second_update_of_batches(scatter: &Scatter, inputs: &[&TensorType]) -> Option<Replacement> {
    let [axis, of_updates] = scatter.dimensions.axes_of_one_index(&inputs[1].shape)?;
    let past_end = inputs[0].shape.iter().copied().max().unwrap_or(0) as f64;
    let parameters = parameters(scatter.method, "operand", inputs.iter().copied());
    let [operand, indices, updates] = &parameters[..] else { return None };
    let dropped = Tensor::full(indices.dtype(), indices.shape(), past_end);
    let two_updates = Scatter {
        method: scatter.method,
        combine: scatter.combine,
        dimensions: scatter.dimensions.clone(),
    };
    let result = Tensor::apply(
        two_updates,
        &[
            operand,
            &Tensor::concatenate(&[indices, &dropped], axis as isize),
            &Tensor::concatenate(&[updates, updates], of_updates as isize),
        ],
    );
    Some(Replacement::Expression(Region { parameters: parameters.clone(), results: vec![result] }))
}

/// If there is one update, a slice of the operand, combined with the update, and the update of
/// that slice.
///
/// XLA does the same, but the start of its slice may be out of range. Where the operand is a
/// slice too, XLA merges both, and forgets that the start is clamped: the last element, whose
/// update is dropped, becomes one after the operand's slice. In JAX, with `x = arange(4.)` and
/// `i = 2` as arguments, `lax.dynamic_slice(x, [0], [2]).at[i].add(1, mode="drop")` is `[0, 2]`
/// instead of `[0, 1]`.
pub(super) fn as_update_of_slice(
    operation: &dyn Operation,
    inputs: &[&TensorType],
) -> Option<Replacement> {
    let scatter = operation.downcast::<Scatter>()?;
    let [operand, indices, updates] = inputs else { return None };
    let is_empty = operand.shape.num_elements() == 0 || updates.shape.num_elements() == 0;
    if is_empty || !scatter.dimensions.has_one_index(&indices.shape) {
        return None;
    }
    let parameters = parameters(scatter.method, "operand", inputs.iter().copied());
    let [x, indices, updates] = &parameters[..] else { return None };
    let components = indices.to_dtype(DType::I64).reshape([indices.shape().num_elements()]);
    let mut starts = vec![Tensor::zeros(DType::I64, []); x.rank()];
    let mut sizes = x.shape().to_vec();
    let mut is_inside = Tensor::ones(DType::Bool, []);
    for (k, &axis) in scatter.dimensions.mapped_axes().iter().enumerate() {
        let start = components.index(0, k as isize);
        is_inside = is_inside.and(start.ge(0.0)).and(start.lt(sizes[axis] as f64));
        starts[axis] = start;
        sizes[axis] = 1;
    }
    // This clamps the starts.
    let current = x.dynamic_slice(&starts, &sizes);
    let update = updates.reshape(sizes);
    let combined = match scatter.combine {
        Combine::Set => update,
        Combine::Add => &current + update,
        Combine::Mul => &current * update,
        Combine::Min => current.minimum(update),
        Combine::Max => current.maximum(update),
    };
    let changed = is_inside.select(&combined, &current);
    let result = x.dynamic_update_slice(&changed, &starts);
    Some(Replacement::Expression(Region { parameters: parameters.clone(), results: vec![result] }))
}

#[cfg(test)]
mod tests {
    use fulmen_pjrt::locate::Platform;

    use super::*;
    use crate::Function;
    use crate::passes::tests::{count, texts};

    /// Adds one update to a vector.
    fn one_update() -> Function {
        let types = [TensorType::new(DType::F32, [8]), TensorType::new(DType::I32, [1, 1])];
        Function::trace("f", types, |[x, w]| {
            let update = Tensor::ones(DType::F32, [1]);
            x.scatter_nd(&w, &update, Combine::Add)
        })
    }

    #[test]
    fn one_update_clamps_the_start_of_its_slice_itself() -> crate::Result<()> {
        let texts = texts(&one_update(), 1, Platform::Tpu, "updates")?;
        assert_eq!(texts.with.matches("\"stablehlo.scatter\"").count(), 0);
        assert_eq!(count(&texts.with, "dynamic_update_slice "), 1);
        assert_eq!(texts.without.matches("\"stablehlo.scatter\"").count(), 1);
        Ok(())
    }

    #[test]
    fn on_several_devices_a_scatter_has_two_updates() -> crate::Result<()> {
        let texts = texts(&one_update(), 4, Platform::Tpu, "updates-on-devices")?;
        assert_eq!(texts.with.matches("\"stablehlo.scatter\"").count(), 1);
        assert_eq!(texts.without.matches("\"stablehlo.scatter\"").count(), 0);
        Ok(())
    }
}
