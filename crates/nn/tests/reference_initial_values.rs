//! Initial values against PyTorch.

mod common;

use common::assert_close;
use common::reference::{cases, count, number};
use common::values;
use fulmen_nn::init::{Fan, Init, Nonlinearity};
use fulmen_nn::{Conv2d, Linear};
use fulmen_tensor::{DType, TensorType, random};
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
        let (attrs, name) = (&case["attrs"], case["name"].to_string());
        if case["op"] == "gain" {
            assert_close(&[nonlinearity(attrs).gain()], &[number(&case["gain"])], 1e-14, 0.0, &name);
            continue;
        }
        let shape: Vec<usize> = case["shape"].as_array().into_iter().flatten().map(count).collect();
        let fan = if attrs["mode"] == "fan_out" { Fan::Out } else { Fan::In };
        let found = match case["op"].as_str() {
            Some("kaiming_uniform") => Init::kaiming_uniform(nonlinearity(attrs), fan).spread(&shape),
            Some("kaiming_normal") => Init::kaiming_normal(nonlinearity(attrs), fan).spread(&shape),
            Some("xavier_uniform") => Init::xavier_uniform(number(&attrs["gain"])).spread(&shape),
            Some("xavier_normal") => Init::xavier_normal(number(&attrs["gain"])).spread(&shape),
            Some("default_weight") => match shape[..] {
                [out, inputs] => Linear::new(inputs, out).weight.init().spread(&shape),
                [out, inputs, height, width] => Conv2d::new(inputs, out, (height, width)).weight.init().spread(&shape),
                // No layer here has such a weight yet.
                _ => continue,
            },
            Some("default_bias") => {
                let bias = match shape[..] {
                    [out, inputs] => Linear::new(inputs, out).bias,
                    [out, inputs, height, width] => Conv2d::new(2 * inputs, out, (height, width)).groups(2).bias,
                    _ => None,
                };
                match bias.map(|bias| bias.init().clone()) {
                    Some(Init::Uniform { low, high }) if low == -high => Some(high),
                    other => panic!("{name}: {other:?}"),
                }
            }
            other => panic!("no rule {other:?}"),
        };
        assert_close(&found.into_iter().collect::<Vec<_>>(), &[number(&case["spread"])], 1e-12, 0.0, &name);
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
        assert!((deviation / expected - 1.0).abs() < 0.02, "{init:?}: {deviation} is not {expected}");
        assert!(mean.abs() < 4.0 * expected / n.sqrt(), "{init:?}: mean {mean}");
        if uniform {
            assert!(drawn.iter().all(|v| v.abs() <= spread * 1.000_001), "{init:?}");
        }
    }
}
