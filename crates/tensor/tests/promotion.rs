//! Tensors of different dtypes: where they meet, what is kept of their values, and where the gradients go.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use fulmen_tensor::{Convolution, DType, Tensor, grad};

const FLOATS: [DType; 4] = [DType::F32, DType::Bf16, DType::F16, DType::F64];

/// The results of each operation that brings its operands to one dtype, where that is the result's dtype.
fn meetings(a: &Tensor, b: &Tensor) -> Vec<Tensor> {
    let image = |t: &Tensor| t.reshape([1, 1, 2, 2]);
    vec![
        a + b,
        a.maximum(b),
        a.lt(b).select(a, b),
        Tensor::concatenate(&[a, b], 0),
        Tensor::stack(&[a, b], 1),
        a.matmul(b),
        a.dot_general(b, (&[], &[]), (&[0], &[1])),
        image(a).convolution(&image(b), &Convolution::new(2)),
    ]
}

#[test]
fn floats_meet_in_the_wider_and_integers_in_the_float_beside_them() {
    for a in FLOATS {
        for b in FLOATS {
            let wider = if a.size_in_bytes() >= b.size_in_bytes() { a } else { b };
            let expected = if a != b && a.size_in_bytes() == b.size_in_bytes() { DType::F32 } else { wider };
            assert_eq!((a.promote(b), b.promote(a)), (Some(expected), Some(expected)));
            for result in meetings(&Tensor::ones(a, [2, 2]), &Tensor::ones(b, [2, 2])) {
                assert_eq!(result.check().unwrap().dtype(), expected, "{a} and {b}: {result:?}");
            }
        }
        for other in DType::all().filter(|d| !d.is_float()) {
            for (x, y) in [(a, other), (other, a)] {
                for result in meetings(&Tensor::ones(x, [2, 2]), &Tensor::ones(y, [2, 2])) {
                    assert_eq!(result.check().unwrap().dtype(), a, "{x} and {y}: {result:?}");
                }
            }
        }
    }
}

#[test]
fn the_values_are_those_of_the_dtype_in_which_both_meet() {
    let third = Tensor::full(DType::F32, [1], 1.0 / 3.0);
    let half = Tensor::full(DType::Bf16, [1], 1.0 / 3.0);
    let difference = (&third - &half).eval().unwrap().to_vec::<f32>().unwrap()[0];
    assert_eq!(difference, 1.0 / 3.0 - half::bf16::from_f32(1.0 / 3.0).to_f32());
    // 257 is no bf16; f16 and bf16 meet where both are exact.
    let sum = Tensor::full(DType::F16, [1], 257.0) + Tensor::full(DType::Bf16, [1], 1024.0);
    assert_eq!(sum.eval().unwrap().to_vec::<f32>().unwrap(), [1281.0]);
    let mask = Tensor::from_slice(&[true, false, true], [3]);
    let kept = mask * Tensor::from_slice(&[1.5f32, 2.5, 3.5], [3]);
    assert_eq!(kept.eval().unwrap().to_vec::<f32>().unwrap(), [1.5, 0.0, 3.5]);
}

#[test]
fn gradients_have_the_dtypes_of_what_they_belong_to() {
    let wide = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2]);
    let narrow = Tensor::full(DType::Bf16, [2, 2], 0.5);
    let counts = Tensor::from_slice(&[1i32, 2, 3, 4], [2, 2]);
    let mut loss = Tensor::scalar(0.0f32);
    for result in meetings(&wide, &narrow).into_iter().chain(meetings(&narrow, &counts)) {
        loss = loss + (&result * &result).sum_all();
    }
    let gradients = grad(&loss, &[&wide, &narrow]);
    assert_eq!(gradients[0].check().unwrap().ty(), wide.ty());
    assert_eq!(gradients[1].check().unwrap().ty(), narrow.ty());
    let product = (&narrow * &counts * &wide).sum_all();
    let gradients = grad(&product, &[&wide, &narrow]);
    assert_eq!(gradients[0].eval().unwrap().to_f64(), [0.5, 1.0, 1.5, 2.0]);
    assert_eq!(gradients[1].eval().unwrap().to_f64(), [1.0, 4.0, 9.0, 16.0]);
    assert!(grad(&product, &[&counts])[0].fault().is_some());
}
