//! Einstein notation, related products, and diagonals.

use fulmen_tensor::Tensor;

use super::{Row, row};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("einsum", &["einsum"], |x, a| Tensor::einsum(a.str("equation"), x)),
        row("tensordot", &["tensordot"], |x, a| x[0].tensordot(&x[1], (&a.isizes("left"), &a.isizes("right")))),
        row("outer", &["outer"], |x, _| x[0].outer(&x[1])),
        row("diagonal", &["diagonal"], |x, a| x[0].diagonal(a.i64("offset"), a.isize("row"), a.isize("column"))),
        row("diag_embed", &["diag_embed"], |x, a| x[0].diag_embed(a.i64("offset"))),
        row("diag", &["diag"], |x, a| x[0].diag(a.i64("offset"))),
        row("trace", &["trace"], |x, _| x[0].trace()),
        row("eye", &["eye"], |_, a| Tensor::eye(a.dtype("dtype"), a.usize("rows"), a.usize("columns"))),
    ]
}
