//! Pooling windows over the last axes.

use fulmen_tensor::Pooling;

use super::{Row, many, row};
use crate::Attrs;

fn pooling(a: &Attrs) -> Pooling {
    let mut how = Pooling::new(a.usizes("window")).stride(a.usizes("stride")).padding(a.usizes("padding"));
    if a.has("dilation") {
        how = how.dilation(a.usizes("dilation"));
    }
    if a.has("ceil_mode") {
        how = how.ceil_mode(a.bool("ceil_mode"));
    }
    if a.has("count_include_pad") {
        how = how.count_include_pad(a.bool("count_include_pad"));
    }
    if a.has("divisor") { how.divisor(a.usize("divisor")) } else { how }
}

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("max_pool", &["max_pool"], |x, a| x[0].max_pool(&pooling(a))),
        many("max_pool_with_indices", &["max_pool_with_indices"], |x, a| {
            x[0].max_pool_with_indices(&pooling(a)).into()
        }),
        row("avg_pool", &["avg_pool"], |x, a| x[0].avg_pool(&pooling(a))),
    ]
}
