//! What the attention of all these models shares: heads split and joined, and which token sees which.

use fulmen_tensor::Tensor;

/// `[batch, length, heads·width]` to `[batch, heads, length, width]`.
pub(crate) fn split_heads(x: &Tensor, heads: usize) -> Tensor {
    x.unflatten(-1, &[heads as isize, -1]).transpose(1, 2)
}

/// `[batch, heads, length, width]` to `[batch, length, heads·width]`.
pub(crate) fn join_heads(x: &Tensor) -> Tensor {
    x.transpose(1, 2).flatten(-2, -1)
}
