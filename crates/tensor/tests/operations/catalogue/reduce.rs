//! Reductions over axes, and where the largest and the smallest element stand.

use super::{Row, row};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("sum", &["sum"], |x, a| x[0].sum(&a.axes(), a.keepdims())),
        row("max", &["max"], |x, a| x[0].max(&a.axes(), a.keepdims())),
        row("min", &["min"], |x, a| x[0].min(&a.axes(), a.keepdims())),
        row("mean", &["mean"], |x, a| x[0].mean(&a.axes(), a.keepdims())),
        row("var", &["var"], |x, a| x[0].var(&a.axes(), a.keepdims())),
        row("argmax", &["argmax"], |x, a| x[0].argmax(a.axis(), a.keepdims())),
        row("argmin", &["argmin"], |x, a| x[0].argmin(a.axis(), a.keepdims())),
    ]
}
