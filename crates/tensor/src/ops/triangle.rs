//! The lower and upper triangles of matrices. Triangles of `true` are attention masks.

use super::unary::methods;
use crate::scope::Refusal;
use crate::{DType, Tensor, TensorType};

methods! {
    /// The lower triangle of the matrices on the last two axes: zeros (or `false`) where
    /// `column > row + diagonal` (PyTorch's and NumPy's `tril`). Poisoned if the rank is below 2.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor};
    /// // A position attends to itself and to those before it.
    /// let causal = Tensor::ones(DType::Bool, [3, 3]).tril(0);
    /// let scores = Tensor::zeros(DType::F32, [3, 3]);
    /// let weights = causal.select(&scores, &Tensor::full(DType::F32, [], f64::NEG_INFINITY)).softmax(-1);
    /// assert_eq!(weights.eval()?.to_vec::<f32>()?[..6], [1.0, 0.0, 0.0, 0.5, 0.5, 0.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    tril(diagonal: i64) -> Tensor, |x| x.triangle(true, diagonal);

    /// The upper triangle of the matrices on the last two axes: zeros (or `false`) where
    /// `column < row + diagonal` (PyTorch's and NumPy's `triu`). Poisoned if the rank is below 2.
    triu(diagonal: i64) -> Tensor, |x| x.triangle(false, diagonal);
}

impl Tensor {
    fn triangle(&self, lower: bool, diagonal: i64) -> Result<Tensor, Refusal> {
        self.live()?;
        let [.., rows, columns] = self.shape().dims() else {
            return Err(format!(
                "{} has fewer than two axes, but rows and columns are needed",
                self.shape()
            )
            .into());
        };
        // Clamped to just beyond the corners, where nothing changes any more, so that nothing
        // overflows.
        let diagonal = diagonal.clamp(-(*rows as i64) - 1, *columns as i64 + 1) as f64;
        let dtype =
            if rows.saturating_add(*columns) < i32::MAX as usize { DType::I32 } else { DType::I64 };
        let matrix = TensorType::new(dtype, [*rows, *columns]);
        let limit = Tensor::iota(dtype, &matrix.shape, 0) + diagonal;
        let column = Tensor::iota(dtype, &matrix.shape, 1);
        let mask = if lower { column.le(limit) } else { column.ge(limit) };
        Ok(mask.select(self, &Tensor::zeros(self.dtype(), [])))
    }
}
