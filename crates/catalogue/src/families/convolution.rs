//! Convolutions over one, two and three axes.

use fulmen_tensor::{Convolution, Tensor};

use super::{Row, row};
use crate::Attrs;

fn convolution(x: &[Tensor], a: &Attrs) -> Tensor {
    let padding = a.pairs("padding");
    let how = Convolution::new(padding.len())
        .stride(a.usizes("stride"))
        .padding(padding)
        .dilation(a.usizes("dilation"))
        .groups(a.usize("groups"));
    x[0].convolution(&x[1], &how)
}

fn same(x: &[Tensor], a: &Attrs) -> Tensor {
    x[0].convolution(&x[1], &Convolution::new(x[0].rank() - 2).dilation(a.usizes("dilation")).same())
}

fn conv_transpose(x: &[Tensor], a: &Attrs) -> Tensor {
    let padding = a.pairs("padding");
    let how = Convolution::new(padding.len())
        .stride(a.usizes("stride"))
        .padding(padding)
        .output_padding(a.usizes("output_padding"))
        .dilation(a.usizes("dilation"))
        .groups(a.usize("groups"));
    x[0].conv_transpose(&x[1], &how)
}

pub(super) fn rows() -> Vec<Row> {
    let mut rows: Vec<Row> = ["conv1d", "conv2d", "conv3d"].map(|op| row(op, &["convolution"], convolution)).into();
    rows.push(row("conv_same", &["convolution"], same));
    rows.push(row("conv_transpose", &["conv_transpose"], conv_transpose));
    rows
}
