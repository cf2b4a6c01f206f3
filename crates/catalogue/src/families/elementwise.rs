//! Arithmetic, unary functions, comparisons, and selection between two tensors.

use super::{Row, row};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("add", &["add"], |x, _| &x[0] + &x[1]),
        row("subtract", &["sub"], |x, _| &x[0] - &x[1]),
        row("multiply", &["mul"], |x, _| &x[0] * &x[1]),
        row("divide", &["div"], |x, _| &x[0] / &x[1]),
        row("maximum", &["maximum"], |x, _| x[0].maximum(&x[1])),
        row("minimum", &["minimum"], |x, _| x[0].minimum(&x[1])),
        row("power", &["pow"], |x, _| x[0].pow(&x[1])),
        row("remainder", &["remainder"], |x, _| x[0].remainder(&x[1])),
        row("negate", &["neg"], |x, _| -&x[0]),
        row("abs", &["abs"], |x, _| x[0].abs()).unlike_jax(&[("abs_at_0", "the derivative of |x| at 0 is 0 as in PyTorch; JAX has 1")]),
        row("sign", &["sign"], |x, _| x[0].sign()),
        row("exp", &["exp"], |x, _| x[0].exp()),
        row("expm1", &["expm1"], |x, _| x[0].expm1()),
        row("log", &["log"], |x, _| x[0].log()),
        row("log1p", &["log1p"], |x, _| x[0].log1p()),
        row("sqrt", &["sqrt"], |x, _| x[0].sqrt()),
        row("rsqrt", &["rsqrt"], |x, _| x[0].rsqrt()),
        row("tanh", &["tanh"], |x, _| x[0].tanh()),
        row("logistic", &["sigmoid"], |x, _| x[0].sigmoid()),
        row("floor", &["floor"], |x, _| x[0].floor()),
        row("ceil", &["ceil"], |x, _| x[0].ceil()),
        row("sin", &["sin"], |x, _| x[0].sin()),
        row("cos", &["cos"], |x, _| x[0].cos()),
        row("erf", &["erf"], |x, _| x[0].erf()),
        row("erf_inv", &["erf_inv"], |x, _| x[0].erf_inv()),
        row("compare", &["eq", "ne", "lt", "le", "gt", "ge"], |x, a| match a.str("direction") {
            "EQ" => x[0].eq(&x[1]),
            "NE" => x[0].ne(&x[1]),
            "LT" => x[0].lt(&x[1]),
            "LE" => x[0].le(&x[1]),
            "GT" => x[0].gt(&x[1]),
            _ => x[0].ge(&x[1]),
        }),
        row("select", &["select"], |x, a| match (a.has("on_true"), a.has("on_false")) {
            (true, true) => x[0].select(a.number("on_true"), a.number("on_false")),
            (true, false) => x[0].select(a.number("on_true"), &x[1]),
            (false, true) => x[0].select(&x[1], a.number("on_false")),
            (false, false) => x[0].select(&x[1], &x[2]),
        }),
    ]
}
