//! Invalid calls of operations that arrange elements.

use expect_test::expect;
use fulmen_tensor::{DType, PadMode, Tensor};

use crate::faults::{check_all, check_starts, check_words, integers, zeros};

#[test]
fn shapes_and_axes() {
    let x = zeros([2, 3, 4]);
    check_all(
        [
            x.view(&[5, -1]),
            x.view(&[-1, -1]),
            x.unflatten(1, &[2, 2]),
            x.movedim([0, 1], 2),
            x.movedim([0, 0], [1, 2]),
            x.expand(&[2, 2, 4]),
            x.unsqueeze(5),
            x.flatten(2, 1),
            x.transpose(0, 3),
            x.flip([0, -3]),
            x.roll(1, [0, 1]),
            x.roll(1, 3),
            zeros([]).t(),
        ],
        expect![[r#"
            view: [2, 3, 4]: 24 elements cannot become [5, -1]
            view: [2, 3, 4]: the sizes [-1, -1] must not be negative, except that one may be -1
            unflatten: axis 1 of [2, 3, 4]: 3 elements cannot become [2, 2]
            movedim: [0, 1] and [2] differ in length; pass one target for each axis
            movedim: axis 0 is named twice in [0, 0]
            broadcast_to: [2, 3, 4] cannot be broadcast to [2, 2, 4] along the axes [0, 1, 2]
            unsqueeze: [2, 3, 4] has no position 5 for a new axis
            flatten: the first axis 2 comes after the last, 1
            transpose: axis 3 is not one of the 3 axes of [2, 3, 4]
            flip: axis 0 is named twice in [0, -3]
            roll: [1] and [0, 1] differ in length; pass one shift for each axis
            roll: axis 3 is not one of the 3 axes of [2, 3, 4]
            t: [] has fewer than two axes to swap
        "#]],
    );
}

#[test]
fn parts_and_copies() {
    let x = zeros([2, 3, 4]);
    check_all(
        [
            x.split(0, 1).remove(0),
            x.split(2, 3).remove(0),
            zeros([1 << 20]).split(8, 0).remove(0),
            x.split_with_sizes(&[1, 1], 1).remove(0),
            x.split_with_sizes(&[1, 2], 3).remove(0),
            x.chunk(0, 0).remove(0),
            x.unfold(1, 4, 1),
            x.unfold(1, 2, 0),
            x.unfold(3, 1, 1),
            x.unbind(3).remove(0),
            x.slice_along(1, 0.., 0),
            x.index(1, 3),
            x.index(1, -4),
            x.repeat(&[2]),
            x.repeat_interleave(2, 3),
            Tensor::stack(&[&x, &integers([2])], 0),
            Tensor::concatenate(&[&x, &zeros([2, 3])], 0),
            Tensor::concatenate(&[&x, &zeros([2, 4, 4])], 2),
        ],
        expect![[r#"
            split: a part must have at least one element, but the size is 0
            split: axis 3 is not one of the 3 axes of [2, 3, 4]
            split: parts of 8 elements of axis 0 of [1048576] are more than 65536
            split_with_sizes: the sizes [1, 1] add up to 2; axis 1 of [2, 3, 4] has 3
            split_with_sizes: axis 3 is not one of the 3 axes of [2, 3, 4]
            chunk: the number of chunks must be from 1 to 65536, not 0
            unfold: axis 1 of [2, 3, 4] is shorter than a window of 4 elements
            unfold: the size of a window and the step must be at least 1, but they are 2 and 0
            unfold: axis 3 is not one of the 3 axes of [2, 3, 4]
            unbind: axis 3 is not one of the 3 axes of [2, 3, 4]
            slice: 0..3 in steps of 0 is not within axis 1 of [2, 3, 4]
            index: there is no index 3 along axis 1 of [2, 3, 4]
            index: there is no index -4 along axis 1 of [2, 3, 4]
            repeat: [2] names fewer axes than [2, 3, 4] has
            repeat_interleave: axis 3 is not one of the 3 axes of [2, 3, 4]
            stack: tensor 1 is i32[2] and the first is f32[2, 3, 4]: their shapes must agree
            concatenate: tensor 1 is f32[2, 3] and the first is f32[2, 3, 4]: all but axis 0 must agree
            concatenate: tensor 1 is f32[2, 4, 4] and the first is f32[2, 3, 4]: all but axis 2 must agree
        "#]],
    );
}

#[test]
fn borders() {
    let x = zeros([2, 3]);
    check_all(
        [
            x.pad_mode(&[(0, 0), (3, 0)], PadMode::Reflect),
            x.pad_mode(&[(0, 0), (0, 4)], PadMode::Circular),
            zeros([0]).pad_mode(&[(1, 0)], PadMode::Replicate),
            x.pad_mode(&[(0, 0), (0, 0), (0, 0)], PadMode::Zeros),
            integers([2]).pad_mode(&[(1, 0)], PadMode::Constant(0.5)),
            x.pad(&zeros([1]), &[0, 0], &[0, 0], &[0, 0]),
            x.pad(&zeros([]), &[0], &[0, 0], &[0, 0]),
            x.tril(0).bitcast(DType::F64),
        ],
        expect![[r#"
            pad_mode: reflect padding must be less than the number of elements: padding 3 of axis 1, which has 3
            pad_mode: circular padding must not exceed the number of elements: padding 4 of axis 1, which has 3
            pad_mode: there is no element to repeat: padding 1 of axis 0, which has 0
            pad_mode: padding [(0, 0), (0, 0), (0, 0)] names more axes than [2, 3] has
            number: 0.5 is not an i32; convert the tensor with to_dtype() first
            pad: the padding value must be a scalar of f32, not f32[1]
            pad: low, high and interior must have one entry for each of the 2 axes of f32[2, 3]
            bitcast: 2 of f32 make one f64: the last axis of f32[2, 3] must have that size
        "#]],
    );
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    let x = zeros([2, 3]);
    check_words(&x.view(&[-1, -1]), "one may be -1");
    check_words(&x.view(&[4, -1]), "6 elements cannot become [4, -1]");
    check_words(&x.unflatten(1, &[2, -1]), "3 elements cannot become");
    check_words(&x.movedim([0, 0], [0, 1]), "named twice");
    check_words(&x.expand(&[-1, 2, 3]), "keeps the size of an existing axis");
    check_words(&x.split_with_sizes(&[1, 1], 1)[0], "add up to 2; axis 1 of [2, 3] has 3");
    check_words(&x.chunk(0, 0)[0], "the number of chunks must be");
    check_words(&zeros([1 << 20]).unbind(0)[0], "more than 65536 tensors");
    check_words(&x.index(0, -3), "there is no index -3");
    check_words(&x.slice_along(0, .., 0), "in steps of 0");
    check_words(&x.roll(1, []), "differ in length");
    check_words(&x.repeat(&[2]), "fewer axes");
    check_words(&x.tile(&[usize::MAX, usize::MAX]), "2^47");
    check_words(&x.pad_mode(&[(3, 0)], PadMode::Reflect), "reflect padding must be less");
    check_words(&x.pad_mode(&[(0, 4)], PadMode::Circular), "circular padding must not exceed");
    check_words(&x.pad_mode(&[(i64::MIN, 0)], PadMode::Zeros), "2^47");
    check_words(&x.pad_mode(&[(-2, -2)], PadMode::Zeros), "a negative size");
}

#[test]
fn sequences_and_masks() {
    check_starts(&[
        (
            Tensor::arange_step(DType::F32, 0.0, 1.0, 0.0),
            "arange_step: 0 to 1 in steps of 0 is not a finite sequence of numbers",
        ),
        (
            Tensor::arange_step(DType::F32, 0.0, f64::INFINITY, 1.0),
            "arange_step: 0 to inf in steps of 1 is not a finite sequence of numbers",
        ),
        (
            Tensor::arange_step(DType::I32, 0.0, 1.0, 0.5),
            "arange_step: 0 to 1 in steps of 0.5 do not fit i32",
        ),
        (
            Tensor::arange_step(DType::U8, 0.0, 400.0, 100.0),
            "arange_step: the last number, 300, does not fit u8",
        ),
        (
            Tensor::arange_step(DType::I8, 0.0, 300.0, 100.0),
            "arange_step: the last number, 200, does not fit i8",
        ),
        (Tensor::arange_step(DType::F32, 0.0, 1e300, 1.0), "arange_step: f32["),
        (
            Tensor::linspace(DType::I32, 0.0, 1.0, 3),
            "linspace: gives floating-point numbers, not i32",
        ),
        (
            Tensor::meshgrid(&[&zeros([2]), &zeros([])])[1].clone(),
            "meshgrid: takes vectors, but tensor 1 is f32[]",
        ),
        (
            zeros([2]).masked_fill(&zeros([2]), 0.0),
            "masked_fill: the mask must be bool, not f32[2]",
        ),
        (
            zeros([2]).masked_fill(&zeros([3]).gt(0.0), 0.0),
            "masked_fill: [3] and [2] do not broadcast",
        ),
    ]);
}
