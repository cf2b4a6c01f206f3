//! The softmax family.

use fulmen_tensor::DType;

use super::{Row, row};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("softmax", &["softmax"], |x, a| x[0].softmax(a.axis())),
        row("log_softmax", &["log_softmax"], |x, a| x[0].log_softmax(a.axis())),
        row("logsumexp", &["logsumexp"], |x, a| keepdim!(a, x[0], logsumexp, logsumexp_keepdim, &a.axes())),
        row("one_hot", &["one_hot"], |x, a| x[0].one_hot(a.usize("classes")).to_dtype(DType::F32)),
        row("cross_entropy", &[], |x, a| {
            let chosen = x[1].one_hot(x[0].size(-1)).to_dtype(x[0].dtype());
            let losses = -(x[0].log_softmax(-1) * chosen).sum(-1);
            match a.str("reduction") {
                "mean" => losses.mean_all(),
                "sum" => losses.sum_all(),
                _ => losses,
            }
        }),
    ]
}
