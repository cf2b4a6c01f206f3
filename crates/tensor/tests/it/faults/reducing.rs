//! Invalid calls of reductions, cumulative reductions and products.

use expect_test::expect;
use fulmen_tensor::{DType, Tensor};

use crate::faults::{check_all, check_starts, integers, zeros};

#[test]
fn over_axes() {
    let x = zeros([2, 3]);
    let truth = Tensor::zeros(DType::Bool, [2, 3]);
    let complex = Tensor::zeros(DType::C64, [2]);
    check_all(
        [
            x.sum([0, -2]),
            x.prod_keepdim(2),
            truth.sum(2),
            Tensor::zeros(DType::Bool, [2, 0]).max(1),
            zeros([2, 0]).max(1),
            complex.mean(0),
            complex.std(0),
            x.var_corrected(3, 1.0),
            integers([2]).norm(2.0, 0),
            x.norm(f64::NAN, 0),
            x.logsumexp(2),
            x.argmax(2),
            zeros([0]).argmin(0),
            complex.argmax(0),
        ],
        expect![[r#"
            sum: axis 0 is named twice in [0, -2]
            prod: axis 2 is not one of the 2 axes of [2, 3]
            sum: axis 2 is not one of the 2 axes of [2, 3]
            max: bool[2, 0] has no element along the axes [1] to choose from
            max: f32[2, 0] has no element along the axes [1] to choose from
            mean: takes real numbers, not c64; use real(), imag() or abs() first
            std: takes real numbers, not c64; use real(), imag() or abs() first
            var_corrected: axis 3 is not one of the 2 axes of [2, 3]
            norm: takes floating-point numbers, not i32; convert with to_dtype() first
            norm: p is NaN; it must be a number or an infinity
            logsumexp: axis 2 is not one of the 2 axes of [2, 3]
            argmax: axis 2 is not one of the 2 axes of [2, 3]
            argmin: [0] has no element along axis 0
            argmax: takes real numbers, not c64; use real(), imag() or abs() first
        "#]],
    );
}

#[test]
fn running() {
    let x = zeros([2, 3]);
    let truth = Tensor::zeros(DType::Bool, [2, 3]);
    check_all(
        [
            x.cumsum(2),
            truth.cumsum(3),
            truth.cummax(0).0,
            integers([2]).logcumsumexp(0),
            x.cummax(-3).0,
            x.softmax(2),
            integers([2]).log_softmax(0),
        ],
        expect![[r#"
            cumsum: axis 2 is not one of the 2 axes of [2, 3]
            cumsum: axis 3 is not one of the 2 axes of [2, 3]
            cummax: takes numbers, not bool; convert with to_dtype() first
            logcumsumexp: takes floating-point numbers, not i32; convert with to_dtype() first
            cummax: axis -3 is not one of the 2 axes of [2, 3]
            softmax: axis 2 is not one of the 2 axes of [2, 3]
            log_softmax: takes floating-point numbers, not i32; convert with to_dtype() first
        "#]],
    );
}

#[test]
fn products() {
    let x = zeros([2, 3]);
    let v = zeros([3]);
    check_all(
        [
            x.matmul(&x),
            zeros([]).matmul(&x),
            zeros([2, 2, 3]).matmul(&zeros([3, 3, 4])),
            x.dot_general(&x, (0, []), (1, 1)),
            x.dot_general(&x, ([], []), (0, 1)),
            x.dot_general(&x, (0, 0), (0, 0)),
            Tensor::einsum("ij,jk->ik", &[&x, &x]),
            Tensor::einsum("ij,jk->iz", &[&x, &v]),
            Tensor::einsum("ij->j", &[&x, &x]),
            Tensor::einsum("i1->i", &[&x]),
            x.tensordot(&x, (0, 1)),
            x.tensordot(&x, ([0, 1], 1)),
            x.outer(&v),
            v.trace(),
            v.diagonal(0, 0, 1),
            x.diagonal(0, 1, 1),
            x.diag_embed(i64::MAX),
            zeros([]).diag(0),
            Tensor::linspace(DType::I32, 0.0, 1.0, 3),
            Tensor::arange_step(DType::F32, 0.0, 1.0, 0.0),
            Tensor::arange_step(DType::I32, 0.0, 1.0, 0.5),
        ],
        expect![[r#"
            matmul: cannot multiply [2, 3] by [2, 3]: the last axis of the left has 3 elements, the rows of the right are 2
            matmul: cannot multiply [] by [2, 3]: a scalar is not a matrix, use *
            matmul: [2] and [3] do not broadcast: counted from the last, axis -1 has 2 and 3, and neither is 1
            dot_general: the two sides have 1 and 0 batch axes
            dot_general: cannot multiply [2, 3] by [2, 3]: the contracted axes 0 and 1 have 2 and 3 elements
            dot_general: the axes [0] and [0] are not different axes of the left side [2, 3]
            einsum: this axis of operand 1, [2, 3], has 2 elements, but elsewhere the label has 3
              ij,jk->ik
                 ^
            einsum: operand 1 has 1 axes, [3], but the equation labels 2
              ij,jk->iz
                 ^
            einsum: the equation has 1 operand, but 2 were given
              ij->j
                ^
            einsum: '1' is not a letter, `,`, `...` or `->`
              i1->i
               ^
            tensordot: cannot multiply [2, 3] by [2, 3]: the contracted axes 0 and 1 have 2 and 3 elements
            tensordot: the two sides have 2 and 1 contracted axes
            outer: takes two vectors, but one is f32[2, 3]
            trace: [3] has fewer than two axes, but rows and columns are needed
            diagonal: axis 1 is not one of the 1 axes of [3]
            diagonal: rows and columns are the same axis 1 of [2, 3]
            diag_embed: matrices of 9223372036854775810 rows and columns of f32[2, 3]: more bytes than a program can address
            diag: takes a vector or a matrix, not []
            linspace: gives floating-point numbers, not i32
            arange_step: 0 to 1 in steps of 0 is not a finite sequence of numbers
            arange_step: 0 to 1 in steps of 0.5 do not fit i32
        "#]],
    );
}

#[test]
fn reductions() {
    let x = zeros([2, 3]);
    let empty = zeros([0, 3]);
    let integers = Tensor::zeros(DType::I32, [2, 3]);
    let bools = Tensor::ones(DType::Bool, [2]);
    check_starts(&[
        (x.prod(2), "prod: axis 2 is not one of the 2 axes of [2, 3]"),
        (x.any([0, -2]), "any: axis 0 is named twice in [0, -2]"),
        (x.count_nonzero(5), "count_nonzero: axis 5"),
        (empty.max(0), "max: f32[0, 3] has no element along the axes [0] to choose from"),
        (empty.argmax(0), "argmax: [0, 3] has no element along axis 0"),
        (empty.argmin_all(), "argmin_all: [0] has no element along axis 0"),
        (empty.logsumexp(0), "logsumexp: [0, 3] has no element along axis 0"),
        (
            Tensor::zeros(DType::Bool, [0]).argmax_all(),
            "argmax_all: [0] has no element along axis 0",
        ),
        (
            x.var_corrected(0, f64::NAN),
            "var_corrected: the correction must be a finite number, not NaN",
        ),
        (integers.norm(2.0, 0), "norm: takes floating-point numbers, not i32"),
        (x.norm(f64::NAN, 0), "norm: p is NaN"),
        (empty.norm(f64::INFINITY, 0), "norm: f32[0, 3] has no element along the axes [0]"),
        (x.cumsum(2), "cumsum: axis 2 is not one of the 2 axes of [2, 3]"),
        (integers.logcumsumexp(0), "logcumsumexp: takes floating-point numbers, not i32"),
        (bools.cummax(0).0, "cummax: takes numbers, not bool"),
        (bools.cummin(0).1, "cummin: takes numbers, not bool"),
    ]);
}

#[test]
fn products_and_diagonals() {
    let x = zeros([2, 3]);
    let y = zeros([4, 5]);
    check_starts(&[
        (
            Tensor::einsum("ij,jk->ik", &[&x, &y]),
            "einsum: this axis of operand 1, [4, 5], has 4 elements, but elsewhere the label has 3\n  ij,jk->ik\n     \
             ^",
        ),
        (
            Tensor::einsum("ij->ij", &[] as &[Tensor]),
            "einsum: the equation has 1 operand, but 0 were given",
        ),
        (
            Tensor::einsum("", &[] as &[Tensor]),
            "einsum: the equation has 1 operand, but 0 were given",
        ),
        (
            Tensor::einsum("ij,jk->ik", &[&x.gt(0.0), &x.gt(0.0).t()]),
            "einsum: takes numbers, not bool",
        ),
        (
            x.tensordot(&y, (1, 0)),
            "tensordot: cannot multiply [2, 3] by [4, 5]: the contracted axes 1 and 0 have 3 and 4",
        ),
        (x.tensordot(&y, (1, [])), "tensordot: the two sides have 1 and 0 contracted axes"),
        (x.tensordot(&y, (2, 0)), "tensordot: axis 2"),
        (x.outer(&y), "outer: takes two vectors, but one is f32[2, 3]"),
        (x.diagonal(0, 1, -1), "diagonal: rows and columns are the same axis 1 of [2, 3]"),
        (x.diagonal(0, 0, 2), "diagonal: axis 2"),
        (zeros([]).diag_embed(0), "diag_embed: a scalar has no axis to put on a diagonal"),
        (zeros([2]).diag_embed(i64::MIN), "diag_embed: matrices of 9223372036854775810 rows"),
        (zeros([2, 2, 2]).diag(0), "diag: takes a vector or a matrix, not [2, 2, 2]"),
        (zeros([2]).trace(), "trace: [2] has fewer than two axes, but rows and columns are needed"),
        (
            Tensor::eye(DType::F32, usize::MAX, 2),
            "eye: f32[18446744073709551615, 2] has more bytes than",
        ),
    ]);
    // A diagonal beyond the corners is empty for every offset.
    for offset in [i64::MIN, -3, 3, i64::MAX] {
        assert_eq!(x.diagonal(offset, 0, 1).ty().to_string(), "f32[0]");
    }
}
