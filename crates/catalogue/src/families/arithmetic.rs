//! Elementwise arithmetic beyond the four basic operations, rounding, clamping, and the
//! representation of floats.

use super::{Row, row};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("square", &["square"], |x, _| x[0].square()),
        row("reciprocal", &["reciprocal"], |x, _| x[0].reciprocal()),
        row("cbrt", &["cbrt"], |x, _| x[0].cbrt()),
        row("trunc", &["trunc"], |x, _| x[0].trunc()),
        row("frac", &["frac"], |x, _| x[0].frac()),
        row("round", &["round"], |x, _| x[0].round()),
        row("round_half_away", &["round_half_away"], |x, _| x[0].round_half_away()),
        row("relu", &["relu"], |x, _| x[0].relu()),
        row("hypot", &["hypot"], |x, _| x[0].hypot(&x[1])),
        row("copysign", &["copysign"], |x, _| x[0].copysign(&x[1])),
        row("floor_mod", &["floor_mod"], |x, _| x[0].floor_mod(&x[1])),
        row("floor_divide", &["floor_divide"], |x, _| x[0].floor_divide(&x[1])),
        row("clamp", &["clamp"], |x, _| x[0].clamp(&x[1], &x[2])),
        row("lerp", &["lerp"], |x, _| x[0].lerp(&x[1], &x[2])),
        row("nan_to_num", &["nan_to_num"], |x, a| {
            let optional = |name: &str| a.has(name).then(|| a.number(name));
            x[0].nan_to_num(a.number("nan"), optional("posinf"), optional("neginf"))
        }),
        row("is_nan", &["is_nan"], |x, _| x[0].is_nan()),
        row("is_inf", &["is_inf"], |x, _| x[0].is_inf()),
        row("is_finite", &["is_finite"], |x, _| x[0].is_finite()),
        row("signbit", &["signbit"], |x, _| x[0].signbit()),
        row("nextafter", &["nextafter"], |x, _| x[0].nextafter(&x[1])),
    ]
}
