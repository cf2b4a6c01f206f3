//! Helpers of several test files: values as numbers, and comparison with a tolerance.

#![allow(dead_code)] // Each test file uses some of it.

pub(crate) mod reference;

use fulmen_nn::Module;
use fulmen_tensor::{Literal, Runtime, Tensor};

/// The values as f64.
#[track_caller]
pub(crate) fn values(tensor: &Tensor) -> Vec<f64> {
    match tensor.eval() {
        Ok(literal) => literal.to_f64(),
        Err(error) => panic!("{error}"),
    }
}

/// The values of several tensors as f64, from one program.
pub(crate) fn evaluated(tensors: &[Tensor]) -> Vec<Vec<f64>> {
    let values = Runtime::global().unwrap().eval_many(tensors).unwrap();
    values.iter().map(Literal::to_f64).collect()
}

/// The same integers, which only the device knows.
pub(crate) fn on_the_device(integers: &Tensor) -> Tensor {
    integers * 1.0
}

/// The text of a poisoned tensor's fault.
#[track_caller]
pub(crate) fn fault(tensor: &Tensor) -> String {
    match tensor.fault() {
        Some(fault) => fault.to_string(),
        None => panic!("{tensor:?} is not poisoned"),
    }
}

/// Compares with a relative and an absolute tolerance; equal infinities and NaNs are equal.
#[track_caller]
pub(crate) fn assert_close(
    actual: &[f64],
    expected: &[f64],
    relative: f64,
    absolute: f64,
    name: &str,
) {
    assert_eq!(actual.len(), expected.len(), "{name}: number of elements");
    for (i, (&f, &e)) in actual.iter().zip(expected).enumerate() {
        let equal =
            f == e || (f.is_nan() && e.is_nan()) || (f - e).abs() <= absolute + relative * e.abs();
        assert!(equal, "{name}: element {i} is {f:e}, expected {e:e} (off by {:e})", (f - e).abs());
    }
}

/// Sets all parameters to simple numbers. Drawing random ones would take longer to compile than the
/// tests.
pub(crate) fn set_simple_values(module: &dyn Module) {
    for (i, (_, parameter)) in module.parameters().into_iter().enumerate() {
        let shape = parameter.ty().shape;
        let numbers: Vec<f32> = (0..shape.num_elements())
            .map(|k| ((k * 37 + i * 11) % 101) as f32 / 100.0 - 0.5)
            .collect();
        parameter.set(Tensor::from_slice(&numbers, &shape));
    }
}

#[track_caller]
pub(crate) fn assert_all_close(actual: &[Vec<f64>], expected: &[Vec<f64>], tolerance: f64) {
    assert_eq!(actual.len(), expected.len());
    for (i, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        assert_close(actual, expected, tolerance, tolerance, &format!("tensor {i}"));
    }
}
