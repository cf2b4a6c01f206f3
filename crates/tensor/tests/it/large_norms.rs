//! Norms whose powers would overflow or vanish, with their derivatives. The values are exact: 3, 4
//! and 5, and 6, 8 and 10, times powers of two.

use fulmen_tensor::{DType, Tensor, grad};

fn values(x: &Tensor) -> Vec<f64> {
    x.eval().unwrap().to_f64()
}

#[track_caller]
fn assert_close(actual: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len());
    for (a, e) in actual.iter().zip(expected) {
        assert!((a - e).abs() <= tolerance * e.abs(), "{actual:?} is not {expected:?}");
    }
}

#[test]
fn a_norm_whose_squares_overflow_is_finite_and_has_a_gradient() {
    for (dtype, exponent, tolerance) in
        [(DType::F32, 120, 1e-6), (DType::Bf16, 120, 1e-2), (DType::F64, 1000, 1e-12)]
    {
        let unit = 2f64.powi(exponent);
        let rows = [3.0 * unit, 4.0 * unit, 6.0, 8.0, 0.0, 0.0];
        let x = Tensor::from_slice(&rows, [3, 2]).to_dtype(dtype);
        let norm = x.norm(2.0, 1);
        assert_close(&values(&norm), &[5.0 * unit, 10.0, 0.0], tolerance);
        let gradient = &grad(&norm.sum_all(), &[&x])[0];
        assert_close(&values(gradient), &[0.6, 0.8, 0.6, 0.8, 0.0, 0.0], tolerance);
        assert_close(&values(&x.norm_keepdim(2.0, [0, 1])), &[5.0 * unit], tolerance);
    }
    for (p, expected) in [(3.0, 91f64.cbrt()), (0.5, 3.0 + 4.0 + 2.0 * 12f64.sqrt())] {
        for unit in [2f64.powi(100), 2f64.powi(-100)] {
            let x = Tensor::from_slice(&[3.0 * unit, -4.0 * unit], [2]).to_dtype(DType::F32);
            let norm = x.norm(p, 0);
            assert_close(&values(&norm), &[expected * unit], 1e-5);
            let slope = |x: f64| (x / expected).powf(p - 1.0);
            let gradient = &grad(&norm, &[&x])[0];
            assert_close(&values(gradient), &[slope(3.0), -slope(4.0)], 1e-5);
        }
    }
    // The smallest element has the largest power.
    let x = Tensor::from_slice(&[2f32.powi(-60), 2f32.powi(60)], [2]);
    assert_close(&values(&x.norm(-3.0, 0)), &[2f64.powi(-60)], 1e-5);
    assert_close(&values(&(&x * 0.0).norm(3.0, 0)), &[0.0], 0.0);
}

#[test]
fn a_norm_of_infinite_or_missing_numbers_says_so() {
    let x = Tensor::from_slice(&[1.0, f64::INFINITY, 1.0, f64::NAN], [2, 2]).to_dtype(DType::F32);
    for p in [2.0, 3.0] {
        let norms = values(&x.norm(p, 1));
        assert!(norms[0] == f64::INFINITY && norms[1].is_nan(), "{p}: {norms:?}");
        assert_eq!(values(&Tensor::zeros(DType::F32, [2, 0]).norm(p, 1)), [0.0, 0.0]);
    }
}
