//! Random cases, each determined by its number.

use std::fmt::Debug;
use std::ops::Range;

use fulmen_tensor::{DType, Literal, Runtime, Tensor};

/// Numbers that a case's number determines (SplitMix64).
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn new(case: u64) -> Draw {
        Draw(case)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((x ^ (x >> 31)) % limit as u64) as usize
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A tensor of numbers between −2 and 2, which the dtype rounds.
    pub(crate) fn uniform(&mut self, dtype: DType, shape: &[usize]) -> Tensor {
        let count = shape.iter().product();
        let numbers: Vec<f32> =
            (0..count).map(|_| self.below(4001) as f32 / 1000.0 - 2.0).collect();
        Tensor::from_slice(&numbers, shape).to_dtype(dtype)
    }
}

/// The largest difference of two tensors, as a part of the largest element of the second, or of 0.1
/// if all are smaller.
pub(crate) fn difference(ours: &Literal, exact: &Literal) -> f64 {
    let ours = ours.to_f64();
    let exact = exact.to_f64();
    assert_eq!(ours.len(), exact.len());
    let largest = exact.iter().fold(0.1f64, |most, x| most.max(x.abs()));
    let pairs = ours.iter().zip(&exact);
    // A NaN is not smaller than anything.
    let worst =
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, |most, x| if x <= most { most } else { x });
    worst / largest
}

/// The values of several tensors, from one program.
pub(crate) fn values(tensors: &[Tensor]) -> Vec<Literal> {
    Runtime::global().unwrap().eval_many(tensors).unwrap()
}

/// A kernel with random sizes and settings, and the formula that it computes.
pub(crate) trait RandomCase: Debug {
    fn random(draw: &mut Draw) -> Self;

    fn dtype(&self) -> DType;

    /// The differences of the results and the gradients from the formula's.
    fn differences(&self, draw: &mut Draw) -> Vec<f64>;
}

/// Compares cases with the formula.
pub(crate) fn compare<C: RandomCase>(cases: Range<u64>) {
    for number in cases {
        let mut draw = Draw::new(number);
        let case = C::random(&mut draw);
        let tolerance = match case.dtype() {
            DType::F64 => 1e-12,
            DType::F32 => 2e-5,
            _ => 4e-2,
        };
        let differences = case.differences(&mut draw);
        assert!(
            differences.iter().all(|&difference| difference < tolerance),
            "case {number}, {case:?}: {differences:?}"
        );
    }
}
