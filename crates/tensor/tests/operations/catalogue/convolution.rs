//! Convolutions over one, two and three axes.

use fulmen_tensor::{Convolution, Tensor};

use super::{Row, row};
use crate::attrs::Attrs;

fn convolution(x: &[Tensor], a: &Attrs) -> Tensor {
    let padding = a.pairs("padding");
    let how = Convolution::new(padding.len())
        .stride(a.usizes("stride"))
        .padding(padding)
        .dilation(a.usizes("dilation"))
        .groups(a.usize("groups"));
    x[0].convolution(&x[1], &how)
}

pub(super) fn rows() -> Vec<Row> {
    ["conv1d", "conv2d", "conv3d"].map(|op| row(op, &["convolution"], convolution)).into()
}
