//! Operations on tensors of different dtypes: the common dtype, the values, and the gradients.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use fulmen_tensor::{Convolution, DType, Tensor, grad};

/// The results of operations that promote their operands and return the promoted dtype.
fn meetings(a: &Tensor, b: &Tensor) -> Vec<Tensor> {
    let image = |t: &Tensor| t.reshape([1, 1, 2, 2]);
    vec![
        a + b,
        a.maximum(b),
        a.lt(b).select(a, b),
        Tensor::concatenate(&[a, b], 0),
        Tensor::stack(&[a, b], 1),
        a.matmul(b),
        a.dot_general(b, ([], []), (0, 1)),
        image(a).convolution(&image(b), &Convolution::new(2)),
    ]
}

/// `jax.numpy.promote_types` of JAX 0.12.0.1 with `jax_enable_x64`. Lines and columns list the
/// dtypes in the same order. `reference/promotion.py` writes the file.
const JAX: &str = include_str!("../reference/promotion.txt");

#[test]
fn every_pair_meets_where_jax_has_it_meet_but_for_the_surprising_f64() {
    let dtype = |name: &str| DType::all().find(|d| d.name() == name).unwrap();
    let rows: Vec<Vec<DType>> =
        JAX.lines().map(|line| line.split(' ').map(dtype).collect()).collect();
    let names: Vec<DType> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(names, DType::all().collect::<Vec<_>>());
    for (&a, row) in names.iter().zip(&rows) {
        for (&b, &jax) in names.iter().zip(&row[1..]) {
            let surprise = jax == DType::F64 && a != DType::F64 && b != DType::F64;
            assert_eq!(a.promote(b), (!surprise).then_some(jax), "{a} and {b}");
            assert_eq!(
                surprise,
                [a, b].contains(&DType::U64)
                    && [a, b].iter().any(|d| d.is_integer() && !d.is_unsigned())
            );
        }
    }
}

#[test]
fn operations_give_the_dtype_in_which_their_operands_meet() {
    for a in DType::all() {
        for b in DType::all() {
            let Some(expected) = a.promote(b) else { continue };
            let x = Tensor::ones(a, [2, 2]);
            let y = Tensor::ones(b, [2, 2]);
            let results = match (expected.is_complex(), expected == DType::Bool) {
                (false, false) => meetings(&x, &y),
                (true, _) => vec![&x * &y, x.matmul(&y), Tensor::concatenate(&[&x, &y], 0)],
                (_, true) => vec![x.and(&y), Tensor::stack(&[&x, &y], 1), x.eq(&y).select(&x, &y)],
            };
            for result in results {
                assert_eq!(result.check().unwrap().dtype(), expected, "{a} and {b}: {result:?}");
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
    // bf16 cannot hold 257. The common dtype of f16 and bf16 holds both exactly.
    let sum = Tensor::full(DType::F16, [1], 257.0) + Tensor::full(DType::Bf16, [1], 1024.0);
    assert_eq!(sum.eval().unwrap().to_vec::<f32>().unwrap(), [1281.0]);
    // i8 cannot hold 200, and u32 cannot hold −1.
    let sum = Tensor::full(DType::U8, [1], 200.0) + Tensor::full(DType::I8, [1], -1.0);
    assert_eq!(sum.eval().unwrap().to_vec::<i16>().unwrap(), [199]);
    let sum = Tensor::full(DType::U32, [1], 4e9) + Tensor::full(DType::I32, [1], -1.0);
    assert_eq!(sum.eval().unwrap().to_vec::<i64>().unwrap(), [3_999_999_999]);
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
