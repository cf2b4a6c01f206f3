//! What reductions, sorts, products by equation, diagonals, sequences and draws refuse, and that the fault names the
//! method and the user's line.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use fulmen_tensor::{DType, Tensor, random};

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(DType::F32, shape)
}

/// Each fault begins with its text and comes from this file.
#[track_caller]
fn check(rows: &[(Tensor, &str)]) {
    for (refused, expected) in rows {
        let text = refused.fault().unwrap_or_else(|| panic!("not refused: {expected}")).to_string();
        assert!(text.starts_with(expected), "{text}\nis not\n{expected}");
        assert!(text.contains("refusals_of_reductions.rs:"), "{text}");
    }
}

#[test]
fn reductions() {
    let (x, empty, integers) = (zeros(&[2, 3]), zeros(&[0, 3]), Tensor::zeros(DType::I32, [2, 3]));
    let bools = Tensor::ones(DType::Bool, [2]);
    check(&[
        (x.prod(&[2], false), "prod: axis 2 is not one of the 2 axes of [2, 3]"),
        (x.any(&[0, -2], false), "any: axis 0 is named twice in [0, -2]"),
        (x.count_nonzero(&[5], false), "count_nonzero: axis 5"),
        (empty.max(&[0], false), "max: f32[0, 3] has no element along the axes [0] to choose from"),
        (empty.argmax(0, false), "argmax: [0, 3] has no element along axis 0"),
        (empty.argmin_all(), "argmin_all: [0] has no element along axis 0"),
        (empty.logsumexp(&[0], false), "logsumexp: [0, 3] has no element along axis 0"),
        (bools.sum(&[0], false), "sum: takes numbers, not bool"),
        (integers.std(&[0], false), "std: takes floating-point numbers, not i32"),
        (x.var_corrected(&[0], f64::NAN, false), "var_corrected: the correction NaN is no number"),
        (integers.norm(2.0, &[0], false), "norm: takes floating-point numbers, not i32"),
        (x.norm(f64::NAN, &[0], false), "norm: p is NaN"),
        (empty.norm(f64::INFINITY, &[0], false), "norm: f32[0, 3] has no element along the axes [0]"),
        (x.cumsum(2), "cumsum: axis 2 is not one of the 2 axes of [2, 3]"),
        (integers.logcumsumexp(0), "logcumsumexp: takes floating-point numbers, not i32"),
        (bools.cummax(0).0, "cummax: takes numbers, not bool"),
        (bools.cummin(0).1, "cummin: takes numbers, not bool"),
    ]);
}

#[test]
fn sorts() {
    let x = zeros(&[2, 3]);
    let together = Tensor::sort_together(&[&x, &zeros(&[2])], 1, 0, false);
    assert_eq!(together.len(), 2);
    check(&[
        (x.sort(2, false).1, "sort: axis 2 is not one of the 2 axes of [2, 3]"),
        (x.argsort(-3, true), "argsort: axis -3 is not one of the 2 axes of [2, 3]"),
        (together[1].clone(), "sort_together: tensor 1 is f32[2] and the first is f32[2, 3]: the shapes differ"),
        (
            Tensor::sort_together(&[&x], 0, 0, false)[0].clone(),
            "sort_together: there are 1 tensors and 0 keys among them",
        ),
        (x.topk(4, 1, true).0, "topk: there are no 4 elements along axis 1 of [2, 3]"),
        (x.topk(1, 2, true).1, "topk: axis 2"),
        (x.kthvalue(0, 1, false).0, "kthvalue: there is no element number 0 along axis 1 of [2, 3]"),
        (x.kthvalue(4, 1, false).1, "kthvalue: there is no element number 4"),
        (zeros(&[2, 0]).median(1, false).0, "median: [2, 0] has no element along axis 1"),
    ]);
    assert!(Tensor::sort_together(&[], 1, 0, false).is_empty());
}

#[test]
fn products_and_diagonals() {
    let (x, y) = (zeros(&[2, 3]), zeros(&[4, 5]));
    check(&[
        (
            Tensor::einsum("ij,jk->ik", &[&x, &y]),
            "einsum: this axis of operand 1, [4, 5], has 4 elements, and elsewhere it has 3\n  ij,jk->ik\n     ^",
        ),
        (Tensor::einsum("ij->ij", &[]), "einsum: the equation names 1 operands, 0 were given"),
        (Tensor::einsum("", &[]), "einsum: the equation names 1 operands, 0 were given"),
        (Tensor::einsum("ij,jk->ik", &[&x.gt(0.0), &x.gt(0.0).t()]), "einsum: takes numbers, not bool"),
        (
            x.tensordot(&y, (&[1], &[0])),
            "tensordot: cannot multiply [2, 3] by [4, 5]: the contracted axes 1 and 0 have 3 and 4",
        ),
        (x.tensordot(&y, (&[1], &[])), "tensordot: the two sides have 1 and 0 contracted axes"),
        (x.tensordot(&y, (&[2], &[0])), "tensordot: axis 2"),
        (x.outer(&y), "outer: takes two vectors, one is f32[2, 3]"),
        (x.diagonal(0, 1, -1), "diagonal: rows and columns are the same axis 1 of [2, 3]"),
        (x.diagonal(0, 0, 2), "diagonal: axis 2"),
        (zeros(&[]).diag_embed(0), "diag_embed: a scalar has no axis to put on a diagonal"),
        (zeros(&[2]).diag_embed(i64::MIN), "diag_embed: matrices of 9223372036854775810 rows"),
        (zeros(&[2, 2, 2]).diag(0), "diag: takes a vector or a matrix, not [2, 2, 2]"),
        (zeros(&[2]).trace(), "trace: [2] has no two axes of rows and columns"),
        (Tensor::eye(DType::F32, usize::MAX, 2), "eye: f32[18446744073709551615, 2] has more bytes than"),
    ]);
    // Beyond the corners there is nothing, however far.
    for offset in [i64::MIN, -3, 3, i64::MAX] {
        assert_eq!(x.diagonal(offset, 0, 1).ty().to_string(), "f32[0]");
    }
}

#[test]
fn sequences_and_masks() {
    check(&[
        (Tensor::arange_step(DType::F32, 0.0, 1.0, 0.0), "arange_step: 0 to 1 in steps of 0 is no row of numbers"),
        (
            Tensor::arange_step(DType::F32, 0.0, f64::INFINITY, 1.0),
            "arange_step: 0 to inf in steps of 1 is no row of numbers",
        ),
        (Tensor::arange_step(DType::I32, 0.0, 1.0, 0.5), "arange_step: 0 to 1 in steps of 0.5 are no elements of i32"),
        (Tensor::arange_step(DType::U8, 0.0, 400.0, 100.0), "arange_step: the last number, 300, is no element of u8"),
        (Tensor::arange_step(DType::I8, 0.0, 300.0, 100.0), "arange_step: the last number, 200, is no element of i8"),
        (Tensor::arange_step(DType::F32, 0.0, 1e300, 1.0), "arange_step: f32["),
        (Tensor::linspace(DType::I32, 0.0, 1.0, 3), "linspace: gives floating-point numbers, not i32"),
        (Tensor::meshgrid(&[&zeros(&[2]), &zeros(&[])])[1].clone(), "meshgrid: takes vectors, tensor 1 is f32[]"),
        (zeros(&[2]).masked_fill(&zeros(&[2]), 0.0), "masked_fill: the mask must be bool, it is f32[2]"),
        (zeros(&[2]).masked_fill(&zeros(&[3]).gt(0.0), 0.0), "masked_fill: [3] and [2] do not broadcast"),
    ]);
}

#[test]
fn draws() {
    let (key, wrong) = (random::key(0), zeros(&[2]));
    let no_key = "a random key is u32[2], this is f32[2]";
    let half = Tensor::full(DType::F32, [3], 0.5);
    check(&[
        (random::split(&wrong, 2)[1].clone(), &format!("fold_in: {no_key}")),
        (random::randint(&wrong, DType::I32, [2], 0, 1), &format!("randint: {no_key}")),
        (random::truncated_normal(&wrong, DType::F32, [2], 0.0, 1.0), &format!("truncated_normal: {no_key}")),
        (random::gumbel(&wrong, DType::F32, [2]), &format!("gumbel: {no_key}")),
        (random::exponential(&wrong, DType::F32, [2]), &format!("exponential: {no_key}")),
        (random::categorical(&wrong, &half, 0), &format!("categorical: {no_key}")),
        (random::permutation(&wrong, 1), &format!("permutation: {no_key}")),
        (random::shuffle(&wrong, &half, 0), &format!("shuffle: {no_key}")),
        (random::choice(&wrong, 2, [1], true, None), &format!("choice: {no_key}")),
        (random::randint(&key, DType::F32, [2], 0, 1), "randint: draws integers, not f32"),
        (random::randint(&key, DType::I32, [2], 1, 1), "randint: the lower bound 1 must be below the upper, 1"),
        (
            random::randint(&key, DType::U8, [2], 0, 257),
            "randint: the numbers from 0 to 257 are not all of u8, 0 to 255",
        ),
        (random::truncated_normal(&key, DType::F32, [2], 1.0, f64::NAN), "truncated_normal: the lower bound 1 must"),
        (random::gumbel(&key, DType::I32, [2]), "gumbel: draws floating-point numbers, not i32"),
        (random::bernoulli(&key, &half, [2]), "bernoulli: the probabilities, f32[3], do not broadcast to [2]"),
        (random::categorical(&key, &zeros(&[2, 0]), 1), "categorical: [2, 0] has no element along axis 1"),
        (
            random::categorical(&key, &Tensor::zeros(DType::I32, [2]), 0),
            "categorical: draws floating-point numbers, not i32",
        ),
        (random::permutation(&key, 1 << 40), "permutation: 1099511627776 numbers are more than an i32 counts"),
        (random::shuffle(&key, &half, 1), "shuffle: axis 1"),
        (random::choice(&key, 0, [1], true, None), "choice: there is nothing to choose from: n is 0"),
        (random::choice(&key, 2, [3], false, None), "choice: 3 different ones of 2 cannot be chosen"),
        (
            random::choice(&key, 2, [3], true, Some(&half)),
            "choice: the probabilities must be a vector of 2 floats, they are",
        ),
    ]);
}
