//! Elementwise trigonometric and hyperbolic functions and their inverses. Angles are in radians.

use super::binary::binary;
use super::unary::{composed, unary};
use crate::Tensor;

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
}
