//! Sorting, and operations built on it.

use fulmen_tensor::Tensor;

use super::{Row, many, pair, row};

pub(super) fn rows() -> Vec<Row> {
    vec![
        many("sort", &["sort"], |x, a| pair(x[0].sort(a.axis(), a.bool("descending")))),
        row("argsort", &["argsort"], |x, a| x[0].argsort(a.axis(), a.bool("descending"))),
        many("sort_together", &["sort_together"], |x, a| {
            let tensors: Vec<&Tensor> = x.iter().collect();
            Tensor::sort_together(&tensors, a.usize("keys"), a.axis(), a.bool("descending"))
        }),
        many("topk", &["topk", "topk_along"], |x, a| match (a.usize("k"), a.axis(), a.bool("largest")) {
            (k, -1, true) => pair(x[0].topk(k)),
            (k, axis, largest) => pair(x[0].topk_along(k, axis, largest)),
        }),
        many("kthvalue", &["kthvalue"], |x, a| pair(keepdim!(a, x[0], kthvalue, kthvalue_keepdim, a.usize("k"), a.axis()))),
        many("median", &["median"], |x, a| pair(keepdim!(a, x[0], median, median_keepdim, a.axis()))),
    ]
}
