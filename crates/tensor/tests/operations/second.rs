//! Derivatives of derivatives against central differences.

use fulmen_tensor::{Convolution, Tensor, grad};

use crate::differences::{Input, Point, run};

/// Numbers in (0.3, 1.7) that no two elements share and that lie on no tie.
fn input(shape: &[usize]) -> Input {
    let number = |n: usize| 0.3 + 1.4 * ((n + 1) as f64 * 0.618_033_988_749_895).fract();
    Input::Floats { shape: shape.to_vec(), values: (0..shape.iter().product()).map(number).collect() }
}

/// The gradient of the sum of `f`, as a function.
fn slope<'a>(name: &'a str, shape: &[usize], f: fn(&Tensor) -> Tensor) -> Point<'a> {
    let function = Box::new(move |x: &[Tensor]| grad(&f(&x[0]).sum_all(), &[&x[0]]));
    Point { name, inputs: vec![input(shape)], function }
}

#[test]
fn gradients_of_gradients() {
    let points = [
        slope("tanh", &[3], Tensor::tanh),
        slope("softmax", &[3], |x| x.softmax(0) * x),
        slope("take", &[3], |x| {
            let y = x.take(0, &Tensor::from_slice(&[2i32, 0, 2, 2], [4]));
            &y * &y * &y
        }),
        slope("matmul", &[2, 2], |x| x.matmul(x).matmul(x)),
        slope("grouped convolution", &[2, 2, 3, 3], |x| {
            let how = Convolution::new(2).groups(2).padding([(1, 1), (1, 1)]);
            let y = x.convolution(&x.narrow(1, 0, 1), &how);
            &y * &y
        }),
    ];
    let wrong = run("second", &points);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
