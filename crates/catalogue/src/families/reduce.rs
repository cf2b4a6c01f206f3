//! Reductions along axes, also means and norms, and the indices of the largest and smallest
//! elements.

use super::{Row, row};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("sum", &["sum"], |x, a| keepdim!(a, x[0], sum, sum_keepdim, &a.axes())),
        row("max", &["max"], |x, a| keepdim!(a, x[0], max, max_keepdim, &a.axes())),
        row("min", &["min"], |x, a| keepdim!(a, x[0], min, min_keepdim, &a.axes())),
        row("mean", &["mean"], |x, a| keepdim!(a, x[0], mean, mean_keepdim, &a.axes())),
        row("var", &["var"], |x, a| keepdim!(a, x[0], var, var_keepdim, &a.axes())),
        row("var_corrected", &["var_corrected"], |x, a| {
            keepdim!(a, x[0], var_corrected, var_corrected_keepdim, &a.axes(), a.number("correction"))
        }),
        row("std", &["std"], |x, a| keepdim!(a, x[0], std, std_keepdim, &a.axes())),
        row("std_corrected", &["std_corrected"], |x, a| {
            keepdim!(a, x[0], std_corrected, std_corrected_keepdim, &a.axes(), a.number("correction"))
        }),
        row("prod", &["prod"], |x, a| keepdim!(a, x[0], prod, prod_keepdim, &a.axes())),
        row("any", &["any"], |x, a| keepdim!(a, x[0], any, any_keepdim, &a.axes())),
        row("all", &["all"], |x, a| keepdim!(a, x[0], all, all_keepdim, &a.axes())),
        row("count_nonzero", &["count_nonzero"], |x, a| keepdim!(a, x[0], count_nonzero, count_nonzero_keepdim, &a.axes())),
        row("norm", &["norm"], |x, a| keepdim!(a, x[0], norm, norm_keepdim, a.number("p"), &a.axes())),
        row("argmax_all", &["argmax_all"], |x, _| x[0].argmax_all()),
        row("argmin_all", &["argmin_all"], |x, _| x[0].argmin_all()),
        row("argmax", &["argmax"], |x, a| keepdim!(a, x[0], argmax, argmax_keepdim, a.axis())),
        row("argmin", &["argmin"], |x, a| keepdim!(a, x[0], argmin, argmin_keepdim, a.axis())),
    ]
}
