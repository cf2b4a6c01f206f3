//! [`AxisOrder`]: an order of a tensor's axes in a program, other than the tensor's own.
//!
//! In a program for a CPU, a transpose is not written where it is recorded. The value keeps its
//! axes in the order in which it was computed, and later operations use this order if they can; see
//! `emit.rs`. XLA's CPU compiler computes convolutions with the features last, so values that pass
//! from one convolution to the next need no transpose.

/// The tensor's axis that is at each position in the program. It is never the tensor's own order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AxisOrder(Vec<usize>);

impl AxisOrder {
    /// `None` for the tensor's own order.
    fn new(axes: Vec<usize>) -> Option<AxisOrder> {
        let is_standard = axes.iter().copied().eq(0..axes.len());
        (!is_standard).then_some(AxisOrder(axes))
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

/// The inverse of a permutation.
pub(crate) fn inverse(permutation: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; permutation.len()];
    for (to, &from) in permutation.iter().enumerate() {
        inverse[from] = to;
    }
    inverse
}
