//! Compares second derivatives with central differences.

use fulmen_tensor::{
    Argument, Combine, Convolution, DType, Function, Interpolation, Literal, Pooling, Runtime,
    Tensor, TensorType, grad,
};

use crate::operations::finite_differences::{Input, Point, run};

/// Distinct numbers in (0.3, 1.7), without ties.
fn input(shape: &[usize]) -> Input {
    let number = |n: usize| 0.3 + 1.4 * ((n + 1) as f64 * 0.618_033_988_749_895).fract();
    Input::Floats {
        shape: shape.to_vec(),
        values: (0..shape.iter().product()).map(number).collect(),
        complex: false,
    }
}

/// The gradient of the sum of `f`, as a function of its input.
fn slope<'a>(name: &'a str, shape: &[usize], f: fn(&Tensor) -> Tensor) -> Point<'a> {
    let function = Box::new(move |x: &[Tensor]| grad(&f(&x[0]).sum_all(), &[&x[0]]));
    Point { name, inputs: vec![input(shape)], function }
}

/// The gradient at these numbers.
fn point<'a>(name: &'a str, numbers: &[f64], f: fn(&Tensor) -> Tensor) -> Point<'a> {
    let input =
        Input::Floats { shape: vec![numbers.len()], values: numbers.to_vec(), complex: false };
    Point { inputs: vec![input], ..slope(name, &[0], f) }
}

/// The second derivative of `f`, elementwise.
fn curvature(x: &[f32], f: fn(&Tensor) -> Tensor) -> Vec<f32> {
    let function = Function::trace("curvature", TensorType::new(DType::F32, [x.len()]), |x| {
        let slope = grad(&f(&x).sum_all(), &[&x]).remove(0);
        grad(&slope.sum_all(), &[&x])
    });
    let runtime = Runtime::global().unwrap();
    let argument = runtime.to_device(&Literal::from_slice(x, [x.len()]).unwrap()).unwrap();
    let outputs =
        runtime.compile(&function).unwrap().call(vec![Argument::Borrow(&argument)]).unwrap();
    runtime.read(&[&outputs.arrays[0]]).unwrap().wait().unwrap()[0].to_vec::<f32>().unwrap()
}

#[test]
fn infinite_gradients_of_gradients() {
    let infinity = f32::INFINITY;
    // The values of JAX.
    assert_eq!(curvature(&[0.0, -0.0], Tensor::cbrt), [-infinity, infinity]);
    assert_eq!(curvature(&[0.0], Tensor::sqrt), [-infinity]);
    // The limits, where JAX and PyTorch give NaN.
    assert_eq!(curvature(&[0.0, 1.0], Tensor::logit), [-infinity, infinity]);
}

/// Differences of `cos(πx)` and `sinc(x)` have few digits near 0.
#[test]
fn derivatives_of_sinc_have_all_digits_near_0() {
    let pi_squared = std::f32::consts::PI.powi(2);
    let numbers = [0.0, 1e-6, -1e-4, 1e-3, 0.01];
    for (x, actual) in numbers.into_iter().zip(curvature(&numbers, Tensor::sinc)) {
        // The first terms of the second derivative's Taylor series.
        let expected = -pi_squared / 3.0 + pi_squared * pi_squared * x * x / 10.0;
        assert!((actual - expected).abs() < 1e-5 * expected.abs(), "{x}: {actual} {expected}");
    }
}

#[test]
fn gradients_of_gradients() {
    let points = [
        slope("tanh", &[3], Tensor::tanh),
        slope("softmax", &[3], |x| x.softmax(0) * x),
        point("logaddexp of ties", &[0.0, -1.5, 2.0, 0.5], |x| {
            x.logaddexp(&Tensor::from_slice(&[0.0, -1.5, 2.0, 0.7], [4]))
        }),
        point("logaddexp2 of ties", &[0.0, -1.5, 2.0, 0.5], |x| {
            x.logaddexp2(&Tensor::from_slice(&[0.0, -1.5, 2.0, 0.7], [4]))
        }),
        point("logsumexp of ties", &[0.5, 0.5, 0.5, -1.0], |x| x.logsumexp(0)),
        point("logcumsumexp of ties", &[0.5, 0.5, 0.5, -1.0], |x| x.logcumsumexp(0)),
        point("softmax of ties", &[0.5, 0.5, 0.5, -1.0], |x| x.softmax(0).narrow(0, 1, 2)),
        point("hypot of ties", &[0.5, 2.0, -1.0, -3.0], |x| {
            x.hypot(&Tensor::from_slice(&[0.5, 2.0, 1.0, -3.0], [4]))
        }),
        point("sinc", &[0.0, 0.01, -0.2, 0.31, 0.33, -0.7, 2.4], Tensor::sinc),
        point("logit", &[0.5, 0.25, 0.9, 0.01], Tensor::logit),
        point("cbrt", &[0.5, -0.25, 8.0, -0.9], Tensor::cbrt),
        point("interpolation", &[0.5, 1.0, -2.0, 3.0], |x| {
            let y = x
                .reshape([1, 1, 4])
                .interpolate(&[7], Interpolation::Linear { align_corners: false });
            &y * &y * &y
        }),
        slope("take", &[3], |x| {
            let y = x.take(0, &Tensor::from_slice(&[2i32, 0, 2, 2], [4]));
            &y * &y * &y
        }),
        slope("matmul", &[2, 2], |x| x.matmul(x).matmul(x)),
        slope("prod", &[2, 5], |x| x.prod(1)),
        slope("norm and std", &[2, 3], |x| x.norm(3.0, 1) * x.std(1)),
        slope("cumprod", &[5], |x| x.cumprod(0) * x),
        slope("cummax", &[5], |x| {
            let (largest, _) = x.cummax(0);
            &largest * &largest * x
        }),
        slope("logcumsumexp", &[5], |x| x.logcumsumexp(0) * x),
        slope("sort", &[5], |x| {
            let (sorted, _) = x.sort(0, true);
            &sorted * &sorted * x
        }),
        slope("topk", &[5], |x| {
            let (most, _) = x.topk_along(3, 0, true);
            &most * &most * x.narrow(0, 1, 3)
        }),
        slope("einsum", &[3, 3], |x| Tensor::einsum("ij,jk,ii->k", &[x, x, x])),
        slope("grouped convolution", &[2, 2, 3, 3], |x| {
            let how = Convolution::new(2).groups(2).padding([(1, 1), (1, 1)]);
            let y = x.convolution(&x.narrow(1, 0, 1), &how);
            &y * &y
        }),
        slope("transposed convolution", &[1, 2, 3, 3], |x| {
            let how = Convolution::new(2)
                .groups(2)
                .stride([2, 1])
                .padding([(1, 1), (0, 0)])
                .output_padding([1, 0]);
            let y = x.conv_transpose(&x.reshape([2, 1, 3, 3]), &how);
            &y * &y
        }),
        slope("max_pool", &[1, 2, 4, 5], |x| {
            let y = x.max_pool(&Pooling::new([3, 2]).stride([1, 2]).padding([1, 1]));
            &y * &y * &y
        }),
        slope("dilated max_pool", &[1, 2, 5, 5], |x| {
            let y =
                x.max_pool(&Pooling::new([2, 2]).stride([1, 2]).dilation([2, 1]).ceil_mode(true));
            &y * &y * &y
        }),
        slope("avg_pool", &[1, 1, 5, 4], |x| {
            let y = x.avg_pool(&Pooling::new([3, 2]).padding([1, 1]).count_include_pad(false));
            &y * &y * &y
        }),
        slope("scatter", &[6], |x| {
            let indices = Tensor::from_slice(&[0i32, 3, 5], [3]);
            [Combine::Set, Combine::Add, Combine::Mul, Combine::Max].into_iter().fold(
                x.zeros_like(),
                |sum, combine| {
                    let y = x.scatter_reduce(0, &indices, &(x.narrow(0, 1, 3) * 1.01), combine);
                    sum + &y * &y * &y
                },
            )
        }),
        slope("dynamic_slice", &[5], |x| {
            let indices = [Tensor::scalar(1i32)];
            let part = x.dynamic_slice(&indices, &[3]);
            let y = x.dynamic_update_slice(&(&part * &part), &indices);
            &y * &y
        }),
    ];
    let wrong = run("second", &points);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
