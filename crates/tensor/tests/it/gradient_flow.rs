//! Where gradients flow and where they end, compared with JAX.

use fulmen_tensor::internal::{gradient_end, gradients};
use fulmen_tensor::{
    Anomalies, Complex, DType, Scan, Tensor, call, checkpoint, cond, grad, scan, while_loop,
};

/// Written by `gradient_flow.py`.
fn reference() -> serde_json::Value {
    serde_json::from_str(include_str!("../reference/gradient_flow.json")).unwrap()
}

#[track_caller]
fn check(name: &str, actual: &Tensor, expected: &serde_json::Value) {
    let actual = actual.eval().unwrap_or_else(|e| panic!("{name}: {e}")).to_vec::<f32>().unwrap();
    let expected: Vec<f64> = serde_json::from_value(expected.clone()).unwrap();
    assert_eq!(actual.len(), expected.len(), "{name}");
    for (a, e) in actual.iter().zip(&expected) {
        assert!((f64::from(*a) - e).abs() <= 1e-4 * (1.0 + e.abs()), "{name}: {actual:?}");
    }
}

/// Takes a scalar `x`.
fn complex_body(c: &Tensor, x: &Tensor) -> Tensor {
    let base = c * x.to_dtype(DType::C64) + 1.0;
    (&base * &base * &base).real().sum_all() + c.abs().sum_all() * x
}

#[test]
fn a_complex_constant_from_outside_of_a_body_has_its_gradient() {
    let c = Tensor::from_slice(&[Complex::new(1.0f32, 2.0), Complex::new(-0.5, 0.25)], [2]);
    let xs = Tensor::from_slice(&[0.5f32, -1.25], [2]);
    let first = &xs.narrow(0, 0, 1).squeeze(0);
    let second = &xs.narrow(0, 1, 1).squeeze(0);
    let plain = |x: &Tensor| complex_body(&c, x);
    let zero = Tensor::scalar(0.0f32);
    let yes = Tensor::scalar(true);
    let branch =
        |x: &Tensor| cond(&yes, &[x], |x| vec![plain(&x[0])], |x| vec![x[0].clone()]).remove(0);
    let losses = [
        ("no body", plain(first) + plain(second)),
        (
            "checkpoint",
            checkpoint(|x| vec![plain(&x[0]) + plain(&x[1])], &[first, second]).remove(0),
        ),
        ("cond", branch(first) + branch(second)),
        ("call", call("f", &[first, second], |x| vec![plain(&x[0]) + plain(&x[1])]).remove(0)),
        ("scan", scan(&zero, &xs, |sum, x| (sum + plain(&x), ())).0),
    ];
    let expected = &reference()["complex capture"];
    let expected: Vec<[f32; 2]> = serde_json::from_value(expected.clone()).unwrap();
    for (name, loss) in losses {
        let gradient = grad(&loss, &[&c]).remove(0).eval().unwrap();
        let gradient = gradient.to_vec::<Complex<f32>>().unwrap();
        for (a, [re, im]) in gradient.iter().zip(&expected) {
            assert!((a - Complex::new(*re, *im)).norm() < 1e-3, "{name}: {gradient:?}");
        }
    }
}

/// Doubles until the sum of magnitudes is above 50. It has no derivative.
fn doubled(t: &Tensor) -> Tensor {
    while_loop(t, |t| t.abs().sum_all().lt(50.0), |t| t * 2.0)
}

#[test]
fn detached_values_comparisons_and_integers_end_the_flow() {
    let x = &Tensor::from_slice(&[0.75f32, -1.5, 2.25], [3]);
    let yes = Tensor::scalar(true);
    let times = |factor: Tensor| (x * factor).sum_all();
    let in_scan = Scan::new()
        .length(3)
        .run(&[x], (), |c, ()| (vec![&c[0] * doubled(&c[0].detach()).mean_all()], ()));
    let checkpointed = checkpoint(|x| vec![(&x[0] * 2.0).detach()], &[x]).remove(0);
    let chosen = cond(&yes, &[x], |x| vec![x[0].detach()], |x| vec![(-&x[0]).detach()]).remove(0);
    let called = call("f", &[x], |x| vec![(&x[0] * 3.0).detach()]).remove(0);
    let both = Tensor::optimization_barrier(&[&(x * 2.0), &x.detach()]);
    let steps = while_loop(
        &[&Tensor::scalar(0.0f32), &x.abs()],
        |c| c[1].sum_all().lt(50.0),
        |c| vec![&c[0] + 1.0, &c[1] + x.abs()],
    );
    let losses = [
        ("detach", times(doubled(&x.detach()))),
        ("comparison", times(doubled(&x.gt(0.0).to_dtype(DType::F32)))),
        ("integer", times(doubled(&x.to_dtype(DType::I32).to_dtype(DType::F32)))),
        ("floor", times(doubled(&x.floor()))),
        ("sign", times(doubled(&x.sign()))),
        ("scan", in_scan.0[0].sum_all()),
        ("checkpoint", times(doubled(&checkpointed))),
        ("cond", times(doubled(&chosen))),
        ("call", times(doubled(&called))),
        ("barrier", (&both[0] * doubled(&both[1])).sum_all()),
        ("other carry", times(steps[0].clone())),
    ];
    let reference = reference();
    let expected = reference["losses"].as_object().unwrap();
    assert_eq!(losses.len(), expected.len());
    for (name, loss) in &losses {
        check(name, &grad(loss, &[x])[0], &expected[*name]);
    }
    let refused = grad(doubled(x).sum_all(), &[x])[0].eval().unwrap_err().to_string();
    assert!(refused.contains("while_loop: a loop with a condition has no derivative"), "{refused}");
}

#[test]
fn the_line_that_ends_the_flow_is_found() {
    let x = &Tensor::from_slice(&[0.75f32, -1.5, 2.25], [3]);
    let y = &Tensor::from_slice(&[1.0f32; 3], [3]);
    let line = line!() + 1;
    let best = (x * 2.0).argmax(0);
    let loss = best.eq(1.0).to_dtype(DType::F32) * y.sum_all();
    assert_eq!(gradient_end(&loss, &[x]).unwrap().line(), line);
    assert_eq!(gradient_end(&y.sum_all(), &[x]), None);
    let found = gradients(&loss, &[x, y]);
    assert!(found[0].is_none() && found[1].is_some());
}

#[test]
fn a_complex_nan_is_found() {
    let x = Tensor::from_slice(&[0.0f32, 1.0], [2]);
    let line = line!() + 1;
    let inverse = 1.0 / x.to_dtype(DType::C64);
    let anomalies = Anomalies::watch(&[inverse.real().sum_all()]);
    let text = anomalies.origin(&anomalies.levels().eval().unwrap().to_vec().unwrap()).unwrap();
    assert!(text.contains("c64[2]") && text.contains(&format!(":{line}:")), "{text}");
}
