//! What losses ask of their tensors, and what they say of others.

use fulmen_tensor::{DType, Tensor};

use crate::precision::{precision, wide};

/// The first poisoned tensor, to be passed on.
pub(super) fn poisoned(tensors: &[&Tensor]) -> Option<Tensor> {
    tensors.iter().find(|t| t.fault().is_some()).map(|&t| t.clone())
}

/// Tensors with their names: floating-point numbers of one shape. Else a poisoned tensor.
#[track_caller]
pub(super) fn alike(loss: &str, tensors: &[(&str, &Tensor)]) -> Result<(), Tensor> {
    for (name, tensor) in tensors {
        if tensor.fault().is_some() {
            return Err((*tensor).clone());
        }
        if !tensor.dtype().is_float() {
            let message = format!("the {name} must be floating-point numbers, it is {}", tensor.ty());
            return Err(Tensor::poison(loss, message));
        }
    }
    same_shape(loss, tensors)
}

/// Tensors with their names, of one shape. Else a poisoned tensor.
#[track_caller]
pub(super) fn same_shape(loss: &str, tensors: &[(&str, &Tensor)]) -> Result<(), Tensor> {
    if let Some((_, poisoned)) = tensors.iter().find(|(_, t)| t.fault().is_some()) {
        return Err((*poisoned).clone());
    }
    if tensors.windows(2).all(|pair| pair[0].1.shape() == pair[1].1.shape()) {
        return Ok(());
    }
    let found: Vec<String> = tensors.iter().map(|(name, tensor)| format!("the {name} is {}", tensor.ty())).collect();
    Err(Tensor::poison(loss, format!("{}; make their shapes equal", found.join(", "))))
}

/// A prediction to compute with, and a target of its shape beside it: numbers of any kind, or truth values.
#[track_caller]
pub(super) fn pair(loss: &str, prediction: &Tensor, target: &Tensor) -> Result<(Tensor, Tensor), Tensor> {
    alike(loss, &[("prediction", prediction)])?;
    same_shape(loss, &[("prediction", prediction), ("target", target)])?;
    let target = if target.dtype().is_float() { wide(target) } else { target.to_dtype(precision(prediction.dtype())) };
    Ok((wide(prediction), target))
}

/// A weight that must broadcast to `shape` without widening it; in `dtype`.
#[track_caller]
pub(super) fn weight(loss: &str, name: &str, weight: &Tensor, of: &Tensor, dtype: DType) -> Result<Tensor, Tensor> {
    if weight.fault().is_some() {
        return Err(weight.clone());
    }
    let (small, large) = (weight.shape().dims(), of.shape().dims());
    let fits = small.len() <= large.len()
        && small.iter().rev().zip(large.iter().rev()).all(|(small, large)| *small == 1 || small == large);
    if fits {
        return Ok(weight.to_dtype(dtype));
    }
    let message = format!("the {name} is {}, which does not broadcast to the losses, {}", weight.ty(), of.ty());
    Err(Tensor::poison(loss, message))
}

/// A number that must be finite and at least 0.
#[track_caller]
pub(super) fn at_least_zero(loss: &str, name: &str, value: f64) -> Result<(), Tensor> {
    if value >= 0.0 && value.is_finite() {
        return Ok(());
    }
    Err(Tensor::poison(loss, format!("{name} is a number of at least 0, not {value}")))
}
