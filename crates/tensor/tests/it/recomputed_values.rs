//! XLA computes an elementwise value again in each loop that reads it, and may round it
//! differently. The indices and the derivatives of extremes do not depend on that.

use fulmen_tensor::{Combine, DType, Literal, Runtime, Tensor, grad};

/// Values that XLA rounds differently in different loops, computed from `x`.
fn normalized(x: &Tensor) -> Tensor {
    (x - x.mean_keepdim(0)) / (x.var_keepdim(0) + 0.1).sqrt()
}

fn numbers(dims: [usize; 3]) -> Tensor {
    let count: usize = dims.iter().product();
    let numbers: Vec<f32> = (0..count).map(|i| ((i * 7) as f32 * 0.618).sin()).collect();
    Tensor::from_slice(&numbers, dims)
}

/// The gradient of a weighted sum of `f`'s result for normalized numbers of this shape.
fn gradient(dims: [usize; 3], f: impl Fn(&Tensor) -> Tensor) -> Vec<f64> {
    let x = numbers(dims);
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

/// No element equaled the extreme: an index was the size of the axis, and a running index stayed 0.
#[test]
fn the_index_of_an_extreme_is_that_of_its_element() {
    let arrangements: [fn(&Tensor) -> Tensor; 5] = [
        |y| y.reshape([y.shape().num_elements(), 1]),
        |y| Tensor::concatenate(&[y, y], 1),
        |y| y.reshape([y.size(0) * y.size(1), y.size(2)]),
        |y| y.transpose(1, 2).reshape([y.size(0), y.size(1) * y.size(2)]),
        |y| y.permute(&[2, 0, 1]).reshape([y.size(2), y.size(0) * y.size(1)]),
    ];
    for dims in [[24, 4, 4], [24, 7, 6]] {
        for arrange in arrangements {
            let y = arrange(&normalized(&numbers(dims)));
            let rows = y.size(0);
            let columns = y.shape().num_elements() / rows;
            let results = [y.clone(), y.argmax(0), y.argmin(0), y.cummax(0).1, y.cummin(0).1];
            let literals = Runtime::global().unwrap().eval_many(&results).unwrap();
            let values: Vec<Vec<f64>> = literals.iter().map(Literal::to_f64).collect();
            let element = |row: f64, column: usize| {
                assert!(row < rows as f64, "index {row} of {rows}");
                values[0][row as usize * columns + column]
            };
            for column in 0..columns {
                let mut extremes = [f64::NEG_INFINITY, f64::INFINITY];
                for row in 0..rows {
                    let x = values[0][row * columns + column];
                    extremes = [extremes[0].max(x), extremes[1].min(x)];
                    let running =
                        [&values[3], &values[4]].map(|index| index[row * columns + column]);
                    assert_close(&running.map(|index| element(index, column)), &extremes);
                }
                let overall = [values[1][column], values[2][column]];
                assert_close(&overall.map(|index| element(index, column)), &extremes);
            }
        }
    }
}
