//! Cumulative reductions along an axis.

use super::{Row, many, pair, row};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("cumsum", &["cumsum"], |x, a| x[0].cumsum(a.axis())),
        row("cumprod", &["cumprod"], |x, a| x[0].cumprod(a.axis())),
        row("logcumsumexp", &["logcumsumexp"], |x, a| x[0].logcumsumexp(a.axis())),
        many("cummax", &["cummax"], |x, a| pair(x[0].cummax(a.axis()))),
        many("cummin", &["cummin"], |x, a| pair(x[0].cummin(a.axis()))),
    ]
}
