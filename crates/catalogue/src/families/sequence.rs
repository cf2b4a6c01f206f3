//! Evenly spaced numbers and masks.

use fulmen_tensor::Tensor;

use super::{Row, many, row};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("arange_step", &["arange_step"], |_, a| {
            Tensor::arange_step(a.dtype("dtype"), a.number("start"), a.number("stop"), a.number("step"))
        }),
        row("linspace", &["linspace"], |_, a| {
            Tensor::linspace(a.dtype("dtype"), a.number("start"), a.number("stop"), a.usize("n"))
        }),
        many("meshgrid", &["meshgrid"], |x, _| Tensor::meshgrid(x)),
        row("masked_fill", &["masked_fill"], |x, a| x[0].masked_fill(&x[1], a.number("value"))),
        row("nonzero_static", &["nonzero_static"], |x, a| x[0].nonzero_static(a.usize("size"), a.i64("fill") as i32))
            .unlike_jax(&[("nonzero_static_empty", "JAX gives 0 where there is no element, not the value to fill with")]),
    ]
}
