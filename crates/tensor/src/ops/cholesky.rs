//! The Cholesky factor of symmetric positive definite matrices, and linear systems solved with it.

use super::dtype_set::DTypeSet;
use super::triangular_solve::TriangularSolve;
use super::unary::methods;
use crate::autocast::wide;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::scope::Refusal;
use crate::{AsTensor, Tensor, TensorType};

/// Reads the lower triangle of its operand.
#[derive(Debug)]
struct Cholesky;

impl Operation for Cholesky {
    fn name(&self) -> &'static str {
        "cholesky"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        one(inputs[0].clone())
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let l = cx.output();
        let g = cx.cotangent();
        // The symmetric part of L⁻ᵀ·P·L⁻¹, where P is the lower triangle of Lᵀ·g with its diagonal
        // halved.
        let product = l.transpose(-1, -2).matmul(&g).tril(0);
        let p = &product - &(&product - product.tril(-1)) * 0.5;
        let options = TriangularSolve::lower().transpose();
        let left = l.triangular_solve(&p, &options);
        let s = l.triangular_solve(&left.transpose(-1, -2), &options);
        vec![Some((&s + s.transpose(-1, -2)) * 0.5)]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!("stablehlo.cholesky {}, lower = true : {}", cx.operand(0), cx.result().stablehlo())
    }
}

/// Checks for square matrices of floats, and converts 16-bit floats to f32.
pub(super) fn square(a: &Tensor) -> Result<Tensor, Refusal> {
    a.live()?;
    DTypeSet::Floats.check(a.dtype())?;
    match a.shape().dims() {
        [.., rows, columns] if rows == columns => Ok(wide(a)),
        _ => Err(format!("takes square matrices on the last two axes, not {}", a.ty()).into()),
    }
}

methods! {
    /// The lower triangular `L` with `L·Lᵀ = A` for each matrix `A` on the last two axes
    /// (`torch.linalg.cholesky`, `jax.numpy.linalg.cholesky`). Only the symmetric part `(A + Aᵀ)/2`
    /// is used. The result is NaN where a matrix is not positive definite. 16-bit floats are
    /// computed as f32.
    ///
    /// The gradient is symmetric. Poisoned if the last two axes differ in size, and for integers
    /// and complex numbers.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let a = Tensor::from_slice(&[4.0f32, 2.0, 2.0, 5.0], [2, 2]);
    /// assert_eq!(a.cholesky().eval()?.to_vec::<f32>()?, [2.0, 0.0, 1.0, 2.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    cholesky() -> Tensor, |x| {
        let a = square(x)?;
        let factor = Tensor::try_apply(Cholesky, &[&((&a + a.transpose(-1, -2)) * 0.5)])?;
        // The elements above the diagonal are unspecified.
        Ok(factor.tril(0).to_dtype(x.dtype()))
    };

    /// Solves `L·Lᵀ·X = B` for `X` by two triangular solves (`torch.cholesky_solve`). This tensor
    /// is `B`; `factor` is the Cholesky factor `L`. The leading axes of both broadcast.
    cholesky_solve(factor: impl AsTensor) -> Tensor, |x| {
        let factor = factor.as_tensor();
        let half = factor.triangular_solve(x, &TriangularSolve::lower());
        Ok(factor.triangular_solve(&half, &TriangularSolve::lower().transpose()))
    };
}
