//! Padding of an axis to whole blocks, for loops over blocks.

use fulmen_tensor::Tensor;

/// Extends an axis, counted from the last, with zeros or false to a multiple of `block`. An axis of
/// one element stays, as it broadcasts.
pub(crate) fn pad(x: &Tensor, from_last: usize, block: usize) -> Tensor {
    let axis = x.rank() - from_last;
    let missing = x.size(axis as isize).next_multiple_of(block) - x.size(axis as isize);
    if missing == 0 || x.size(axis as isize) == 1 {
        return x.clone();
    }
    let mut high = vec![0; x.rank()];
    high[axis] = missing as i64;
    x.pad(Tensor::zeros(x.dtype(), []), &vec![0; x.rank()], &high, &vec![0; x.rank()])
}
