//! Checks of the arguments of losses, and their messages.

use fulmen_tensor::{DType, Refusal, Tensor};

use crate::precision::{precision, wide};

/// Checks named tensors: floating-point, with the same shape.
pub(super) fn same_floats(tensors: &[(&str, &Tensor)]) -> Result<(), Refusal> {
    for (name, tensor) in tensors {
        if !tensor.live()?.dtype().is_float() {
            return Err(format!(
                "the {name} must be floating-point numbers, but it is {}",
                tensor.ty()
            )
            .into());
        }
    }
    same_shape(tensors)
}

/// Checks that named tensors have the same shape.
pub(super) fn same_shape(tensors: &[(&str, &Tensor)]) -> Result<(), Refusal> {
    tensors.iter().try_for_each(|(_, tensor)| tensor.live().map(drop))?;
    if tensors.windows(2).all(|pair| pair[0].1.shape() == pair[1].1.shape()) {
        return Ok(());
    }
    let types: Vec<String> =
        tensors.iter().map(|(name, tensor)| format!("the {name} is {}", tensor.ty())).collect();
    Err(format!("{}; make their shapes equal", types.join(", ")).into())
}

/// A prediction in the dtype of the computation, and a target of the same shape, numbers of any
/// kind or booleans.
pub(super) fn pair(prediction: &Tensor, target: &Tensor) -> Result<(Tensor, Tensor), Refusal> {
    same_floats(&[("prediction", prediction)])?;
    same_shape(&[("prediction", prediction), ("target", target)])?;
    let target = if target.dtype().is_float() {
        wide(target)
    } else {
        target.to_dtype(precision(prediction.dtype()))
    };
    Ok((wide(prediction), target))
}

/// A weight that must broadcast to `shape` without enlarging it, converted to `dtype`.
pub(super) fn weight(
    name: &str,
    weight: &Tensor,
    losses: &Tensor,
    dtype: DType,
) -> Result<Tensor, Refusal> {
    let small = weight.live()?.shape().dims();
    let large = losses.shape().dims();
    let broadcasts = small.len() <= large.len()
        && small
            .iter()
            .rev()
            .zip(large.iter().rev())
            .all(|(small, large)| *small == 1 || small == large);
    if broadcasts {
        return Ok(weight.to_dtype(dtype));
    }
    let ty = weight.ty();
    let losses = losses.ty();
    Err(format!("the {name} is {ty}, which does not broadcast to the losses, {losses}").into())
}

/// Checks that a number is finite and at least 0.
pub(super) fn at_least_zero(name: &str, value: f64) -> Result<(), Refusal> {
    if value >= 0.0 && value.is_finite() {
        return Ok(());
    }
    Err(format!("{name} must be at least 0, but it is {value}").into())
}
