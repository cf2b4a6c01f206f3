//! Elementwise rounding of floats, and division that rounds down. These are piecewise constant, so
//! their derivatives are 0.

use super::unary::{composed, unary};
use crate::Tensor;

unary! {
    /// Rounds `x` up to an integer, elementwise. The derivative is 0.
    ceil, Ceil, "stablehlo.ceil", Floats, |x, y, g| None;

    /// Rounds `x` down to an integer, elementwise. The derivative is 0.
    floor, Floor, "stablehlo.floor", Floats, |x, y, g| None;

    /// Rounds `x` to the nearest integer, ties to even, elementwise (PyTorch's and NumPy's
    /// `round`). The derivative is 0.
    round, RoundNearestEven, "stablehlo.round_nearest_even", Floats, |x, y, g| None;

    /// Rounds `x` to the nearest integer, ties away from 0, elementwise (Rust's and C's `round`).
    /// The derivative is 0.
    round_half_away, RoundNearestAfz, "stablehlo.round_nearest_afz", Floats, |x, y, g| None;
}

composed! {
    /// Rounds `x` toward 0 to an integer, elementwise. The derivative is 0.
    trunc, Floats, |x| x.lt(0.0).select(&x.ceil(), &x.floor());

    /// `x − trunc(x)`, elementwise. It has the sign of `x`. The derivative is 1.
    frac, Floats, |x| &x - x.trunc();

    /// `a/b` rounded down, elementwise, for integers and floats (Python's `//`). The derivative is
    /// zero. For integer division that rounds toward zero, use [`Tensor::div`]. An integer divided
    /// by 0 gives an unspecified result.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let a = Tensor::from_slice(&[7i32, -7], [2]);
    /// assert_eq!(a.floor_divide(2.0).eval()?.to_vec::<i32>()?, [3, -4]);
    /// assert_eq!(a.floor_mod(2.0).eval()?.to_vec::<i32>()?, [1, 1]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    floor_divide, Numbers, |a, b| floor_divide(&a, &b);

    /// The remainder of `a/b` rounded down: `a − b·floor(a/b)`, elementwise (Python's `%`,
    /// `jax.numpy.mod`, `torch.remainder`). It has the sign of `b`. The derivatives are 1 and
    /// `−floor(a/b)`. For the sign of `a`, use [`Tensor::remainder`].
    floor_mod, Numbers, |a, b| {
        let rest = a.remainder(&b);
        differs_in_sign(&rest, &b).select(&(&rest + &b), &rest)
    };
}

fn floor_divide(a: &Tensor, b: &Tensor) -> Tensor {
    // The quotient has no gradient, so nothing is kept for it.
    let a = a.detach();
    let b = b.detach();
    if a.dtype().is_unsigned() {
        return a / b;
    }
    let rest = a.remainder(&b);
    let below = differs_in_sign(&rest, &b);
    if a.dtype().is_integer() {
        let quotient = a / b;
        return below.select(&(&quotient - 1.0), &quotient);
    }
    // Computed from the remainder, which is exact, since a/b may round up to the next integer. A
    // division by 0 is unchanged.
    let quotient = ((&a - &rest) / &b).round();
    b.eq(0.0).select(&(&a / &b), &below.select(&(&quotient - 1.0), &quotient))
}

/// True where the remainder is not 0 and its sign differs from that of the divisor.
fn differs_in_sign(rest: &Tensor, divisor: &Tensor) -> Tensor {
    if rest.dtype().is_unsigned() {
        return rest.ne(rest);
    }
    rest.ne(0.0).and(rest.lt(0.0).ne(divisor.lt(0.0)))
}
