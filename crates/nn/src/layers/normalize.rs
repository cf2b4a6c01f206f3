//! What the normalizations have in common: the arithmetic in f32 or wider, weight and bias, and what they refuse. Which
//! elements share their statistics is said by each layer.

use fulmen_tensor::Tensor;

use crate::Parameter;

/// `(x − mean)/√(var + eps)` along `axes`, for `x` in at least f32.
#[track_caller]
pub(super) fn standardize(x: &Tensor, axes: &[isize], eps: f64) -> Tensor {
    let centred = x - x.mean_keepdim(axes);
    let var = (&centred * &centred).mean_keepdim(axes);
    centred * (var + eps).rsqrt()
}

/// `y·weight + bias`, where both have, or are brought to, `shape`.
#[track_caller]
pub(super) fn affine(mut y: Tensor, weight: Option<&Parameter>, bias: Option<&Parameter>, shape: &[usize]) -> Tensor {
    if let Some(weight) = weight {
        y = &y * weight.get().to_dtype(y.dtype()).reshape(shape);
    }
    if let Some(bias) = bias {
        y = &y + bias.get().to_dtype(y.dtype()).reshape(shape);
    }
    y
}

/// The shape of `[channels]` beside an input with its channels on axis 1.
pub(super) fn beside_channels(rank: usize, channels: usize) -> Vec<usize> {
    (0..rank).map(|axis| if axis == 1 { channels } else { 1 }).collect()
}

/// Why an input cannot be normalized, if it is not of floating-point numbers.
pub(super) fn not_float(x: &Tensor) -> Option<String> {
    let refused = !x.dtype().is_float();
    refused.then(|| format!("the input {} is not floating-point; convert it with to_dtype()", x.ty()))
}

/// Why an input cannot be normalized by channel, if it has not `channels` of them on axis 1.
pub(super) fn other_channels(x: &Tensor, channels: usize) -> Option<String> {
    let (ty, found) = (x.ty(), x.size(1));
    (found != channels).then(|| format!("the input {ty} has {found} channels on its axis 1, not {channels}"))
}
