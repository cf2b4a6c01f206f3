//! Invalid calls of reads and writes by index.

use expect_test::expect;
use fulmen_tensor::{Combine, DType, Tensor};

use crate::faults::{check_all, check_words, integers, zeros};

#[test]
fn reading() {
    let x = zeros([3, 4]);
    check_all(
        [
            x.take(2, &integers([2])),
            x.take(0, &zeros([2])),
            x.index_select(0, &integers([2, 2])),
            x.gather(0, &integers([2])),
            x.gather(0, &zeros([2, 4])),
            x.gather(0, &integers([2, 5])),
            x.take_along_axis(2, &integers([2, 4])),
            x.take_along_axis(0, &integers([2, 3])),
            x.gather_nd(&integers([2, 3])),
            x.gather_nd(&zeros([2, 1])),
            zeros([0, 2]).index_select(0, &integers([1])),
            zeros([2]).one_hot(3),
        ],
        expect![[r#"
            take: axis 2 is not one of the 2 axes of [3, 4]
            take: the indices must be integers, not f32; convert with to_dtype() first
            index_select: the indices i32[2, 2] are not a vector; take() accepts indices of any shape
            gather: the indices i32[2] must have the rank of f32[3, 4] and may be larger along axis 0 only
            gather: the indices must be integers, not f32; convert with to_dtype() first
            gather: the indices i32[2, 5] must have the rank of f32[3, 4] and may be larger along axis 0 only
            take_along_axis: axis 2 is not one of the 2 axes of [3, 4]
            take_along_axis: the indices i32[2, 3] do not match f32[3, 4]: the ranks must be equal, and along every axis except 0 the sizes must be equal or 1
            gather_nd: the indices i32[2, 3] must have the shape […, k] and name points in the first k of the 2 axes of f32[3, 4]
            gather_nd: the indices must be integers, not f32; convert with to_dtype() first
            index_select: [0, 2] has no element along axis 0
            one_hot: class indices must be integers, not f32[2]; convert with to_dtype()
        "#]],
    );
}

#[test]
fn writing() {
    let x = zeros([3, 4]);
    let rows = integers([2]);
    check_all(
        [
            x.index_add(0, &rows, &zeros([2, 3])),
            x.index_copy(0, &rows, &zeros([3, 4])),
            x.index_copy(0, &zeros([2]), &zeros([2, 4])),
            x.index_reduce(3, &rows, &zeros([2, 4]), Combine::Max),
            integers([3]).index_copy(0, &rows, &Tensor::zeros(DType::Bool, [3])),
            x.scatter(0, &integers([2]), &zeros([2])),
            x.scatter_add(0, &zeros([2, 4]), &zeros([2, 4])),
            Tensor::zeros(DType::Bool, [3]).scatter_add(0, &rows, &Tensor::zeros(DType::Bool, [2])),
            x.scatter_reduce(5, &integers([2, 4]), &zeros([2, 4]), Combine::Mul),
            x.scatter_nd(&integers([2, 3]), &zeros([2]), Combine::Set),
            x.scatter_nd(&integers([2, 2]), &zeros([3]), Combine::Add),
        ],
        expect![[r#"
            index_add: the updates have the shape [2, 3]; for indices [2] along axis 0 of [3, 4] it must be [2, 4]
            index_copy: the updates have the shape [3, 4]; for indices [2] along axis 0 of [3, 4] it must be [2, 4]
            index_copy: the indices must be integers, not f32; convert with to_dtype() first
            index_reduce: axis 3 is not one of the 2 axes of [3, 4]
            index_copy: the updates have the shape [3]; for indices [2] along axis 0 of [3] it must be [2]
            scatter: the indices i32[2] must have the rank of f32[3, 4] and may be larger along axis 0 only
            scatter_add: the indices must be integers, not f32; convert with to_dtype() first
            scatter_add: takes numbers, not bool; convert with to_dtype() first
            scatter_reduce: axis 5 is not one of the 2 axes of [3, 4]
            scatter_nd: the indices i32[2, 3] must have the shape […, k] and name points in the first k of the 2 axes of f32[3, 4]
            scatter_nd: the updates have the shape [3]; for points [2, 2] in [3, 4] it must be [2]
        "#]],
    );
}

#[test]
fn boxes_at_computed_places() {
    let x = zeros([3, 4]);
    let start = Tensor::scalar(1i32);
    let starts = [start.clone(), start.clone()];
    check_all(
        [
            x.dynamic_slice(&starts[..1], &[1, 1]),
            x.dynamic_slice(&starts, &[4, 1]),
            x.dynamic_slice(&starts, &[1]),
            x.dynamic_slice(&[start.clone(), zeros([])], &[1, 1]),
            x.dynamic_slice(&[start.clone(), integers([1])], &[1, 1]),
            x.dynamic_update_slice(&zeros([4, 1]), &starts),
            x.dynamic_update_slice(&zeros([1]), &starts),
            x.dynamic_update_slice(&integers([1, 1]), &starts[..1]),
        ],
        expect![[r#"
            dynamic_slice: got 1 start and 2 sizes; f32[3, 4] has 2 axes
            dynamic_slice: a box of [4, 1] is not within f32[3, 4]
            dynamic_slice: got 2 starts and 1 size; f32[3, 4] has 2 axes
            dynamic_slice: the start of axis 1 must be an integer scalar, not f32[]
            dynamic_slice: the start of axis 1 must be an integer scalar, not i32[1]
            dynamic_update_slice: a box of [4, 1] is not within f32[3, 4]
            dynamic_update_slice: got 2 starts and 1 size; f32[3, 4] has 2 axes
            dynamic_update_slice: the dtypes differ: f32[3, 4] and i32[1, 1]; convert one with to_dtype()
        "#]],
    );
}

#[test]
fn indices_that_do_not_fit_are_refused() {
    let x = zeros([2, 3]);
    let at = Tensor::from_slice(&[0i32, 1], [2]);
    check_words(&x.gather(1, &at), "must have the rank of f32[2, 3]");
    check_words(&x.gather(1, &zeros([2, 1])), "must be integers, not f32");
    check_words(
        &x.take_along_axis(0, &Tensor::zeros(DType::I32, [1, 2])),
        "do not match f32[2, 3]",
    );
    check_words(&x.index_select(0, &Tensor::zeros(DType::I32, [2, 2])), "are not a vector");
    check_words(&x.gather_nd(&Tensor::zeros(DType::I32, [1, 3])), "first k of the 2 axes");
    check_words(
        &x.scatter(1, &Tensor::zeros(DType::I32, [2, 2]), &zeros([1, 2])),
        "have more elements along an axis than",
    );
    check_words(&x.index_copy(0, &at, &zeros([2, 2])), "it must be [2, 3]");
    check_words(
        &x.scatter_nd(&Tensor::zeros(DType::I32, [4, 0]), &zeros([4, 2, 3]), Combine::Set),
        "name no axis",
    );
    check_words(&x.dynamic_slice(&[Tensor::scalar(0i32)], &[1, 1]), "1 start and 2 sizes");
    check_words(
        &x.dynamic_slice(&[Tensor::scalar(0i32), Tensor::scalar(0.0f32)], &[1, 1]),
        "must be an integer scalar",
    );
    check_words(
        &x.dynamic_slice(&[Tensor::scalar(0i32), Tensor::scalar(0i32)], &[1, 4]),
        "is not within",
    );
}
