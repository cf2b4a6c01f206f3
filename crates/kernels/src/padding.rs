//! [`pad`]: whole blocks.

use fulmen_tensor::Tensor;

/// Extends an axis, counted from the last, with zeros to a multiple of `block`.
pub(crate) fn pad(x: &Tensor, from_last: usize, block: usize) -> Tensor {
    let axis = x.rank() - from_last;
    let size = x.shape()[axis];
    let missing = size.next_multiple_of(block) - size;
    if missing == 0 {
        return x.clone();
    }
    let mut high = vec![0; x.rank()];
    high[axis] = missing as i64;
    x.pad(Tensor::zeros(x.dtype(), []), &vec![0; x.rank()], &high, &vec![0; x.rank()])
}
