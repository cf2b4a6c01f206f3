//! Mixed precision: the dtype of each computation, the accuracy of long sums, and the scope of the
//! setting.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use fulmen_tensor::{Convolution, DType, Function, Tensor, TensorType, autocast, grad};
use half::bf16;

fn in_bf16<T>(record: impl FnOnce() -> T) -> T {
    autocast(Some(DType::Bf16), record)
}

#[test]
fn products_are_computed_in_the_dtype_and_f64_is_left_alone() {
    let ones = |dtype| Tensor::ones(dtype, [1, 2, 4, 4]);
    let how = Convolution::new(2);
    for cast in [DType::Bf16, DType::F16, DType::F32] {
        for dtype in [DType::F32, DType::Bf16, DType::F16, DType::F64] {
            let expected = if dtype == DType::F64 { DType::F64 } else { cast };
            let x = ones(dtype);
            let results = autocast(Some(cast), || {
                [
                    x.matmul(&x),
                    x.matmul(&ones(DType::F32)),
                    ones(DType::I32).matmul(&x),
                    x.dot_general(&x, ([], []), (3, 3)),
                    x.convolution(&x, &how),
                ]
            });
            for result in results {
                assert_eq!(
                    result.check().unwrap().dtype(),
                    expected,
                    "{dtype} cast to {cast}: {result:?}"
                );
            }
        }
        let integers = autocast(Some(cast), || ones(DType::I32).matmul(&ones(DType::I32)));
        assert_eq!(integers.dtype(), DType::I32);
    }
}

#[test]
fn the_softmax_family_sums_and_powers_are_computed_in_f32() {
    let all = |x: &Tensor| {
        [
            x.softmax(-1),
            x.log_softmax(-1),
            x.logsumexp(-1),
            x.sum(1),
            x.sum([]),
            x.mean_all(),
            x.var_keepdim(0),
            x.exp(),
            x.expm1(),
            x.log(),
            x.log1p(),
            x.erf_inv(),
            x.rsqrt(),
            x.pow(0.3),
            x.exp2(),
            x.log2(),
            x.log10(),
            x.logaddexp(0.3),
            x.logaddexp2(0.3),
            x.xlogy(0.3),
            x.reciprocal(),
            x.tan(),
            x.acos(),
            x.asin(),
            x.sinh(),
            x.cosh(),
        ]
    };
    for dtype in [DType::Bf16, DType::F16] {
        let x = Tensor::full(dtype, [2, 3], 0.5);
        for (inside, outside) in in_bf16(|| all(&x)).iter().zip(&all(&x)) {
            assert_eq!((inside.dtype(), outside.dtype()), (DType::F32, dtype), "{inside:?}");
        }
        let others = in_bf16(|| {
            [&x + &x, x.tanh(), x.max(0), x.relu(), x.atan(), x.round(), x.clamp(0.0, 1.0)]
        });
        assert!(others.iter().all(|y| y.dtype() == dtype));
    }
    let x = Tensor::full(DType::F64, [2, 3], 0.5);
    assert!(in_bf16(|| all(&x)).iter().all(|y| y.dtype() == DType::F64));
    // The exponent must not be rounded to bf16 first.
    let power =
        in_bf16(|| Tensor::full(DType::Bf16, [1], 2.0).pow(0.3)).eval().unwrap().to_f64()[0];
    assert!((power - 2f64.powf(0.3)).abs() < 1e-6, "{power}");
}

/// Numbers of both signs that bf16 holds exactly, and that partly cancel in sums.
fn halves(seed: u64, n: usize) -> Vec<bf16> {
    let mut state = seed;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / f64::from(1 << 24)
    };
    (0..n).map(|_| bf16::from_f64(next() - 0.4)).collect()
}

#[test]
fn products_and_sums_of_16_bit_floats_accumulate_in_f32() {
    const K: usize = 4096;
    let a = halves(1, 8 * K);
    let b = halves(2, K * 8);
    let exact = |i: usize, j: usize| {
        (0..K).map(|k| a[i * K + k].to_f64() * b[k * 8 + j].to_f64()).sum::<f64>()
    };
    let reference: Vec<f64> = (0..64).map(|n| exact(n / 8, n % 8)).collect();
    let check = |what: &str, actual: &Tensor, reference: &[f64]| {
        let actual = actual.to_dtype(DType::F64).eval().unwrap().to_f64();
        for (actual, reference) in actual.iter().zip(reference) {
            // Half a unit in the last place of bf16, plus the error of f32. A sum in bf16 would
            // stall far from the reference.
            let tolerance = reference.abs() * 2f64.powi(-8) + 1e-3;
            assert!(
                (actual - reference).abs() <= tolerance,
                "{what}: {actual}, in f64 {reference}"
            );
        }
    };
    let x = Tensor::from_slice(&a, [8, K]);
    let y = Tensor::from_slice(&b, [K, 8]);
    check("matmul", &x.matmul(&y), &reference);
    let wide_x = x.to_dtype(DType::F32);
    let wide_y = y.to_dtype(DType::F32);
    check("matmul under autocast", &in_bf16(|| wide_x.matmul(&wide_y)), &reference);
    check("batches", &x.reshape([1, 8, K]).matmul(&y.reshape([1, K, 8])), &reference);
    check(
        "vectors",
        &x.slice(&[0, 0], &[1, K], &[1, 1]).reshape([K]).matmul(&y.narrow(1, 0, 1)),
        &reference[..1],
    );
    let image = x.reshape([8, K, 1, 1]);
    let kernel = y.t().reshape([8, K, 1, 1]);
    check("convolution", &image.convolution(&kernel, &Convolution::new(2)), &reference);

    let ones = Tensor::ones(DType::Bf16, [K]);
    check("product of ones", &ones.matmul(&ones), &[K as f64]);
    check("sum of ones", &ones.sum_all(), &[K as f64]);
    check("mean of ones", &ones.mean_all(), &[1.0]);
    let f16s = Tensor::ones(DType::F16, [K]);
    check("sum of f16 ones", &f16s.sum_all(), &[K as f64]);
    check("softmax", &Tensor::zeros(DType::Bf16, [K]).softmax(0), &[1.0 / K as f64]);
    check("logsumexp", &Tensor::zeros(DType::Bf16, [K]).logsumexp(0), &[(K as f64).ln()]);
    // The gradient of a broadcast is a sum too.
    let one = Tensor::ones(DType::Bf16, []);
    check(
        "gradient of a broadcast",
        &grad(&one.broadcast_to([K]).sum_all(), &[&one])[0],
        &[K as f64],
    );
}

#[test]
fn a_training_steps_products_are_bf16_and_its_gradients_f32() {
    let types = [[8, 16], [16, 32], [32, 4]].map(|shape| TensorType::new(DType::F32, shape));
    let step = |grad_inside: bool| {
        Function::trace("step", &types, |x| {
            let loss = || {
                let hidden = x[0].matmul(&x[1]).relu();
                -(hidden.matmul(&x[2]).log_softmax(-1).mean_all())
            };
            let wrt = [&x[1], &x[2]];
            if grad_inside { in_bf16(|| grad(&loss(), &wrt)) } else { grad(&in_bf16(loss), &wrt) }
        })
    };
    let function = step(false);
    assert!(function.results().iter().all(|g| g.dtype() == DType::F32));
    let text = function.stablehlo().unwrap();
    let products: Vec<&str> =
        text.lines().filter(|l| l.contains("stablehlo.dot_general")).collect();
    assert_eq!(products.len(), 5, "{text}");
    for product in products {
        assert!(product.contains("bf16") && !product.contains("xf32>"), "{product}");
    }
    // Derivatives do not depend on where `grad` is called. Only the lines of the calls differ.
    let without_lines = |f: &Function| crate::programs::unlocated(&f.stablehlo().unwrap());
    assert_eq!(without_lines(&function), without_lines(&step(true)));
}

#[test]
fn gradients_under_autocast_are_close_to_those_in_f32() {
    let f = |x: &Tensor, w: &Tensor| (x.matmul(w).tanh().softmax(-1) * x.matmul(w)).sum_all();
    let values = |n, seed| halves(seed, n).iter().map(|v| v.to_f32() * 0.7).collect::<Vec<_>>();
    let x = Tensor::from_slice(&values(24, 3), [4, 6]);
    let w = Tensor::from_slice(&values(30, 4), [6, 5]);
    let exact = grad(&f(&x, &w), &[&x, &w]);
    let mixed = grad(&in_bf16(|| f(&x, &w)), &[&x, &w]);
    for (exact, mixed) in exact.iter().zip(&mixed) {
        let exact = exact.eval().unwrap().to_f64();
        let mixed = mixed.eval().unwrap().to_f64();
        let largest = exact.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        assert_ne!(exact, mixed);
        for (a, b) in exact.iter().zip(&mixed) {
            assert!((a - b).abs() < 0.02 * largest, "{a} and {b}, the largest is {largest}");
        }
    }
}

#[test]
fn calls_nest_and_end_with_a_panic_too() {
    let x = Tensor::ones(DType::F32, [2, 2]);
    let product = || x.matmul(&x).dtype();
    in_bf16(|| {
        assert_eq!(autocast(Some(DType::F16), product), DType::F16);
        assert_eq!(autocast(None, product), DType::F32);
        assert_eq!(product(), DType::Bf16);
        let panicked = std::panic::catch_unwind(|| {
            autocast(Some(DType::F16), || panic!("as a user's model may"))
        });
        assert!(panicked.is_err());
        assert_eq!(product(), DType::Bf16);
        // Another thread has its own setting.
        std::thread::scope(|s| assert_eq!(s.spawn(product).join().unwrap(), DType::F32));
    });
    assert_eq!(product(), DType::F32);
}
