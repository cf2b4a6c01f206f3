//! [`AxisOrder`]: an order of a tensor's axes in a program or in device memory, other than the
//! tensor's own.
//!
//! In a program for a CPU or a TPU, a transpose is not written where it is recorded. The value keeps
//! its axes in the order in which it was computed, and later operations use this order if they can;
//! see `passes/axis_order.rs`.

use crate::TensorType;

/// The tensor's axis that is at each position in the program. It is never the tensor's own order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AxisOrder(Vec<usize>);

impl AxisOrder {
    /// `None` for the tensor's own order.
    pub(crate) fn new(axes: Vec<usize>) -> Option<AxisOrder> {
        let is_standard = axes.iter().copied().eq(0..axes.len());
        (!is_standard).then_some(AxisOrder(axes))
    }

    /// The tensor's axis at each position.
    pub(crate) fn axes(&self) -> &[usize] {
        &self.0
    }

    /// Whether each axis of a tensor of this rank has one position.
    pub(crate) fn fits(&self, rank: usize) -> bool {
        let mut axes = self.0.clone();
        axes.sort_unstable();
        axes.into_iter().eq(0..rank)
    }

    /// The position in this order of each axis of the tensor.
    pub(crate) fn positions(&self) -> Vec<usize> {
        inverse(&self.0)
    }

    /// Puts a list with one entry for each axis of the tensor into this order.
    pub(crate) fn reorder<T: Clone>(&self, entries: &[T]) -> Vec<T> {
        self.0.iter().map(|&axis| entries[axis].clone()).collect()
    }

    /// The order of a value when it is used as the transpose of its tensor. `from` is its order as
    /// the tensor. `permutation` has the axis of the tensor that becomes each axis of the
    /// transpose.
    pub(crate) fn after_transpose(
        from: Option<&AxisOrder>,
        permutation: &[usize],
    ) -> Option<AxisOrder> {
        let positions = inverse(permutation);
        AxisOrder::new(match from {
            Some(order) => order.0.iter().map(|&axis| positions[axis]).collect(),
            None => positions,
        })
    }

    /// The order of the remaining axes when `removed` are removed.
    pub(crate) fn without(&self, removed: &[usize]) -> Option<AxisOrder> {
        let kept = self.0.iter().filter(|axis| !removed.contains(axis));
        AxisOrder::new(
            kept.map(|&axis| axis - removed.iter().filter(|&&other| other < axis).count())
                .collect(),
        )
    }
}

/// The type of a value whose axes are in this order.
pub(crate) fn in_order(ty: &TensorType, order: Option<&AxisOrder>) -> TensorType {
    match order {
        Some(order) => TensorType::new(ty.dtype, order.reorder(&ty.shape)),
        None => ty.clone(),
    }
}

/// Transposes elements of `size` bytes on the host. Axis `i` of the result is axis `permutation[i]`
/// of the elements, whose shape is `dims`. The result has room for all of them.
pub(crate) fn transpose_elements(
    elements: &[u8],
    size: usize,
    dims: &[usize],
    permutation: &[usize],
    result: &mut [u8],
) {
    let mut strides = vec![size; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis];
    }
    let axes: Vec<(usize, usize)> =
        permutation.iter().map(|&axis| (dims[axis], strides[axis])).collect();
    let mut index = vec![0; axes.len()];
    let mut offset = 0;
    for element in result.chunks_exact_mut(size) {
        element.copy_from_slice(&elements[offset..offset + size]);
        for (i, &(count, stride)) in index.iter_mut().zip(&axes).rev() {
            *i += 1;
            offset += stride;
            if *i < count {
                break;
            }
            offset -= count * stride;
            *i = 0;
        }
    }
}

/// The inverse of a permutation.
pub(crate) fn inverse(permutation: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; permutation.len()];
    for (to, &from) in permutation.iter().enumerate() {
        inverse[from] = to;
    }
    inverse
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transpose_and_its_inverse_restore_the_elements() {
        let elements: Vec<u8> = (0..2 * 3 * 4 * 2).collect();
        let dims = [2, 3, 4];
        let permutation = [2, 0, 1];
        let mut transposed = vec![0; elements.len()];
        transpose_elements(&elements, 2, &dims, &permutation, &mut transposed);
        // Element [i, j, k] is at [k, i, j] of the result.
        let from = 2 * ((3 + 2) * 4 + 1);
        let to = 2 * ((2 + 1) * 3 + 2);
        assert_eq!(transposed[to..to + 2], elements[from..from + 2]);
        let mut restored = vec![0; elements.len()];
        transpose_elements(&transposed, 2, &[4, 2, 3], &inverse(&permutation), &mut restored);
        assert_eq!(restored, elements);
    }

    #[test]
    fn an_order_has_each_axis_once() {
        let order = |axes: &[usize]| AxisOrder::new(axes.to_vec()).unwrap();
        assert!(order(&[2, 1, 0]).fits(3));
        assert!(!order(&[2, 1, 0]).fits(4) && !order(&[1, 1, 0]).fits(3));
        assert!(AxisOrder::new(vec![0, 1]).is_none());
    }
}
