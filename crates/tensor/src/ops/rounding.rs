//! Elementwise rounding of floating-point numbers, and the division of numbers that rounds down. Constant in pieces, so
//! their derivatives are 0.

use super::unary::{composed, unary};
use crate::Tensor;

unary! {
    /// The smallest integer at least `x`, elementwise. Derivative 0.
    ceil, Ceil, "stablehlo.ceil", Floats, |x, y, g| None;

    /// The largest integer at most `x`, elementwise. Derivative 0.
    floor, Floor, "stablehlo.floor", Floats, |x, y, g| None;

    /// The integer nearest to `x`, of two the even one, elementwise (PyTorch's and NumPy's `round`). Derivative 0.
    round, RoundNearestEven, "stablehlo.round_nearest_even", Floats, |x, y, g| None;

    /// The integer nearest to `x`, of two the one further from 0, elementwise (Rust's and C's `round`). Derivative 0.
    round_half_away, RoundNearestAfz, "stablehlo.round_nearest_afz", Floats, |x, y, g| None;
}

composed! {
    /// The integer part of `x`: `x` rounded towards 0, elementwise. Derivative 0.
    trunc, Floats, |x| x.lt(0.0).select(&x.ceil(), &x.floor());

    /// `x − trunc(x)`, which has the sign of `x`, elementwise. Derivative 1.
    frac, Floats, |x| &x - x.trunc();

    /// The largest integer at most `a/b`, elementwise, for integers and floats (Python's `//`). Derivative 0. See
    /// [`Tensor::div`] for what rounds towards zero; integers divided by 0 give no meaningful number.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let a = Tensor::from_slice(&[7i32, -7], [2]);
    /// assert_eq!(a.floor_divide(2.0).eval()?.to_vec::<i32>()?, [3, -4]);
    /// assert_eq!(a.floor_mod(2.0).eval()?.to_vec::<i32>()?, [1, 1]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    floor_divide, Numbers, |a, b| floor_divide(&a, &b);

    /// What remains of `a/b` rounded down, with the sign of `b`, elementwise (Python's `%`, `jax.numpy.mod`,
    /// `torch.remainder`): `a − b·floor(a/b)`. Derivatives 1 and `−floor(a/b)`. [`Tensor::remainder`] has the sign of `a`.
    floor_mod, Numbers, |a, b| {
        let rest = a.remainder(&b);
        differs_in_sign(&rest, &b).select(&(&rest + &b), &rest)
    };
}

fn floor_divide(a: &Tensor, b: &Tensor) -> Tensor {
    // A quotient in pieces has no gradient: nothing is kept for one.
    let (a, b) = (a.detach(), b.detach());
    if a.dtype().is_unsigned() {
        return a / b;
    }
    let rest = a.remainder(&b);
    let below = differs_in_sign(&rest, &b);
    if a.dtype().is_integer() {
        let quotient = a / b;
        return below.select(&(&quotient - 1.0), &quotient);
    }
    // By way of the remainder, which is exact: a/b may round up to the next integer. Dividing by 0 gives what it gives.
    let quotient = ((&a - &rest) / &b).round();
    b.eq(0.0).select(&(&a / &b), &below.select(&(&quotient - 1.0), &quotient))
}

/// Where a remainder is not 0 and its sign is not that of the divisor.
fn differs_in_sign(rest: &Tensor, divisor: &Tensor) -> Tensor {
    if rest.dtype().is_unsigned() {
        return rest.ne(rest);
    }
    rest.ne(0.0).and(rest.lt(0.0).ne(divisor.lt(0.0)))
}
