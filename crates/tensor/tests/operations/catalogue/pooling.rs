//! Windows that slide over the last axes.

use fulmen_tensor::Pooling;

use super::{Row, row};
use crate::attrs::Attrs;

fn pooling(a: &Attrs) -> Pooling {
    Pooling::new(a.usizes("window")).stride(a.usizes("stride")).padding(a.usizes("padding"))
}

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("max_pool", &["max_pool"], |x, a| x[0].max_pool(&pooling(a))),
        row("avg_pool", &["avg_pool"], |x, a| x[0].avg_pool(&pooling(a))),
    ]
}
