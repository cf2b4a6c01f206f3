//! Diagonals: taken out of matrices, put into them, summed. By masks, which work on a matrix that is sharded.

use super::reduce::Reducer;
use super::unary::methods;
use crate::scope::Refusal;
use crate::{DType, Tensor, TensorType};

/// Where the column is `offset` to the right of the row, in the last two axes of a tensor of `rank` axes.
fn on_diagonal(rank: usize, rows: usize, columns: usize, offset: i64) -> Tensor {
    // Beyond the corners there is nothing, and nothing overflows.
    let offset = offset.clamp(-(rows as i64) - 1, columns as i64 + 1) as f64;
    let dtype = if rows.saturating_add(columns) < i32::MAX as usize { DType::I32 } else { DType::I64 };
    let mut shape = vec![1; rank];
    (shape[rank - 2], shape[rank - 1]) = (rows, columns);
    let row = Tensor::iota(dtype, shape.clone(), -2);
    Tensor::iota(dtype, shape, -1).eq(row + offset)
}

/// How long the diagonal `offset` of a matrix is.
fn length(rows: usize, columns: usize, offset: i64) -> usize {
    let skipped = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
    match offset >= 0 {
        true => rows.min(columns.saturating_sub(skipped)),
        false => rows.saturating_sub(skipped).min(columns),
    }
}

methods! {
    /// The diagonals of the matrices on the axes `row` and `column`, which vanish; the diagonal becomes the last axis
    /// (PyTorch's `diagonal`). `offset` counts to the right of the main one, negative down from it; of one that lies
    /// outside there is no element.
    ///
    /// Poisoned if the two axes are the same, or if there is no such axis.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]);
    /// assert_eq!(x.diagonal(0, 0, 1).eval()?.to_vec::<f32>()?, [1.0, 5.0]);
    /// assert_eq!(x.diagonal(1, 0, 1).eval()?.to_vec::<f32>()?, [2.0, 6.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    diagonal(offset: i64, row: isize, column: isize) -> Tensor, |x| x.diagonals(offset, row, column);

    /// Matrices, on two new last axes, that have the elements of the last axis on their diagonal `offset` and zeros (or
    /// `false`) elsewhere (PyTorch's `diag_embed`): as large as the diagonal and the offset need.
    ///
    /// Poisoned for a scalar.
    diag_embed(offset: i64) -> Tensor, |x| x.embedded(offset);

    /// Of a vector the matrix with it on its diagonal `offset`, [`Tensor::diag_embed`]; of a matrix the vector on its
    /// diagonal, [`Tensor::diagonal`] (PyTorch's `diag`). Poisoned for any other rank.
    diag(offset: i64) -> Tensor, |x| match x.rank() {
        1 => x.embedded(offset),
        2 => x.diagonals(offset, 0, 1),
        _ => Err(format!("takes a vector or a matrix, not {}", x.shape()).into()),
    };

    /// The sum of the main diagonal of the matrices on the last two axes, which vanish.
    ///
    /// Poisoned below rank 2, or for booleans.
    trace() -> Tensor, |x| match x.rank() {
        0 | 1 => Err(format!("{} has fewer than two axes, but rows and columns are needed", x.shape()).into()),
        _ => Ok(x.diagonals(0, -2, -1)?.reduce("trace", Reducer::Sum, &[-1], false)),
    };
}

impl Tensor {
    /// [`Tensor::diagonal`] for any method.
    pub(super) fn diagonals(&self, offset: i64, row: isize, column: isize) -> Result<Tensor, Refusal> {
        let shape = self.live()?.shape();
        let (row, column) = (shape.axis(row)?, shape.axis(column)?);
        if row == column {
            return Err(format!("rows and columns are the same axis {row} of {shape}").into());
        }
        let mut order: Vec<usize> = (0..self.rank()).filter(|&a| a != row && a != column).collect();
        order.extend([row, column]);
        let x = self.permuted(order);
        let (rank, rows, columns) = (x.rank(), self.shape()[row], self.shape()[column]);
        let n = length(rows, columns, offset);
        if n == 0 {
            let mut to = x.shape().to_vec();
            to.truncate(rank - 2);
            to.push(0);
            return Ok(Tensor::zeros(self.dtype(), to));
        }
        let kept = on_diagonal(rank, rows, columns, offset).select(&x, &Tensor::zeros(self.dtype(), []));
        let reducer = if self.dtype() == DType::Bool { Reducer::Or } else { Reducer::Sum };
        // Each row from the first of the diagonal on has one element of it, which nothing but zeros is added to.
        let found = kept.reduce("diagonal", reducer, &[-1], false);
        Ok(found.narrow(-1, usize::try_from(-offset).unwrap_or(0), n))
    }

    fn embedded(&self, offset: i64) -> Result<Tensor, Refusal> {
        self.live()?;
        if self.rank() == 0 {
            return Err("a scalar has no axis to put on a diagonal".into());
        }
        let skipped = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
        let n = self.size(-1).saturating_add(skipped);
        let mut to = self.shape().to_vec();
        to.push(n);
        to[self.rank() - 1] = n;
        let zero = Tensor::zeros(self.dtype(), []);
        if !TensorType::new(self.dtype(), to.clone()).is_addressable() {
            return Err(format!(
                "matrices of {n} rows and columns of {}: more bytes than a program can address",
                self.ty()
            )
            .into());
        }
        // Above the main diagonal the elements are in the first rows, below it in the first columns.
        let (mut high, none) = (vec![0; self.rank()], vec![0; self.rank()]);
        high[self.rank() - 1] = skipped as i64;
        let padded = self.pad(&zero, &vec![0; self.rank()], &high, &none);
        let spread = padded.unsqueeze(if offset >= 0 { -1 } else { -2 });
        Ok(on_diagonal(to.len(), n, n, offset).select(&spread.broadcast_to(to), &zero))
    }

    /// The identity matrix, ones (or `true`) on the main diagonal and zeros elsewhere: `[rows, columns]`.
    ///
    /// Poisoned if it has more than 2⁴⁷ bytes.
    #[track_caller]
    pub fn eye(dtype: DType, rows: usize, columns: usize) -> Tensor {
        Tensor::record("eye", || {
            let ty = TensorType::new(dtype, [rows, columns]);
            if !ty.is_addressable() {
                return Err(ty.too_large().into());
            }
            Ok(on_diagonal(2, rows, columns, 0).select(&Tensor::ones(dtype, []), &Tensor::zeros(dtype, [])))
        })
    }
}
