//! XLA computes an elementwise value again in each loop that reads it, and may round it
//! differently. Derivatives of extremes do not depend on that.

use fulmen_tensor::{Combine, DType, Tensor, grad};

/// Values that XLA rounds differently in different loops, computed from `x`.
fn normalized(x: &Tensor) -> Tensor {
    (x - x.mean_keepdim(0)) / (x.var_keepdim(0) + 0.1).sqrt()
}

/// The gradient of a weighted sum of `f`'s result for normalized numbers of this shape.
fn gradient(dims: [usize; 3], f: impl Fn(&Tensor) -> Tensor) -> Vec<f64> {
    let count: usize = dims.iter().product();
    let numbers: Vec<f32> = (0..count).map(|i| ((i * 7) as f32 * 0.618).sin()).collect();
    let x = Tensor::from_slice(&numbers, dims);
    let y = f(&normalized(&x));
    let weights = (Tensor::arange(y.dtype(), y.shape().num_elements()) * 0.37).cos();
    let loss = (&y * weights.reshape(y.shape())).sum_all();
    grad(&loss, &[&x])[0].eval().unwrap().to_f64()
}

#[track_caller]
fn assert_close(actual: &[f64], expected: &[f64]) {
    for (i, (a, b)) in actual.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= 1e-4, "element {i} is {a}, expected {b}");
    }
}

/// All gradients were NaN: no element equaled the maximum, so 0 was divided by 0.
#[test]
fn the_gradient_of_an_extreme_reaches_the_element_that_was_selected() {
    for dims in [[24, 4, 4], [24, 7, 6], [16, 4, 8]] {
        let sorted = |x: &Tensor, descending| x.sort(2, descending).0.index(2, 0);
        assert_close(&gradient(dims, |x| x.max(2)), &gradient(dims, |x| sorted(x, true)));
        assert_close(&gradient(dims, |x| x.min(2)), &gradient(dims, |x| sorted(x, false)));
        let pairs = [dims[0], dims[1], dims[2] / 2];
        let halves = |x: &Tensor| [x.narrow(2, 0, pairs[2]), x.narrow(2, pairs[2], pairs[2])];
        let larger = |x: &Tensor| {
            let [a, b] = halves(x);
            a.gt(&b).select(&a, &b)
        };
        let maximum = |x: &Tensor| {
            let [a, b] = halves(x);
            a.maximum(b)
        };
        assert_close(&gradient(dims, maximum), &gradient(dims, larger));
        let rows = Tensor::arange(DType::I32, pairs[2]);
        let scattered = |x: &Tensor| {
            let [a, b] = halves(x);
            a.index_reduce(2, &rows, b, Combine::Max)
        };
        assert_close(&gradient(dims, scattered), &gradient(dims, larger));
    }
}
