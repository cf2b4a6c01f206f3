//! Reading and adding rows by index, and triangles.

use super::{Row, row};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("take", &["take", "index_select"], |x, a| match x[1].rank() {
            1 => x[0].index_select(a.axis(), &x[1]),
            _ => x[0].take(a.axis(), &x[1]),
        }),
        row("index_add", &["index_add"], |x, a| x[0].index_add(a.axis(), &x[1], &x[2])),
        row("tril", &["tril"], |x, a| x[0].tril(a.i64("diagonal"))),
        row("triu", &["triu"], |x, a| x[0].triu(a.i64("diagonal"))),
    ]
}
