//! Keys, and what is drawn from them.

use fulmen_tensor::{DType, Tensor, random};

use super::{Row, row};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("key", &["random::key"], |_, a| random::key(a.u64("seed"))),
        row("fold_in", &["random::fold_in"], |x, a| random::fold_in(&x[0], a.u64("data") as u32)),
        row("split", &["random::fold_in"], |x, a| {
            let keys: Vec<Tensor> = (0..a.u64("n") as u32).map(|i| random::fold_in(&x[0], i)).collect();
            Tensor::stack(&keys.iter().collect::<Vec<_>>(), 0)
        }),
        row("bits", &["random::bits"], |x, a| random::bits(&x[0], a.usizes("shape"))),
        row("uniform", &["random::uniform"], |x, a| {
            random::uniform(&x[0], DType::F32, a.usizes("shape"), a.number("minval"), a.number("maxval"))
        }),
        row("normal", &["random::normal"], |x, a| random::normal(&x[0], DType::F32, a.usizes("shape"))),
        row("bernoulli", &["random::bernoulli"], |x, a| random::bernoulli(&x[0], a.number("p"), a.usizes("shape"))),
    ]
}
