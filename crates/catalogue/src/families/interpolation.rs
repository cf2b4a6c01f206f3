//! Interpolation and adaptive pooling. The reference is PyTorch.

use fulmen_tensor::Interpolation;

use super::{Row, row};
use crate::Attrs;

fn mode(a: &Attrs) -> Interpolation {
    match a.str("mode") {
        "nearest" => Interpolation::Nearest,
        "nearest-exact" => Interpolation::NearestExact,
        "linear" => Interpolation::Linear { align_corners: a.bool("align_corners") },
        "cubic" => Interpolation::Cubic { align_corners: a.bool("align_corners") },
        "area" => Interpolation::Area,
        other => panic!("no mode {other}"),
    }
}

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("interpolate", &["interpolate"], |x, a| x[0].interpolate(&a.usizes("size"), mode(a))),
        row("interpolate_by", &["interpolate_by"], |x, a| x[0].interpolate_by(&a.numbers("scale"), mode(a))),
        row("adaptive_avg_pool", &["adaptive_avg_pool"], |x, a| x[0].adaptive_avg_pool(&a.usizes("size"))),
        row("adaptive_max_pool", &["adaptive_max_pool"], |x, a| x[0].adaptive_max_pool(&a.usizes("size"))),
    ]
}
