//! Elementwise trigonometric and hyperbolic functions and their inverses. Angles are in radians.

use super::binary::binary;
use super::unary::{composed, unary};
use crate::Tensor;

unary! {
    /// The cosine, elementwise; `x` in radians. Derivative `−sin(x)`.
    cos, Cosine, "stablehlo.cosine", FloatsAndComplex, |x, y, g| Some(-(g * x.sin()));

    /// The sine, elementwise; `x` in radians. Derivative `cos(x)`.
    sin, Sine, "stablehlo.sine", FloatsAndComplex, |x, y, g| Some(g * x.cos());

    /// The tangent, elementwise; `x` in radians. Derivative `1 + y²`.
    tan, Tangent, "stablehlo.tan", Floats, |x, y, g| Some(g * (y * y + 1.0));

    /// The angle in `[0, π]` whose cosine is `x`, elementwise; NaN outside `[−1, 1]`. Derivative `−1/√(1 − x²)`.
    acos, Acos, "chlo.acos", Floats, |x, y, g| Some(-(g * ((1.0 - x) * (x + 1.0)).rsqrt()));

    /// The angle in `[−π/2, π/2]` whose sine is `x`, elementwise; NaN outside `[−1, 1]`. Derivative `1/√(1 − x²)`.
    asin, Asin, "chlo.asin", Floats, |x, y, g| Some(g * ((1.0 - x) * (x + 1.0)).rsqrt());

    /// The angle in `[−π/2, π/2]` whose tangent is `x`, elementwise. Derivative `1/(1 + x²)`.
    atan, Atan, "chlo.atan", Floats, |x, y, g| Some(g / (x * x + 1.0));

    /// The hyperbolic cosine, elementwise. Derivative `sinh(x)`.
    cosh, Cosh, "chlo.cosh", Floats, |x, y, g| Some(g * x.sinh());

    /// The hyperbolic sine, elementwise. Derivative `cosh(x)`.
    sinh, Sinh, "chlo.sinh", Floats, |x, y, g| Some(g * x.cosh());

    /// The hyperbolic tangent, elementwise. Derivative `1 − y²`.
    tanh, Tanh, "stablehlo.tanh", FloatsAndComplex, |x, y, g| Some(g * (1.0 - y * y));

    /// The number, at least 0, whose hyperbolic cosine is `x`, elementwise; NaN below 1. Derivative `1/√(x² − 1)`.
    acosh, Acosh, "chlo.acosh", Floats, |x, y, g| Some(g * (x - 1.0).rsqrt() * (x + 1.0).rsqrt());

    /// The number whose hyperbolic sine is `x`, elementwise. Derivative `1/√(x² + 1)`.
    asinh, Asinh, "chlo.asinh", Floats, |x, y, g| Some(g * (x * x + 1.0).rsqrt());

    /// The number whose hyperbolic tangent is `x`, elementwise; NaN outside `[−1, 1]`. Derivative `1/(1 − x²)`.
    atanh, Atanh, "chlo.atanh", Floats, |x, y, g| Some(g / ((1.0 - x) * (x + 1.0)));
}

binary! {
    /// The angle in `(−π, π]` of the point `(b, a)`, elementwise: `atan(a/b)` in the right quadrant. Derivatives
    /// `b/(a² + b²)` and `−a/(a² + b²)`.
    atan2, Atan2, "stablehlo.atan2", Floats, |a, b, y, g| [
        Some(g * (b / (a * a + b * b))),
        Some(-(g * (a / (a * a + b * b))))
    ];
}

composed! {
    /// `√(a² + b²)`, elementwise, without overflow on the way; ∞ where one is infinite, even if the other is NaN.
    /// Derivatives `a/y` and `b/y`; NaN where both are 0.
    hypot, Floats, |a, b| {
        // What both are divided by cancels out, so no gradient flows through it.
        let largest = a.detach().abs().maximum(b.detach().abs());
        let usable = largest.is_finite().and(largest.ne(0.0));
        let scale = usable.select(&largest, &largest.ones_like());
        let infinite = a.is_inf().or(b.is_inf());
        let (a, b) = (a / &scale, b / &scale);
        infinite.select(&Tensor::full(scale.dtype(), [], f64::INFINITY), &(scale * (&a * &a + &b * &b).sqrt()))
    };
}
