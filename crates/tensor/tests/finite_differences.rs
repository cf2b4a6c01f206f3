//! Every derivative against central differences in f64: `(f(x + h) − f(x − h)) / 2h`.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use fulmen_tensor::{Convolution, DType, Function, Literal, Pooling, Runtime, Tensor, TensorType, grad};

type Unary = fn(&Tensor) -> Tensor;
type Binary = fn(&Tensor, &Tensor) -> Tensor;

/// Numbers in (0.3, 1.7) that no two elements share and that lie on no tie.
fn inputs(shapes: &[&[usize]]) -> Vec<(Vec<usize>, Vec<f64>)> {
    let mut n = 0.0f64;
    let mut next = || {
        n += 1.0;
        0.3 + 1.4 * (n * 0.618_033_988_749_895).fract()
    };
    shapes.iter().map(|s| (s.to_vec(), (0..s.iter().product()).map(|_| next()).collect())).collect()
}

/// Checks the gradients of a weighted sum of `f`'s result with respect to every element of every input.
#[track_caller]
fn check(name: &str, shapes: &[&[usize]], f: impl Fn(&[Tensor]) -> Tensor) {
    let runtime = Runtime::global().unwrap();
    let points = inputs(shapes);
    let types: Vec<_> = shapes.iter().map(|s| TensorType::new(DType::F64, *s)).collect();
    let weighted = |x: &[Tensor]| {
        let y = f(x);
        let weights = (Tensor::arange(DType::F64, y.shape().num_elements()) * 0.37 + 0.5).sin().reshape(y.shape());
        (y * weights).sum_all()
    };
    let value = Function::trace(name, &types, |x| vec![weighted(x)]);
    let value = runtime.compile(&value).unwrap_or_else(|e| panic!("{name}: {e}"));
    let gradients = Function::trace(name, &types, |x| grad(&weighted(x), &x.iter().collect::<Vec<_>>()));
    let gradients = runtime.compile(&gradients).unwrap_or_else(|e| panic!("{name}: {e}"));

    let run = |compiled: &fulmen_tensor::Compiled, points: &[(Vec<usize>, Vec<f64>)]| -> Vec<Vec<f64>> {
        let buffers: Vec<_> = points
            .iter()
            .map(|(s, v)| runtime.to_device(&Literal::from_slice(v, s.as_slice()).unwrap()).unwrap())
            .collect();
        let arguments = buffers.iter().map(fulmen_tensor::Argument::Borrow).collect();
        let outputs = compiled.call(arguments).unwrap();
        let literals = runtime.read(&outputs.arrays.iter().collect::<Vec<_>>()).unwrap().wait().unwrap();
        literals.iter().map(Literal::to_f64).collect()
    };
    let ours = run(&gradients, &points);
    let h = 1e-5;
    for input in 0..points.len() {
        for (element, &gradient) in ours[input].iter().enumerate() {
            let at = |delta: f64| {
                let mut moved = points.clone();
                moved[input].1[element] += delta;
                run(&value, &moved)[0][0]
            };
            let difference = (at(h) - at(-h)) / (2.0 * h);
            let tolerance = 1e-6 * (1.0 + difference.abs());
            assert!(
                (gradient - difference).abs() < tolerance,
                "{name}: input {input}, element {element}: gradient {gradient}, difference {difference}"
            );
        }
    }
}

#[test]
fn elementwise() {
    let unary: [(&str, Unary); 19] = [
        ("abs", Tensor::abs),
        ("exp", Tensor::exp),
        ("expm1", Tensor::expm1),
        ("erf", Tensor::erf),
        ("erf_inv", |x| (x * 0.5).erf_inv()),
        ("log", Tensor::log),
        ("log1p", Tensor::log1p),
        ("sigmoid", Tensor::sigmoid),
        ("neg", Tensor::neg),
        ("rsqrt", Tensor::rsqrt),
        ("sqrt", Tensor::sqrt),
        ("tanh", Tensor::tanh),
        ("sin", Tensor::sin),
        ("cos", Tensor::cos),
        ("relu", |x| (x - 1.0).relu()),
        ("sign", Tensor::sign),
        ("floor", |x| x.floor() * x),
        ("ceil", |x| x.ceil() * x),
        ("to_dtype", |x| x.to_dtype(DType::F64)),
    ];
    for (name, f) in unary {
        check(name, &[&[2, 3]], |x| f(&x[0]));
    }
    let binary: [(&str, Binary); 8] = [
        ("add", |a, b| a + b),
        ("sub", |a, b| a - b),
        ("mul", |a, b| a * b),
        ("div", |a, b| a / b),
        ("maximum", |a, b| a.maximum(b)),
        ("minimum", |a, b| a.minimum(b)),
        ("pow", |a, b| a.pow(b)),
        ("remainder", |a, b| (a * 3.0).remainder(b)),
    ];
    for (name, f) in binary {
        check(name, &[&[2, 3], &[3]], |x| f(&x[0], &x[1]));
        check(name, &[&[2, 1, 2], &[3, 1]], |x| f(&x[0], &x[1]));
    }
    check("select", &[&[4], &[4]], |x| x[0].lt(&x[1]).select(&(&x[0] * 2.0), &(&x[1] * &x[0])));
}

#[test]
fn shapes_and_reductions() {
    check("broadcast_to", &[&[1, 3]], |x| x[0].broadcast_to([2, 4, 3]));
    check("reshape", &[&[2, 3]], |x| x[0].reshape([3, 2]));
    check("permute", &[&[2, 3, 2]], |x| x[0].permute(&[2, 0, 1]));
    check("slice", &[&[5, 4]], |x| x[0].slice(&[1, 0], &[5, 3], &[2, 1]));
    check("pad", &[&[2, 3], &[]], |x| x[0].pad(&x[1], &[1, -1], &[0, 2], &[2, 1]));
    check("concatenate", &[&[2, 1], &[2, 3]], |x| Tensor::concatenate(&[&x[0], &x[1]], 1));
    check("stack", &[&[2], &[2]], |x| Tensor::stack(&[&x[0], &x[1]], 1));
    check("flip", &[&[2, 3]], |x| x[0].flip(&[1]));
    check("sum", &[&[2, 3, 2]], |x| x[0].sum(&[0, -1], true));
    check("max", &[&[2, 3]], |x| x[0].max(&[1], false));
    check("min", &[&[2, 3]], |x| x[0].min(&[0], true));
    check("mean", &[&[2, 3]], |x| x[0].mean(&[0], false));
    check("var", &[&[2, 3]], |x| x[0].var(&[1], false));
    check("logsumexp", &[&[2, 3]], |x| x[0].logsumexp(1, false));
    check("softmax", &[&[2, 3]], |x| x[0].softmax(0));
    check("log_softmax", &[&[2, 3]], |x| x[0].log_softmax(-1));
}

#[test]
fn rows_and_triangles() {
    let rows = Tensor::from_slice(&[2i32, 0, 2, 7, -1, 1], [2, 3]);
    // What lies outside is NaN and would hide everything else.
    let known = |y: &Tensor| y.is_finite().select(y, &y.zeros_like());
    check("take", &[&[3, 2]], |x| known(&x[0].take(0, &rows)));
    check("take in the middle", &[&[2, 3, 2]], |x| known(&x[0].take(1, &rows)));
    check("index_add", &[&[3, 2], &[2, 3, 2]], |x| x[0].index_add(0, &rows, &x[1]));
    check("index_add at the end", &[&[2, 3], &[2, 2, 3]], |x| x[0].index_add(-1, &rows, &x[1]));
    check("tril", &[&[2, 3, 4]], |x| x[0].tril(0));
    check("triu", &[&[4, 3]], |x| x[0].triu(-1));
}

#[test]
fn products() {
    check("matmul", &[&[2, 3], &[3, 2]], |x| x[0].matmul(&x[1]));
    check("matrix by vector", &[&[2, 3], &[3]], |x| x[0].matmul(&x[1]));
    check("vector by matrices", &[&[3], &[2, 3, 2]], |x| x[0].matmul(&x[1]));
    check("vector by vector", &[&[3], &[3]], |x| x[0].matmul(&x[1]));
    check("broadcast batches", &[&[2, 1, 2, 3], &[2, 3, 2]], |x| x[0].matmul(&x[1]));
    check("dot_general", &[&[3, 2, 2, 4], &[4, 2, 2, 3]], |x| {
        x[0].dot_general(&x[1], (&[1], &[2]), (&[3, 0], &[0, 3]))
    });
}

#[test]
fn windows() {
    let plain = Convolution::new(2);
    check("convolution", &[&[2, 2, 4, 3], &[3, 2, 2, 2]], |x| x[0].convolution(&x[1], &plain));
    let odd = Convolution::new(2).stride([2, 1]).padding([(1, 0), (2, 1)]).dilation([1, 2]);
    check("strided convolution", &[&[1, 2, 5, 4], &[2, 2, 2, 2]], |x| x[0].convolution(&x[1], &odd));
    let grouped = Convolution::new(2).groups(2).padding([(1, 1), (1, 1)]);
    check("grouped convolution", &[&[2, 4, 3, 3], &[4, 2, 2, 2]], |x| x[0].convolution(&x[1], &grouped));
    check("convolution over one axis", &[&[2, 2, 6], &[2, 2, 3]], |x| {
        x[0].convolution(&x[1], &Convolution::new(1).stride([2]))
    });
    let window = Pooling::new([2, 3]).stride([1, 2]).padding([1, 0]);
    check("max_pool", &[&[1, 2, 4, 5]], |x| x[0].max_pool(&window));
    check("avg_pool", &[&[1, 2, 4, 5]], |x| x[0].avg_pool(&window));
}

#[test]
fn gradients_of_gradients() {
    let second = |f: fn(&Tensor) -> Tensor| move |x: &[Tensor]| grad(&f(&x[0]).sum_all(), &[&x[0]]).remove(0);
    check("tanh''", &[&[3]], second(Tensor::tanh));
    check("softmax''", &[&[3]], second(|x| x.softmax(0) * x));
    check(
        "take''",
        &[&[3]],
        second(|x| {
            let y = x.take(0, &Tensor::from_slice(&[2i32, 0, 2, 2], [4]));
            &y * &y * &y
        }),
    );
    check("matmul''", &[&[2, 2]], second(|x| x.matmul(x).matmul(x)));
    check(
        "grouped convolution''",
        &[&[2, 2, 3, 3]],
        second(|x| {
            let how = Convolution::new(2).groups(2).padding([(1, 1), (1, 1)]);
            let y = x.convolution(&x.reshape([2, 2, 3, 3]).narrow(1, 0, 1), &how);
            &y * &y
        }),
    );
}
