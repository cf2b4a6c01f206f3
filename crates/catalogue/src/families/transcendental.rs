//! Trigonometric, hyperbolic and special functions, exponentials and logarithms to other bases.

use super::{Row, row};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("tan", &["tan"], |x, _| x[0].tan()),
        row("asin", &["asin"], |x, _| x[0].asin()),
        row("acos", &["acos"], |x, _| x[0].acos()),
        row("atan", &["atan"], |x, _| x[0].atan()),
        row("sinh", &["sinh"], |x, _| x[0].sinh()),
        row("cosh", &["cosh"], |x, _| x[0].cosh()),
        row("asinh", &["asinh"], |x, _| x[0].asinh()),
        row("acosh", &["acosh"], |x, _| x[0].acosh()),
        row("atanh", &["atanh"], |x, _| x[0].atanh()),
        row("exp2", &["exp2"], |x, _| x[0].exp2()),
        row("log2", &["log2"], |x, _| x[0].log2()),
        row("log10", &["log10"], |x, _| x[0].log10()),
        row("logit", &["logit"], |x, _| x[0].logit()),
        row("erfc", &["erfc"], |x, _| x[0].erfc()),
        row("lgamma", &["lgamma"], |x, _| x[0].lgamma()),
        row("sinc", &["sinc"], |x, _| x[0].sinc()),
        row("digamma", &["digamma"], |x, _| x[0].digamma()),
        row("polygamma", &["polygamma"], |x, a| x[0].polygamma(a.usize("order") as u32)),
        row("atan2", &["atan2"], |x, _| x[0].atan2(&x[1])),
        row("logaddexp", &["logaddexp"], |x, _| x[0].logaddexp(&x[1])),
        row("logaddexp2", &["logaddexp2"], |x, _| x[0].logaddexp2(&x[1])),
        row("xlogy", &["xlogy"], |x, _| x[0].xlogy(&x[1])),
    ]
}
