//! Invalid calls of sorts and selections.

use expect_test::expect;
use fulmen_tensor::{DType, Tensor};

use crate::faults::{check_all, check_starts, integers, zeros};

#[test]
fn order() {
    let x = zeros([2, 3]);
    let truth = Tensor::zeros(DType::Bool, [2, 3]);
    check_all(
        [
            x.sort(2, false).0,
            zeros([]).sort(0, false).0,
            x.argsort(-3, true),
            Tensor::sort_together(&[&x, &integers([2])], 1, 0, false).remove(0),
            Tensor::sort_together(&[&x], 2, 0, false).remove(0),
            Tensor::complex(&x, &x).sort(0, false).0,
            x.topk_along(4, 1, true).0,
            x.topk_along(1, 2, true).1,
            x.kthvalue(0, 1).0,
            x.kthvalue(4, 1).1,
            zeros([2, 0]).median(1).0,
            x.masked_fill(&zeros([2, 3]), 1.0),
            x.masked_fill(&Tensor::zeros(DType::Bool, [4]), 1.0),
            integers([2]).masked_fill(&Tensor::zeros(DType::Bool, [2]), 0.5),
            truth.nonzero_static(1 << 50, 0),
        ],
        expect![[r#"
            sort: axis 2 is not one of the 2 axes of [2, 3]
            sort: axis 0 is not one of the 0 axes of []
            argsort: axis -3 is not one of the 2 axes of [2, 3]
            sort_together: tensor 1 is i32[2] and the first is f32[2, 3]: the shapes differ
            sort_together: 1 tensor cannot have 2 keys
            sort: the complex numbers of c64[2, 3] have no order; sort by real(), imag() or abs()
            topk: axis 1 of [2, 3] has fewer than 4 elements
            topk: axis 2 is not one of the 2 axes of [2, 3]
            kthvalue: there is no element number 0 along axis 1 of [2, 3]
            kthvalue: there is no element number 4 along axis 1 of [2, 3]
            median: [2, 0] has no element along axis 1
            masked_fill: the mask must be bool, not f32[2, 3]; make one with lt(), eq() or another comparison
            masked_fill: [4] and [2, 3] do not broadcast: counted from the last, axis -1 has 4 and 3, and neither is 1
            number: 0.5 is not an i32; convert the tensor with to_dtype() first
            full: i32[1125899906842624, 2] has more bytes than a program can address, 2^47
        "#]],
    );
}

#[test]
fn sorts() {
    let x = zeros([2, 3]);
    let together = Tensor::sort_together(&[&x, &zeros([2])], 1, 0, false);
    assert_eq!(together.len(), 2);
    check_starts(&[
        (x.sort(2, false).1, "sort: axis 2 is not one of the 2 axes of [2, 3]"),
        (x.argsort(-3, true), "argsort: axis -3 is not one of the 2 axes of [2, 3]"),
        (
            together[1].clone(),
            "sort_together: tensor 1 is f32[2] and the first is f32[2, 3]: the shapes differ",
        ),
        (
            Tensor::sort_together(&[&x], 0, 0, false)[0].clone(),
            "sort_together: 1 tensor cannot have 0 keys",
        ),
        (x.topk_along(4, 1, true).0, "topk: axis 1 of [2, 3] has fewer than 4 elements"),
        (x.topk_along(1, 2, true).1, "topk: axis 2"),
        (x.kthvalue(0, 1).0, "kthvalue: there is no element number 0 along axis 1 of [2, 3]"),
        (x.kthvalue(4, 1).1, "kthvalue: there is no element number 4"),
        (zeros([2, 0]).median(1).0, "median: [2, 0] has no element along axis 1"),
    ]);
    assert!(Tensor::sort_together(&[] as &[Tensor], 1, 0, false).is_empty());
}
