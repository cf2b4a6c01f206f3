//! Operations with masks whose shapes are known while recording.
//!
//! Out of scope: a selection whose size depends on the mask (PyTorch's `masked_select`, NumPy's
//! `x[mask]`), since the shapes of a program are fixed. [`Tensor::nonzero_static`] gives a fixed
//! number of positions. For sums and means over a mask, use [`Tensor::masked_fill`].

use super::binary::Operand;
use crate::tensor::all_live;
use crate::{AsTensor, DType, Tensor};

impl Tensor {
    /// `value` where `mask` is true, else the elements of this tensor (PyTorch's `masked_fill`).
    /// The mask broadcasts. The gradient flows to the elements that stay, and to `value` if it is a
    /// tensor.
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
        Tensor::record("masked_fill", || {
            let mask = mask.as_tensor();
            all_live([self, mask])?;
            if mask.dtype() != DType::Bool {
                return Err(format!(
                    "the mask must be bool, not {}; make one with lt(), eq() or another comparison",
                    mask.ty()
                )
                .into());
            }
            mask.shape().broadcast(self.shape())?;
            Ok(mask.select(&value.to_tensor_like(self), self))
        })
    }

    /// The positions (i32) of the first `size` nonzero elements, in row-major order:
    /// `[size, rank]`, one row for each element (PyTorch's `nonzero_static`). Surplus rows hold
    /// `fill`, which is −1 by default in PyTorch.
    ///
    /// Poisoned if the tensor has more elements than an i32 can count.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[0i32, 5, 0, 7], [2, 2]);
    /// assert_eq!(x.nonzero_static(3, -1).eval()?.to_vec::<i32>()?, [0, 1, 1, 1, -1, -1]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn nonzero_static(&self, size: usize, fill: i32) -> Tensor {
        Tensor::record("nonzero_static", || {
            self.live()?;
            let count = self.shape().num_elements();
            let rank = self.rank();
            if count > i32::MAX as usize {
                return Err(format!("{} has more elements than an i32 can count", self.ty()).into());
            }
            let padding = Tensor::full(DType::I32, [size, rank], f64::from(fill));
            if size == 0 || rank == 0 && size > 1 || count == 0 || padding.live().is_err() {
                return Ok(padding);
            }
            let is_nonzero = self.to_dtype(DType::Bool).reshape([count]);
            // A stable sort puts the positions of true elements first and keeps their order.
            let first = is_nonzero.not().argsort(0, false);
            let mut rest = first.narrow(0, 0, size.min(count)).pad(
                &Tensor::scalar(0i32),
                &[0],
                &[(size - size.min(count)) as i64],
                &[0],
            );
            let mut columns = Vec::with_capacity(rank);
            for &size in self.shape().iter().rev() {
                columns.push(rest.remainder(size as f64));
                rest = rest / size as f64;
            }
            columns.reverse();
            if columns.is_empty() {
                return Ok(padding);
            }
            let rows = Tensor::stack(&columns, -1);
            let number = Tensor::iota(DType::I32, [size, 1], 0);
            Ok(number.lt(is_nonzero.count_nonzero(0)).select(&rows, &padding))
        })
    }
}
