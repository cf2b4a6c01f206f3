//! Elements chosen by a mask, with shapes that are known while recording.
//!
//! Not here: a selection of as many elements as the mask has `true` (PyTorch's `masked_select`, NumPy's `x[mask]`). A
//! program has one shape, so there is none; [`Tensor::nonzero_static`] gives a number of places that the user names, and
//! sums or means over a mask are those of [`Tensor::masked_fill`].

use super::binary::Operand;
use crate::{AsTensor, DType, Tensor};

impl Tensor {
    /// `value` where the booleans of `mask`, which broadcast, are true, elsewhere this tensor (PyTorch's `masked_fill`).
    /// The gradient flows to what was kept, and to a `value` that is a tensor.
    ///
    /// Poisoned if `mask` is not `bool`, or if the shapes do not broadcast.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1.0f32, -2.0, 3.0], [3]);
    /// assert_eq!(x.masked_fill(&x.lt(0.0), 0.0).sum_all().eval()?.to_vec::<f32>()?, [4.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn masked_fill(&self, mask: impl AsTensor, value: impl Operand) -> Tensor {
        let mask = mask.as_tensor();
        if let Some(poisoned) = [self, mask].into_iter().find(|t| t.fault().is_some()) {
            return poisoned.clone();
        }
        if mask.dtype() != DType::Bool {
            let message =
                format!("the mask must be bool, it is {}; make it with lt(), eq() or another comparison", mask.ty());
            return Tensor::poison("masked_fill", message);
        }
        match mask.shape().broadcast(self.shape()) {
            Ok(_) => mask.select(&value.beside(self), self),
            Err(message) => Tensor::poison("masked_fill", message),
        }
    }

    /// The places (i32) of the first `size` elements that are not 0, in row-major order: `[size, rank]`, one row of
    /// indices an element; rows that are left over hold `fill` (PyTorch's `nonzero_static`, whose default is −1).
    ///
    /// Poisoned if there are more elements than an i32 counts.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[0i32, 5, 0, 7], [2, 2]);
    /// assert_eq!(x.nonzero_static(3, -1).eval()?.to_vec::<i32>()?, [0, 1, 1, 1, -1, -1]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn nonzero_static(&self, size: usize, fill: i32) -> Tensor {
        if self.fault().is_some() {
            return self.clone();
        }
        let (count, rank) = (self.shape().num_elements(), self.rank());
        if count > i32::MAX as usize {
            return Tensor::poison("nonzero_static", format!("{} has more elements than an i32 counts", self.ty()));
        }
        let filled = Tensor::full(DType::I32, [size, rank], f64::from(fill));
        if size == 0 || rank == 0 && size > 1 || count == 0 || filled.fault().is_some() {
            return filled;
        }
        let found = self.to_dtype(DType::Bool).reshape([count]);
        // A stable sort puts the places that are true first, and keeps their order.
        let first = found.not().argsort(0, false);
        let kept = first.narrow(0, 0, size.min(count));
        let places = kept.pad(&Tensor::scalar(0i32), &[0], &[(size - size.min(count)) as i64], &[0]);
        let mut columns = Vec::with_capacity(rank);
        let mut rest = places;
        for &size in self.shape().iter().rev() {
            columns.push(rest.remainder(size as f64));
            rest = rest / size as f64;
        }
        columns.reverse();
        if columns.is_empty() {
            return filled;
        }
        let rows = Tensor::stack(&columns.iter().collect::<Vec<_>>(), -1);
        let number = Tensor::iota(DType::I32, [size, 1], 0);
        number.lt(found.count_nonzero(&[0], false)).select(&rows, &filled)
    }
}
