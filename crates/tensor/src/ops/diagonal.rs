//! Diagonals: extracted, embedded and summed. They are computed by masks, which also work on
//! sharded matrices.

use super::reduce::Reducer;
use super::unary::methods;
use crate::scope::Refusal;
use crate::{DType, Tensor, TensorType};

/// True where `column = row + offset` on the last two axes of a tensor of `rank` axes.
fn diagonal_mask(rank: usize, rows: usize, columns: usize, offset: i64) -> Tensor {
    // Clamped to just beyond the corners, so that nothing overflows.
    let offset = offset.clamp(-(rows as i64) - 1, columns as i64 + 1) as f64;
    let dtype =
        if rows.saturating_add(columns) < i32::MAX as usize { DType::I32 } else { DType::I64 };
    let mut shape = vec![1; rank];
    (shape[rank - 2], shape[rank - 1]) = (rows, columns);
    let row = Tensor::iota(dtype, shape.clone(), -2);
    Tensor::iota(dtype, shape, -1).eq(row + offset)
}

/// The length of the diagonal `offset` of a matrix.
fn length(rows: usize, columns: usize, offset: i64) -> usize {
    let skipped = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
    if offset >= 0 {
        rows.min(columns.saturating_sub(skipped))
    } else {
        rows.saturating_sub(skipped).min(columns)
    }
}

methods! {
    /// The diagonals of the matrices on the axes `row` and `column`. These two axes are removed,
    /// and the diagonal becomes the last axis (PyTorch's `diagonal`). A positive `offset` selects a
    /// diagonal above the main one, a negative one below it. A diagonal outside of the matrix is
    /// empty.
    ///
    /// Poisoned if the two axes are equal, or if one does not exist.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]);
    /// assert_eq!(x.diagonal(0, 0, 1).eval()?.to_vec::<f32>()?, [1.0, 5.0]);
    /// assert_eq!(x.diagonal(1, 0, 1).eval()?.to_vec::<f32>()?, [2.0, 6.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    diagonal(offset: i64, row: isize, column: isize) -> Tensor, |x| x.diagonals(offset, row, column);

    /// Embeds the last axis as the diagonal `offset` of matrices on two new last axes, with zeros
    /// (or `false`) elsewhere (PyTorch's `diag_embed`). The matrices are square, of size
    /// `n + |offset|`.
    ///
    /// Poisoned for a scalar.
    diag_embed(offset: i64) -> Tensor, |x| x.embedded(offset);

    /// For a vector, the matrix with it on its diagonal `offset`, like [`Tensor::diag_embed`]. For
    /// a matrix, the vector on its diagonal, like [`Tensor::diagonal`] (PyTorch's and NumPy's
    /// `diag`). Poisoned for any other rank.
    diag(offset: i64) -> Tensor, |x| match x.rank() {
        1 => x.embedded(offset),
        2 => x.diagonals(offset, 0, 1),
        _ => Err(format!("takes a vector or a matrix, not {}", x.shape()).into()),
    };

    /// The sum of the main diagonal of the matrices on the last two axes, which are removed.
    ///
    /// Poisoned below rank 2, or for booleans.
    trace() -> Tensor, |x| match x.rank() {
        0 | 1 => Err(format!("{} has fewer than two axes, but rows and columns are needed", x.shape()).into()),
        _ => Ok(x.diagonals(0, -2, -1)?.reduce("trace", Reducer::Sum, &[-1], false)),
    };
}

impl Tensor {
    /// The implementation of [`Tensor::diagonal`], for several methods.
    pub(super) fn diagonals(
        &self,
        offset: i64,
        row: isize,
        column: isize,
    ) -> Result<Tensor, Refusal> {
        let shape = self.live()?.shape();
        let row = shape.axis(row)?;
        let column = shape.axis(column)?;
        if row == column {
            return Err(format!("rows and columns are the same axis {row} of {shape}").into());
        }
        let mut order: Vec<usize> = (0..self.rank()).filter(|&a| a != row && a != column).collect();
        order.extend([row, column]);
        let x = self.permute_axes(order);
        let rank = x.rank();
        let rows = self.shape()[row];
        let columns = self.shape()[column];
        let n = length(rows, columns, offset);
        if n == 0 {
            let mut shape_without_diagonal = x.shape().to_vec();
            shape_without_diagonal.truncate(rank - 2);
            shape_without_diagonal.push(0);
            return Ok(Tensor::zeros(self.dtype(), shape_without_diagonal));
        }
        let masked =
            diagonal_mask(rank, rows, columns, offset).select(&x, &Tensor::zeros(self.dtype(), []));
        let reducer = if self.dtype() == DType::Bool { Reducer::Or } else { Reducer::Sum };
        // Each row that meets the diagonal has one of its elements; all others in the row are
        // zeros.
        let diagonal = masked.reduce("diagonal", reducer, &[-1], false);
        Ok(diagonal.narrow(-1, usize::try_from(-offset).unwrap_or(0), n))
    }

    fn embedded(&self, offset: i64) -> Result<Tensor, Refusal> {
        self.live()?;
        if self.rank() == 0 {
            return Err("a scalar has no axis to put on a diagonal".into());
        }
        let skipped = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
        let n = self.size(-1).saturating_add(skipped);
        let mut shape = self.shape().to_vec();
        shape.push(n);
        shape[self.rank() - 1] = n;
        let zero = Tensor::zeros(self.dtype(), []);
        if !TensorType::new(self.dtype(), shape.clone()).is_addressable() {
            return Err(format!(
                "matrices of {n} rows and columns of {}: more bytes than a program can address",
                self.ty()
            )
            .into());
        }
        // Above the main diagonal the elements are in the first rows; below it, in the first
        // columns.
        let mut high = vec![0; self.rank()];
        let zeros = vec![0; self.rank()];
        high[self.rank() - 1] = skipped as i64;
        let padded = self.pad(&zero, &vec![0; self.rank()], &high, &zeros);
        let spread = padded.unsqueeze(if offset >= 0 { -1 } else { -2 });
        Ok(diagonal_mask(shape.len(), n, n, offset).select(&spread.broadcast_to(shape), &zero))
    }

    /// The identity matrix `[rows, columns]`: ones (or `true`) on the main diagonal, zeros
    /// elsewhere (PyTorch's and NumPy's `eye`).
    ///
    /// Poisoned if it has more than 2⁴⁷ bytes.
    #[track_caller]
    pub fn eye(dtype: DType, rows: usize, columns: usize) -> Tensor {
        Tensor::record("eye", || {
            let ty = TensorType::new(dtype, [rows, columns]);
            if !ty.is_addressable() {
                return Err(ty.too_large().into());
            }
            Ok(diagonal_mask(2, rows, columns, 0)
                .select(&Tensor::ones(dtype, []), &Tensor::zeros(dtype, [])))
        })
    }
}
