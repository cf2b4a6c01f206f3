//! Reductions over axes, averages and norms among them, and where the largest and the smallest element stand.

use super::{Row, row};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("sum", &["sum"], |x, a| x[0].sum(&a.axes(), a.keepdims())),
        row("max", &["max"], |x, a| x[0].max(&a.axes(), a.keepdims())),
        row("min", &["min"], |x, a| x[0].min(&a.axes(), a.keepdims())),
        row("mean", &["mean"], |x, a| x[0].mean(&a.axes(), a.keepdims())),
        row("var", &["var"], |x, a| x[0].var(&a.axes(), a.keepdims())),
        row("var_corrected", &["var_corrected"], |x, a| {
            x[0].var_corrected(&a.axes(), a.number("correction"), a.keepdims())
        }),
        row("std", &["std"], |x, a| x[0].std(&a.axes(), a.keepdims())),
        row("std_corrected", &["std_corrected"], |x, a| {
            x[0].std_corrected(&a.axes(), a.number("correction"), a.keepdims())
        }),
        row("prod", &["prod"], |x, a| x[0].prod(&a.axes(), a.keepdims())),
        row("any", &["any"], |x, a| x[0].any(&a.axes(), a.keepdims())),
        row("all", &["all"], |x, a| x[0].all(&a.axes(), a.keepdims())),
        row("count_nonzero", &["count_nonzero"], |x, a| x[0].count_nonzero(&a.axes(), a.keepdims())),
        row("norm", &["norm"], |x, a| x[0].norm(a.number("p"), &a.axes(), a.keepdims())),
        row("argmax_all", &["argmax_all"], |x, _| x[0].argmax_all()),
        row("argmin_all", &["argmin_all"], |x, _| x[0].argmin_all()),
        row("argmax", &["argmax"], |x, a| x[0].argmax(a.axis(), a.keepdims())),
        row("argmin", &["argmin"], |x, a| x[0].argmin(a.axis(), a.keepdims())),
    ]
}
