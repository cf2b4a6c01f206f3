//! The common part of the normalizations: arithmetic in f32 or wider, weight and bias, and checks.
//! Each layer says which elements share their statistics.

use fulmen_durable::messages::quantity;
use fulmen_tensor::{Shape, Tensor};

use crate::Parameter;

/// `(x − mean)/√(var + eps)` along `axes`, for `x` in at least f32.
pub(super) fn standardize(x: &Tensor, axes: &[isize], eps: f64) -> Tensor {
    let centred = x - x.mean_keepdim(axes);
    let var = (&centred * &centred).mean_keepdim(axes);
    centred * (var + eps).rsqrt()
}

/// `y·weight + bias`, where both have, or are reshaped to, `shape`.
pub(super) fn affine(
    mut y: Tensor,
    weight: Option<&Parameter>,
    bias: Option<&Parameter>,
    shape: &[usize],
) -> Tensor {
    if let Some(weight) = weight {
        y = &y * weight.get().to_dtype(y.dtype()).reshape(shape);
    }
    if let Some(bias) = bias {
        y = &y + bias.get().to_dtype(y.dtype()).reshape(shape);
    }
    y
}

/// The shape of `[channels]` for an input with its channels on axis 1.
pub(super) fn channel_shape(rank: usize, channels: usize) -> Vec<usize> {
    (0..rank).map(|axis| if axis == 1 { channels } else { 1 }).collect()
}

/// Rejects an input that is not floating-point.
pub(super) fn check_float(x: &Tensor) -> Result<(), String> {
    if x.dtype().is_float() {
        Ok(())
    } else {
        Err(format!("the input {} is not floating-point; convert it with to_dtype()", x.ty()))
    }
}

/// Rejects an input without `channels` channels on axis 1.
pub(super) fn check_channels(x: &Tensor, channels: usize) -> Result<(), String> {
    match x.size(1) {
        actual if actual == channels => Ok(()),
        actual => Err(format!(
            "the input {} has {} on its axis 1, not {channels}",
            x.ty(),
            quantity(actual, "channel")
        )),
    }
}

/// Rejects an input whose last axes are not `shape`, or that is not floating-point.
pub(super) fn check_last_axes(x: &Tensor, shape: &Shape) -> Result<(), String> {
    if shape.rank() == 0 {
        return Err("the normalized shape has no axis; it needs at least one".into());
    }
    if !x.shape().ends_with(shape) {
        return Err(format!("the last axes of the input {} are not {shape}", x.ty()));
    }
    check_float(x)
}
