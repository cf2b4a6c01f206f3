//! Operations that move elements without arithmetic, and conversions between dtypes.

use fulmen_tensor::Tensor;

use super::{Row, row};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("reshape", &["reshape"], |x, a| x[0].reshape(a.usizes("shape"))),
        row("transpose", &["permute"], |x, a| x[0].permute(&a.axes())),
        row("broadcast_to", &["broadcast_to"], |x, a| x[0].broadcast_to(a.usizes("shape"))),
        row("concatenate", &["concatenate"], |x, a| Tensor::concatenate(x, a.axis())),
        row("slice", &["slice"], |x, a| x[0].slice(&a.usizes("start"), &a.usizes("limit"), &a.usizes("strides"))),
        row("pad", &["pad"], |x, a| x[0].pad(&x[1], &a.i64s("low"), &a.i64s("high"), &a.usizes("interior"))),
        row("reverse", &["flip"], |x, a| x[0].flip(&a.axes())),
        row("convert", &["to_dtype"], |x, a| x[0].to_dtype(a.dtype("to")))
            .without_differences("the result has another dtype than f64"),
        row("convert_through", &["to_dtype"], |x, a| x[0].to_dtype(a.dtype("through")).to_dtype(x[0].dtype()))
            .without_differences("the result is rounded to fewer bits than f64 has"),
    ]
}
