//! Complex numbers: their parts, and the operations that accept them.

use fulmen_tensor::{DType, Tensor};

use super::{Row, row};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("complex", &["complex"], |x, _| Tensor::complex(&x[0], &x[1])),
        row("of_complex", &["real", "imag", "conj", "angle"], |x, a| match a.str("function") {
            "real" => x[0].real(),
            "imag" => x[0].imag(),
            "conj" => x[0].conj(),
            "angle" => x[0].angle(),
            "abs" => x[0].abs(),
            "neg" => -&x[0],
            "exp" => x[0].exp(),
            "expm1" => x[0].expm1(),
            "log" => x[0].log(),
            "log1p" => x[0].log1p(),
            "sqrt" => x[0].sqrt(),
            "rsqrt" => x[0].rsqrt(),
            "sin" => x[0].sin(),
            "cos" => x[0].cos(),
            "tanh" => x[0].tanh(),
            "sigmoid" => x[0].sigmoid(),
            "square" => x[0].square(),
            "reciprocal" => x[0].reciprocal(),
            "sum" => x[0].sum_all(),
            other => panic!("no row for {other}"),
        }),
        row("of_two_complex", &[], |x, a| match a.str("function") {
            "add" => &x[0] + &x[1],
            "sub" => &x[0] - &x[1],
            "mul" => &x[0] * &x[1],
            "div" => &x[0] / &x[1],
            "pow" => x[0].pow(&x[1]),
            "matmul" => x[0].matmul(&x[1]),
            "eq" => x[0].eq(&x[1]),
            "ne" => x[0].ne(&x[1]),
            other => panic!("no row for {other}"),
        }),
        row("to_complex", &[], |x, _| {
            let to = if x[0].dtype() == DType::F64 { DType::C128 } else { DType::C64 };
            x[0].to_dtype(to)
        }),
        row("select_complex", &[], |x, _| x[0].select(&x[1], &x[2])),
    ]
}
