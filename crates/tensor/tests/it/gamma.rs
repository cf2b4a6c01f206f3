//! The gamma and beta distributions: quantiles and moments of the draws, which depend only on the
//! key.

use fulmen_tensor::{
    Accelerator, Argument, DType, Devices, Function, Literal, Mesh, Runtime, Sharding, Tensor,
    TensorType, grad, random,
};

const COUNT: usize = 20_000;
const PARTS: [f64; 5] = [0.05, 0.25, 0.5, 0.75, 0.95];

/// The values of `gamma.ppf(PARTS, alpha)` in SciPy 1.18.1.
const GAMMA: [(f64, [f64; 5]); 3] = [
    (0.3, [3.2110347e-05, 0.00689980257, 0.0731311359, 0.342899461, 1.37234994]),
    (1.0, [0.0512932944, 0.287682072, std::f64::consts::LN_2, 1.38629436, 2.99573227]),
    (4.5, [1.66255642, 2.94941294, 4.17141635, 5.69437572, 8.4594888]),
];

/// The values of `beta.ppf(PARTS, a, b)` in SciPy 1.18.1.
const BETA: [(f64, f64, [f64; 5]); 3] = [
    (0.2, 0.2, [7.74388579e-06, 0.0238147188, 0.5, 0.976185281, 0.999992256]),
    (1.0, 1.0, [0.05, 0.25, 0.5, 0.75, 0.95]),
    (3.0, 0.5, [0.500526487, 0.787255027, 0.920967233, 0.98178491, 0.999288214]),
];

/// Checks the fraction of draws below each quantile, the mean and the variance.
fn check(name: &str, drawn: &Tensor, quantiles: [f64; 5], mean: f64, variance: f64) {
    let drawn: Vec<f64> = drawn.eval().unwrap().to_f64();
    assert!(drawn.iter().all(|x| x.is_finite() && *x >= 0.0), "{name}");
    let count = drawn.len() as f64;
    for (part, quantile) in PARTS.into_iter().zip(quantiles) {
        let below = drawn.iter().filter(|&&x| x < quantile).count() as f64 / count;
        // Four standard deviations.
        assert!(
            (below - part).abs() < 4.0 * (part * (1.0 - part) / count).sqrt(),
            "{name}: {below} below {quantile}"
        );
    }
    let actual_mean = drawn.iter().sum::<f64>() / count;
    assert!(
        (actual_mean - mean).abs() < 4.0 * (variance / count).sqrt(),
        "{name}: the mean is {actual_mean}"
    );
    let actual_variance = drawn.iter().map(|x| (x - actual_mean).powi(2)).sum::<f64>() / count;
    assert!(
        (actual_variance / variance - 1.0).abs() < 0.15,
        "{name}: the variance is {actual_variance}, not {variance}"
    );
}

#[test]
fn draws_have_the_quantiles_of_their_distribution() {
    for dtype in [DType::F32, DType::F64] {
        for (alpha, quantiles) in GAMMA {
            let drawn = random::gamma(&random::key(11), dtype, [COUNT], alpha);
            check(&format!("gamma of {alpha} as {dtype}"), &drawn, quantiles, alpha, alpha);
        }
    }
    for (a, b, quantiles) in BETA {
        let drawn = random::beta(&random::key(12), DType::F32, [COUNT / 4, 4], a, b);
        let variance = a * b / ((a + b) * (a + b) * (a + b + 1.0));
        check(&format!("beta of {a} and {b}"), &drawn, quantiles, a / (a + b), variance);
    }
}

#[test]
fn a_parameter_may_be_a_tensor_and_be_wrong_in_places() {
    let alpha = Tensor::from_slice(&[0.5f32, 0.0, 900.0, -1.0, f32::NAN], [5]);
    let drawn = random::gamma(&random::key(3), DType::F32, [400, 5], &alpha)
        .eval()
        .unwrap()
        .to_vec::<f32>()
        .unwrap();
    for row in drawn.chunks(5) {
        assert!(row[0] >= 0.0 && (700.0..1100.0).contains(&row[2]), "{row:?}");
        assert!([row[1], row[3], row[4]].iter().all(|x| x.is_nan()), "{row:?}");
    }
    // A parameter as a tensor gives the same numbers as a number, apart from constant folding.
    // 16-bit numbers are drawn as f32 and rounded.
    let key = random::key(5);
    let one = random::beta(&key, DType::F32, [6], 0.2, 3.0);
    let same = random::beta(
        &key,
        DType::F32,
        [6],
        Tensor::scalar(0.2f32),
        Tensor::full(DType::F32, [6], 3.0),
    );
    let values = |t: &Tensor| t.eval().unwrap().to_f64();
    for (one, same) in values(&one).into_iter().zip(values(&same)) {
        assert!((one - same).abs() <= 1e-6 * one, "{one} {same}");
    }
    let half = random::beta(&key, DType::Bf16, [6], 0.2, 3.0);
    assert_eq!(values(&half), values(&one.to_dtype(DType::Bf16)));
    assert_ne!(values(&one), values(&random::beta(&random::key(6), DType::F32, [6], 0.2, 3.0)));
}

#[test]
fn draws_do_not_depend_on_the_devices_or_on_when_the_key_is_known() {
    let rows = Sharding::new([Some("data")]);
    let draw = |devices: usize, sharding: &Sharding| {
        let mesh = Mesh::new([("data", devices)]).unwrap();
        let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(devices))
            .unwrap()
            .with_mesh(&mesh)
            .unwrap();
        let key = TensorType::new(DType::U32, [2]);
        let function = Function::trace("draw", key, |x| {
            let many = random::gamma(&x, DType::F32, [64, 3], 0.7).with_sharding(sharding);
            vec![many * 1.0, random::beta(&x, DType::F32, [], 0.2, 0.2)]
        });
        let compiled = runtime.compile(&function).unwrap();
        let key = runtime.to_device(&Literal::from_slice(&[0u32, 7], [2]).unwrap()).unwrap();
        let outputs = compiled.call(vec![Argument::Borrow(&key)]).unwrap();
        let literals =
            runtime.read(&outputs.arrays.iter().collect::<Vec<_>>()).unwrap().wait().unwrap();
        literals.iter().map(|l| l.to_vec::<f32>().unwrap()).collect::<Vec<_>>()
    };
    let one = draw(1, &Sharding::replicated());
    assert_eq!(draw(8, &rows), one);
    let known = random::gamma(&random::key(7), DType::F32, [64, 3], 0.7)
        .eval()
        .unwrap()
        .to_vec::<f32>()
        .unwrap();
    for (a, b) in known.iter().zip(&one[0]) {
        assert!((a - b).abs() <= 1e-5 * a.abs(), "{a} and {b}");
    }
}

#[test]
fn gradients_flow_beside_a_draw_but_not_into_its_parameters() {
    let x = Tensor::from_slice(&[1.0f32, 2.0], [2]);
    let alpha = Tensor::scalar(0.4f32);
    let lambda = random::beta(&random::key(1), DType::F32, [], &alpha, &alpha);
    let loss = (&x * &lambda).sum_all();
    let gradients = grad(&loss, &[&x, &alpha]);
    let lambda = lambda.eval().unwrap().to_vec::<f32>().unwrap()[0];
    assert_eq!(gradients[0].eval().unwrap().to_vec::<f32>().unwrap(), [lambda, lambda]);
    assert_eq!(gradients[1].eval().unwrap().to_vec::<f32>().unwrap(), [0.0]);
}
