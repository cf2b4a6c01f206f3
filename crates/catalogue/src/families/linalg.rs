//! Linear algebra: the Cholesky factor and triangular solves.

use fulmen_tensor::TriangularSolve;

use super::{Row, row};
use crate::Attrs;

fn how(a: &Attrs) -> TriangularSolve {
    let mut how = if a.bool("lower") { TriangularSolve::lower() } else { TriangularSolve::upper() };
    if a.bool("transpose") {
        how = how.transpose();
    }
    if a.bool("right") {
        how = how.right();
    }
    if a.bool("unit") { how.unit_diagonal() } else { how }
}

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("cholesky", &["cholesky"], |x, _| x[0].cholesky()),
        row("triangular_solve", &["triangular_solve"], |x, a| x[0].triangular_solve(&x[1], &how(a))),
        row("cholesky_solve", &["cholesky_solve"], |x, _| x[0].cholesky_solve(&x[1])),
    ]
}
