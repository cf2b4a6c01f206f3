//! Random keys and draws.

use fulmen_tensor::{DType, Tensor, random};

use super::{Row, row};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("key", &["random::key"], |_, a| random::key(a.u64("seed"))),
        row("fold_in", &["random::fold_in"], |x, a| random::fold_in(&x[0], a.u64("data") as u32)),
        row("split", &["random::split"], |x, a| {
            Tensor::stack(&random::split(&x[0], a.u64("n") as u32).iter().collect::<Vec<_>>(), 0)
        }),
        row("bits", &["random::bits"], |x, a| random::bits(&x[0], a.usizes("shape"))),
        row("uniform", &["random::uniform"], |x, a| {
            random::uniform(&x[0], DType::F32, a.usizes("shape"), a.number("minval"), a.number("maxval"))
        }),
        row("normal", &["random::normal"], |x, a| random::normal(&x[0], DType::F32, a.usizes("shape"))),
        row("bernoulli", &["random::bernoulli"], |x, a| random::bernoulli(&x[0], a.number("p"), a.usizes("shape"))),
        row("uniform_as", &["random::uniform"], |x, a| {
            let low = a.number("minval");
            let high = a.number("maxval");
            random::uniform(&x[0], a.dtype("dtype"), a.usizes("shape"), low, high)
        }),
        row("normal_as", &["random::normal"], |x, a| random::normal(&x[0], a.dtype("dtype"), a.usizes("shape"))),
        row("truncated_normal", &["random::truncated_normal"], |x, a| {
            let lower = a.number("lower");
            let upper = a.number("upper");
            random::truncated_normal(&x[0], a.dtype("dtype"), a.usizes("shape"), lower, upper)
        }),
        row("gumbel", &["random::gumbel"], |x, a| random::gumbel(&x[0], a.dtype("dtype"), a.usizes("shape"))),
        row("exponential", &["random::exponential"], |x, a| {
            random::exponential(&x[0], a.dtype("dtype"), a.usizes("shape"))
        }),
        row("bernoulli_with", &["random::bernoulli"], |x, a| random::bernoulli(&x[0], &x[1], a.usizes("shape"))),
        row("categorical", &["random::categorical"], |x, a| random::categorical(&x[0], &x[1], a.axis())),
        row("randint", &["random::randint"], |x, a| {
            random::randint(&x[0], a.dtype("dtype"), a.usizes("shape"), a.i64("low"), a.i64("high"))
        }),
        row("permutation", &["random::permutation"], |x, a| random::permutation(&x[0], a.usize("n"))),
        row("shuffle", &["random::shuffle"], |x, a| random::shuffle(&x[0], &x[1], a.axis())),
        row("choice", &["random::choice"], |x, a| {
            random::choice(&x[0], a.usize("n"), a.usizes("shape"), a.bool("replace"), x.get(1))
        }),
    ]
}
