//! Splitting, repeating and moving elements, and padding modes.

use std::ops::Bound;

use fulmen_tensor::{PadMode, Tensor};

use super::{Row, many, row};
use crate::Attrs;

fn mode(a: &Attrs) -> PadMode {
    match a.str("mode") {
        "reflect" => PadMode::Reflect,
        "replicate" => PadMode::Replicate,
        "circular" => PadMode::Circular,
        "zeros" => PadMode::Zeros,
        "constant" => PadMode::Constant(a.number("value")),
        other => panic!("no mode {other}"),
    }
}

fn slice_along(x: &[Tensor], a: &Attrs) -> Tensor {
    let start = if a.has("start") { Bound::Included(a.isize("start")) } else { Bound::Unbounded };
    let end = if a.has("end") { Bound::Excluded(a.isize("end")) } else { Bound::Unbounded };
    x[0].slice_along(a.axis(), (start, end), a.usize("step"))
}

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("view", &["view"], |x, a| x[0].view(&a.isizes("shape"))),
        row("unflatten", &["unflatten"], |x, a| x[0].unflatten(a.axis(), &a.isizes("sizes"))),
        row("movedim", &["movedim"], |x, a| x[0].movedim(&a.isizes("source"), &a.isizes("to"))),
        row("expand", &["expand"], |x, a| x[0].expand(&a.isizes("sizes"))),
        many("split_along", &["split"], |x, a| x[0].split(a.usize("size"), a.axis())),
        many("split_with_sizes", &["split_with_sizes"], |x, a| x[0].split_with_sizes(&a.usizes("sizes"), a.axis())),
        row("unfold", &["unfold"], |x, a| x[0].unfold(a.axis(), a.usize("size"), a.usize("step"))),
        many("chunk", &["chunk"], |x, a| x[0].chunk(a.usize("chunks"), a.axis())),
        many("unbind", &["unbind"], |x, a| x[0].unbind(a.axis())),
        row("slice_along", &["slice_along"], slice_along),
        row("index", &["index"], |x, a| x[0].index(a.axis(), a.isize("index"))),
        row("roll", &["roll"], |x, a| x[0].roll(&a.isizes("shifts"), &a.axes())),
        row("tile", &["tile", "repeat"], |x, a| match a.usizes("copies") {
            copies if copies.len() >= x[0].rank() => x[0].repeat(&copies),
            copies => x[0].tile(&copies),
        }),
        row("repeat_interleave", &["repeat_interleave"], |x, a| x[0].repeat_interleave(a.usize("copies"), a.axis())),
        row("stack", &["stack"], |x, a| Tensor::stack(x, a.axis())),
        row("pad_mode", &["pad_mode"], |x, a| x[0].pad_mode(&a.pairs("padding"), mode(a))),
    ]
}
