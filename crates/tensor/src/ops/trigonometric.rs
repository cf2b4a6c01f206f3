//! Elementwise trigonometric and hyperbolic functions and their inverses. Angles are in radians.

use std::f64::consts::PI;

use super::binary::binary;
use super::unary::{composed, unary};
use crate::{DType, Tensor};

unary! {
    /// The cosine, elementwise, of `x` in radians. The derivative is `−sin(x)`.
    cos, Cosine, "stablehlo.cosine", FloatsAndComplex, |x, y, g| Some(-(g * x.sin()));

    /// The sine, elementwise, of `x` in radians. The derivative is `cos(x)`.
    sin, Sine, "stablehlo.sine", FloatsAndComplex, |x, y, g| Some(g * x.cos());

    /// The tangent `y`, elementwise, of `x` in radians. The derivative is `1 + y²`.
    tan, Tangent, "stablehlo.tan", Floats, |x, y, g| Some(g * (y * y + 1.0));

    /// The angle in `[0, π]` whose cosine is `x`, elementwise; NaN outside `[−1, 1]`. The
    /// derivative is `−1/√(1 − x²)`.
    acos, Acos, "chlo.acos", Floats, |x, y, g| Some(-(g * ((1.0 - x) * (x + 1.0)).rsqrt()));

    /// The angle in `[−π/2, π/2]` whose sine is `x`, elementwise; NaN outside `[−1, 1]`. The
    /// derivative is `1/√(1 − x²)`.
    asin, Asin, "chlo.asin", Floats, |x, y, g| Some(g * ((1.0 - x) * (x + 1.0)).rsqrt());

    /// The angle in `[−π/2, π/2]` whose tangent is `x`, elementwise. The derivative is
    /// `1/(1 + x²)`.
    atan, Atan, "chlo.atan", Floats, |x, y, g| Some(g / (x * x + 1.0));

    /// The hyperbolic cosine, elementwise. The derivative is `sinh(x)`.
    cosh, Cosh, "chlo.cosh", Floats, |x, y, g| Some(g * x.sinh());

    /// The hyperbolic sine, elementwise. The derivative is `cosh(x)`.
    sinh, Sinh, "chlo.sinh", Floats, |x, y, g| Some(g * x.cosh());

    /// The hyperbolic tangent `y`, elementwise. The derivative is `1 − y²`.
    tanh, Tanh, "stablehlo.tanh", FloatsAndComplex, |x, y, g| Some(g * (1.0 - y * y));

    /// The nonnegative number whose hyperbolic cosine is `x`, elementwise; NaN below 1. The
    /// derivative is `1/√(x² − 1)`.
    acosh, Acosh, "chlo.acosh", Floats, |x, y, g| Some(g * (x - 1.0).rsqrt() * (x + 1.0).rsqrt());

    /// The number whose hyperbolic sine is `x`, elementwise. The derivative is `1/√(x² + 1)`.
    asinh, Asinh, "chlo.asinh", Floats, |x, y, g| Some(g * (x * x + 1.0).rsqrt());

    /// The number whose hyperbolic tangent is `x`, elementwise; NaN outside `[−1, 1]`. The
    /// derivative is `1/(1 − x²)`.
    atanh, Atanh, "chlo.atanh", Floats, |x, y, g| Some(g / ((1.0 - x) * (x + 1.0)));
}

binary! {
    /// The angle in `(−π, π]` of the point `(b, a)`, elementwise: `atan(a/b)` in the right
    /// quadrant. The derivatives are `b/(a² + b²)` and `−a/(a² + b²)`.
    atan2, Atan2, "stablehlo.atan2", Floats, |a, b, y, g| [
        Some(g * (b / (a * a + b * b))),
        Some(-(g * (a / (a * a + b * b))))
    ];
}

composed! {
    /// `y = √(a² + b²)`, elementwise, without intermediate overflow; ∞ where either is infinite,
    /// even if the other is NaN. The derivatives are `a/y` and `b/y`; NaN where both are 0.
    hypot, Floats, |a, b| {
        // The scale cancels out, so no gradient flows through it.
        let largest = a.detach().abs().maximum(b.detach().abs());
        let usable = largest.is_finite().and(largest.ne(0.0));
        let scale = usable.select(&largest, &largest.ones_like());
        let infinite = a.is_inf().or(b.is_inf());
        let a = a / &scale;
        let b = b / &scale;
        infinite.select(&Tensor::full(scale.dtype(), [], f64::INFINITY), &(scale * (&a * &a + &b * &b).sqrt()))
    };
    /// `y = sin(πx)/(πx)`, elementwise; 1 at 0. NumPy's and PyTorch's normalized sinc. The
    /// derivative is `(cos(πx) − y)/x`; 0 at 0. All derivatives are accurate near 0. 16-bit numbers
    /// are computed as f32.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[0.0f32, 0.5], [2]);
    /// assert_eq!(x.sinc().eval()?.to_vec::<f32>()?, [1.0, std::f32::consts::FRAC_2_PI]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    sinc, Floats, |x| {
        let angle = if x.dtype().is_half() { x.to_dtype(DType::F32) * PI } else { &x * PI };
        let is_small = angle.abs().lt(1.0);
        // Neither side of the choice may be NaN where it is not chosen: its gradient would be NaN.
        let large = is_small.select(&angle.ones_like(), &angle);
        let small = is_small.select(&angle, &angle.zeros_like());
        let y = is_small.select(&sinc_near_0(&small), &(large.sin() / &large));
        y.to_dtype(x.dtype())
    };
}

/// `sin(z)/z` for `|z| < 1`, by its Taylor series. `sin(z)/z` itself is exact enough there, but the
/// derivatives of the quotient are differences of almost equal numbers.
fn sinc_near_0(z: &Tensor) -> Tensor {
    // The next term is below the resolution of f64, also after two derivatives.
    const TERMS: u32 = 12;
    let square = z * z;
    let mut sum = z.ones_like();
    for term in (1..TERMS).rev() {
        let ratio = f64::from(2 * term * (2 * term + 1));
        sum = 1.0 - &square * sum / ratio;
    }
    sum
}
