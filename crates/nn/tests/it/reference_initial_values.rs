//! Initial values against PyTorch.

use crate::common::reference::{cases, count, number, numbers, sizes};
use crate::common::{assert_close, values};
use fulmen_nn::init::{Fan, Init, Nonlinearity};
use fulmen_nn::{Conv2d, Linear};
use fulmen_tensor::{Argument, DType, Function, Literal, Runtime, TensorType, random};
use serde_json::Value;

fn nonlinearity(attrs: &Value) -> Nonlinearity {
    match attrs["nonlinearity"].as_str() {
        Some("linear") => Nonlinearity::Linear,
        Some("tanh") => Nonlinearity::Tanh,
        Some("relu") => Nonlinearity::Relu,
        Some("leaky_relu") => Nonlinearity::LeakyRelu(number(&attrs["slope"])),
        Some("selu") => Nonlinearity::Selu,
        other => panic!("no nonlinearity {other:?}"),
    }
}

#[test]
fn initial_values_have_pytorchs_spread() {
    for case in cases("initial_values.json") {
        let attrs = &case["attrs"];
        let name = case["name"].to_string();
        if case["op"] == "gain" {
            assert_close(
                &[nonlinearity(attrs).gain()],
                &[number(&case["gain"])],
                1e-14,
                0.0,
                &name,
            );
            continue;
        }
        if matches!(case["op"].as_str(), Some("dirac" | "eye" | "trunc_normal")) {
            continue;
        }
        let shape: Vec<usize> = case["shape"].as_array().into_iter().flatten().map(count).collect();
        let fan = if attrs["mode"] == "fan_out" { Fan::Out } else { Fan::In };
        let actual = match case["op"].as_str() {
            Some("kaiming_uniform") => {
                Init::kaiming_uniform(nonlinearity(attrs), fan).spread(&shape)
            }
            Some("kaiming_normal") => Init::kaiming_normal(nonlinearity(attrs), fan).spread(&shape),
            Some("xavier_uniform") => Init::xavier_uniform(number(&attrs["gain"])).spread(&shape),
            Some("xavier_normal") => Init::xavier_normal(number(&attrs["gain"])).spread(&shape),
            Some("default_weight") => match shape[..] {
                [out, inputs] => Linear::new(inputs, out).weight.init().spread(&shape),
                [out, inputs, height, width] => {
                    Conv2d::new(inputs, out, (height, width)).weight.init().spread(&shape)
                }
                // No layer of this crate has such a weight yet.
                _ => continue,
            },
            Some("default_bias") => {
                let bias = match shape[..] {
                    [out, inputs] => Linear::new(inputs, out).bias,
                    [out, inputs, height, width] => {
                        Conv2d::new(2 * inputs, out, (height, width)).groups(2).bias
                    }
                    _ => None,
                };
                match bias.map(|bias| bias.init().clone()) {
                    Some(Init::Uniform { low, high }) if low == -high => Some(high),
                    other => panic!("{name}: {other:?}"),
                }
            }
            other => panic!("no rule {other:?}"),
        };
        assert_close(
            &actual.into_iter().collect::<Vec<_>>(),
            &[number(&case["spread"])],
            1e-12,
            0.0,
            &name,
        );
    }
}

#[test]
fn what_is_drawn_has_the_spread_that_was_asked_for() {
    let ty = TensorType::new(DType::F32, [200, 100]);
    let key = random::key(5);
    for (init, uniform) in [
        (Init::kaiming_uniform(Nonlinearity::Relu, Fan::In), true),
        (Init::kaiming_normal(Nonlinearity::Relu, Fan::Out), false),
        (Init::xavier_uniform(1.0), true),
        (Init::xavier_normal(2.0), false),
        (Init::normal(0.0, 0.02), false),
    ] {
        let spread = init.spread(&ty.shape).unwrap_or(f64::NAN);
        let drawn = values(&init.tensor(&key, &ty));
        let n = drawn.len() as f64;
        let mean = drawn.iter().sum::<f64>() / n;
        let deviation = (drawn.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt();
        let expected = if uniform { spread / 3f64.sqrt() } else { spread };
        assert!(
            (deviation / expected - 1.0).abs() < 0.02,
            "{init:?}: {deviation} is not {expected}"
        );
        assert!(mean.abs() < 4.0 * expected / n.sqrt(), "{init:?}: mean {mean}");
        if uniform {
            assert!(drawn.iter().all(|v| v.abs() <= spread * 1.000_001), "{init:?}");
        }
    }
}

#[test]
fn patterns_and_truncated_normal_numbers_are_pytorchs() {
    let key = random::key(0);
    for case in cases("initial_values.json") {
        let attrs = &case["attrs"];
        let name = case["name"].to_string();
        let init = match case["op"].as_str() {
            Some("dirac") => Init::dirac(count(&attrs["groups"])),
            Some("eye") => Init::eye(),
            Some("trunc_normal") => {
                let [mean, std, a, b] = ["mean", "std", "a", "b"].map(|name| number(&attrs[name]));
                let init = Init::TruncNormal { mean, std, a, b };
                let mut drawn = values(&init.tensor(&key, &TensorType::new(DType::F32, [40_000])));
                drawn.sort_by(f64::total_cmp);
                assert!(drawn[0] >= a && drawn[drawn.len() - 1] <= b, "{name}");
                for (q, expected) in
                    [0.1, 0.3, 0.5, 0.7, 0.9].into_iter().zip(numbers(&case["quantiles"]))
                {
                    let actual = drawn[(q * drawn.len() as f64) as usize];
                    assert!(
                        (actual - expected).abs() < 0.03 * std,
                        "{name}: {actual} at {q} is not {expected}"
                    );
                }
                continue;
            }
            _ => continue,
        };
        let ty = TensorType::new(DType::F32, sizes(&case["shape"]));
        assert_eq!(values(&init.tensor(&key, &ty)), numbers(&case["value"]), "{name}");
    }
}

#[test]
fn orthogonal_weights_are_orthonormal_and_evenly_distributed() {
    for shape in
        [vec![1, 1], vec![3, 5], vec![5, 3], vec![64, 64], vec![300, 200], vec![8, 3, 3, 3]]
    {
        let ty = TensorType::new(DType::F32, shape.clone());
        let q = Init::orthogonal(2.0).tensor(&random::key(7), &ty).flatten(1, -1);
        let product = if q.size(0) > q.size(1) { q.t().matmul(&q) } else { q.matmul(&q.t()) };
        let n = product.size(0);
        let expected: Vec<f64> =
            (0..n * n).map(|i| if i % (n + 1) == 0 { 4.0 } else { 0.0 }).collect();
        assert_close(&values(&product), &expected, 0.0, 1e-5, &format!("{shape:?}"));
    }
    // For a uniform distribution, E[q₀₀] = 0 and E[q₀₀²] = 1/n, and determinants have both signs.
    // One program draws all.
    let draws = 400;
    let runtime = Runtime::global().unwrap();
    let draw = Function::trace("draw", TensorType::new(DType::U32, [2]), |key| {
        Init::orthogonal(1.0).tensor(&key, &TensorType::new(DType::F32, [2, 2]))
    });
    let draw = runtime.compile(&draw).unwrap();
    let mut all = Vec::new();
    for i in 0..draws {
        let key = runtime.to_device(&Literal::from_slice(&[7u32, i], [2]).unwrap()).unwrap();
        let drawn = draw.call(vec![Argument::Borrow(&key)]).unwrap().arrays;
        all.push(runtime.read(&[&drawn[0]]).unwrap().wait().unwrap().remove(0).to_f64());
    }
    let mean = |f: &dyn Fn(&[f64]) -> f64| all.iter().map(|q| f(q)).sum::<f64>() / f64::from(draws);
    assert!(mean(&|q| q[0]).abs() < 0.15 && (mean(&|q| q[0] * q[0]) - 0.5).abs() < 0.1);
    assert!((mean(&|q| f64::from(q[0] * q[3] - q[1] * q[2] > 0.0)) - 0.5).abs() < 0.12);
}

#[test]
fn sparse_weights_have_their_share_of_zeros_in_each_column() {
    let init = Init::sparse(0.35, 0.5);
    let drawn = values(&init.tensor(&random::key(0), &TensorType::new(DType::F32, [10, 200])));
    let mut zeros = [0; 10];
    for column in 0..200 {
        let zero_rows: Vec<usize> =
            (0..10).filter(|row| drawn[row * 200 + column] == 0.0).collect();
        assert_eq!(zero_rows.len(), 4, "column {column}");
        zero_rows.into_iter().for_each(|row| zeros[row] += 1);
    }
    assert!(zeros.iter().all(|count| (50..110).contains(count)), "{zeros:?}");
    let variance = drawn.iter().map(|v| v * v).sum::<f64>() / 1200.0;
    assert!((variance - 0.25).abs() < 0.03, "{variance}");
}
