//! Reading and writing single elements, points and slices by index.

use fulmen_tensor::{Combine, Tensor};

use super::{Row, row};
use crate::Attrs;

fn combine(a: &Attrs) -> Combine {
    let all = [Combine::Set, Combine::Add, Combine::Mul, Combine::Min, Combine::Max];
    all.into_iter().find(|combine| format!("{combine:?}") == a.str("combine")).unwrap()
}

/// Splits a vector into scalars.
fn scalars(list: &Tensor) -> Vec<Tensor> {
    (0..list.size(0)).map(|i| list.narrow(0, i, 1).squeeze(0)).collect()
}

/// Calls the specific method for `combine` if there is one, so that all methods are covered.
fn scatter(x: &[Tensor], a: &Attrs) -> Tensor {
    match combine(a) {
        Combine::Set => x[0].scatter(a.axis(), &x[1], &x[2]),
        Combine::Add => x[0].scatter_add(a.axis(), &x[1], &x[2]),
        other => x[0].scatter_reduce(a.axis(), &x[1], &x[2], other),
    }
}

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("gather", &["gather"], |x, a| x[0].gather(a.axis(), &x[1])),
        row("take_along_axis", &["take_along_axis"], |x, a| x[0].take_along_axis(a.axis(), &x[1])),
        row("gather_nd", &["gather_nd"], |x, _| x[0].gather_nd(&x[1])),
        row("scatter", &["scatter", "scatter_add", "scatter_reduce"], scatter),
        row("index_reduce", &["index_reduce"], |x, a| x[0].index_reduce(a.axis(), &x[1], &x[2], combine(a))),
        row("index_copy", &["index_copy"], |x, a| x[0].index_copy(a.axis(), &x[1], &x[2])),
        row("scatter_nd", &["scatter_nd"], |x, a| x[0].scatter_nd(&x[1], &x[2], combine(a))),
        row("dynamic_slice", &["dynamic_slice"], |x, a| x[0].dynamic_slice(&scalars(&x[1]), &a.usizes("sizes"))),
        row("dynamic_update_slice", &["dynamic_update_slice"], |x, _| {
            x[0].dynamic_update_slice(&x[1], &scalars(&x[2]))
        }),
    ]
}
