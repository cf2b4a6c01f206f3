//! Matrix products.

use super::{Row, row};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("matmul", &["matmul"], |x, _| x[0].matmul(&x[1])),
        row("dot_general", &["dot_general"], |x, a| {
            let batch = a.lists("batch");
            let contracting = a.lists("contracting");
            x[0].dot_general(&x[1], (&batch[0], &batch[1]), (&contracting[0], &contracting[1]))
        }),
    ]
}
