//! Solving linear systems with triangular matrices.

use super::cholesky::square;
use super::common_dtype::common_dtype;
use crate::autocast::wide;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::{AsTensor, Shape, Tensor, TensorType};

/// The options of [`Tensor::triangular_solve`]: which triangle holds the matrix, and its side of
/// the equation.
///
/// ```
/// use fulmen_tensor::TriangularSolve;
/// let how = TriangularSolve::upper().right().unit_diagonal();
/// # let _ = how;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct TriangularSolve {
    lower: bool,
    transpose: bool,
    right: bool,
    unit_diagonal: bool,
}

impl TriangularSolve {
    /// Solves `A·X = B`, where `A` is the lower triangle. Elements above the diagonal are not read.
    pub fn lower() -> TriangularSolve {
        TriangularSolve { lower: true, transpose: false, right: false, unit_diagonal: false }
    }

    /// Solves `A·X = B`, where `A` is the upper triangle. Elements below the diagonal are not read.
    pub fn upper() -> TriangularSolve {
        TriangularSolve { lower: false, ..TriangularSolve::lower() }
    }

    /// Replaces `A` by `Aᵀ`.
    pub fn transpose(mut self) -> TriangularSolve {
        self.transpose = !self.transpose;
        self
    }

    /// Puts the matrix on the right: `X·A = B`.
    pub fn right(mut self) -> TriangularSolve {
        self.right = true;
        self
    }

    /// Assumes ones on the diagonal, which is not read.
    pub fn unit_diagonal(mut self) -> TriangularSolve {
        self.unit_diagonal = true;
        self
    }
}

impl Operation for TriangularSolve {
    fn name(&self) -> &'static str {
        "triangular_solve"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        one(inputs[1].clone())
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let a = cx.input(0);
        let x = cx.output();
        let g = cx.cotangent();
        let b = Tensor::apply(self.clone().transpose(), &[a, &g]);
        // The cotangent of the matrix as it appears in the equation.
        let (left, right) = if self.right { (x, &b) } else { (&b, x) };
        let product = if self.right {
            left.transpose(-1, -2).matmul(right)
        } else {
            left.matmul(&right.transpose(-1, -2))
        };
        let whole = if self.transpose { -product.transpose(-1, -2) } else { -product };
        let diagonal = i64::from(self.unit_diagonal);
        let triangle = if self.lower { whole.tril(-diagonal) } else { whole.triu(diagonal) };
        vec![Some(triangle), Some(b)]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let transpose = if self.transpose { "TRANSPOSE" } else { "NO_TRANSPOSE" };
        format!(
            "\"stablehlo.triangular_solve\"({}) <{{left_side = {}, lower = {}, unit_diagonal = {}, \
             transpose_a = #stablehlo<transpose {transpose}>}}> : {}",
            cx.operands(),
            !self.right,
            self.lower,
            self.unit_diagonal,
            cx.signature()
        )
    }
}

impl Tensor {
    /// Solves `A·X = B` for `X`, or the variant in `how` (`torch.linalg.solve_triangular`,
    /// `jax.lax.linalg.triangular_solve`). `A` are the triangular matrices on the last two axes of
    /// this tensor, and `B` the matrices on the last two axes of `b`. The leading axes of both
    /// broadcast. A zero on the diagonal gives infinities or NaNs. 16-bit floats are computed as
    /// f32.
    ///
    /// The gradient is `A⁻ᵀ·g` with respect to `b`, and `−A⁻ᵀ·g·Xᵀ` within the triangle with
    /// respect to `A`. Poisoned if `A` is not square or does not fit `b`, and for integers and
    /// complex numbers.
    ///
    /// ```
    /// use fulmen_tensor::{Tensor, TriangularSolve};
    /// let a = Tensor::from_slice(&[2.0f32, 0.0, 1.0, 4.0], [2, 2]);
    /// let b = Tensor::from_slice(&[2.0f32, 9.0], [2, 1]);
    /// let x = a.triangular_solve(&b, &TriangularSolve::lower());
    /// assert_eq!(x.eval()?.to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn triangular_solve(&self, b: impl AsTensor, options: &TriangularSolve) -> Tensor {
        Tensor::record("triangular_solve", || {
            let b = b.as_tensor();
            let dtype = common_dtype(self, b)?;
            let a = square(&self.to_dtype(dtype))?;
            let b = wide(&b.to_dtype(dtype));
            let (matrix, [.., rows, columns]) = (&a.shape()[a.rank() - 2..], b.shape().dims())
            else {
                return Err(format!(
                    "takes matrices on the last two axes of the right side, not {}",
                    b.ty()
                )
                .into());
            };
            let fits = if options.right { columns } else { rows };
            if matrix[0] != *fits {
                let axis_name = if options.right { "columns" } else { "rows" };
                return Err(format!(
                    "{} has {} unknowns, but the right side, {}, has {fits} {axis_name}",
                    a.ty(),
                    matrix[0],
                    b.ty()
                )
                .into());
            }
            let leading = |t: &Tensor| Shape::from(&t.shape()[..t.rank() - 2]);
            let batch = leading(&a).broadcast(&leading(&b))?;
            let a_shape = [batch.dims(), matrix].concat();
            let b_shape = [batch.dims(), &[*rows, *columns]].concat();
            let x = Tensor::try_apply(
                options.clone(),
                &[&a.broadcast_to(a_shape), &b.broadcast_to(b_shape)],
            )?;
            Ok(x.to_dtype(dtype))
        })
    }
}
