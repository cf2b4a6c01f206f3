//! Optimizers, schedules and initial values against PyTorch.

mod common;

use std::collections::BTreeMap;

use common::assert_close;
use common::reference::{Expected, cases, count, number, numbers, tensor};
use common::values;
use fulmen_nn::init::{Fan, Init, Nonlinearity};
use fulmen_nn::optim::{Adam, AdamW, Optimizer, Sgd};
use fulmen_nn::schedule::{Anneal, OneCycle, Schedule};
use fulmen_nn::{Conv2d, Linear};
use fulmen_tensor::{DType, Tensor, TensorType, random};
use serde_json::Value;

fn cycle(attrs: &Value) -> OneCycle {
    let mut cycle = OneCycle::new(number(&attrs["max_lr"]), count(&attrs["total_steps"]) as u64);
    if let Some(share) = attrs["pct_start"].as_f64() {
        cycle = cycle.pct_start(share);
    }
    if let Some(factor) = attrs["div_factor"].as_f64() {
        cycle = cycle.div_factor(factor);
    }
    if let Some(factor) = attrs["final_div_factor"].as_f64() {
        cycle = cycle.final_div_factor(factor);
    }
    if attrs["anneal"] == "linear" {
        cycle = cycle.anneal(Anneal::Linear);
    }
    cycle.three_phase(attrs["three_phase"] == true)
}

fn optimizer(case: &Value) -> Box<dyn Optimizer> {
    let attrs = &case["attrs"];
    let (lr, decay) = (number(&attrs["lr"]), number(&attrs["weight_decay"]));
    let one_cycle = attrs["one_cycle"].as_object().map(|_| {
        let attrs = &attrs["one_cycle"];
        let cycle = cycle(attrs);
        (cycle.clone(), cycle.momentum(number(&attrs["base_momentum"]), number(&attrs["max_momentum"])))
    });
    if case["op"] == "sgd" {
        let sgd = match one_cycle {
            Some((rate, momentum)) => Sgd::new(rate).momentum(momentum),
            None => Sgd::new(lr).momentum(number(&attrs["momentum"])),
        };
        let sgd = sgd.dampening(number(&attrs["dampening"])).nesterov(attrs["nesterov"] == true);
        return Box::new(sgd.weight_decay(decay));
    }
    let (beta1, beta2, eps) = (number(&attrs["betas"][0]), number(&attrs["betas"][1]), number(&attrs["eps"]));
    macro_rules! adam {
        ($kind:ident) => {
            match one_cycle {
                Some((rate, momentum)) => $kind::new(rate).betas(momentum, beta2),
                None => $kind::new(lr).betas(beta1, beta2),
            }
        };
    }
    match case["op"].as_str() {
        Some("adam") => Box::new(adam!(Adam).eps(eps).weight_decay(decay)),
        Some("adamw") => Box::new(adam!(AdamW).eps(eps).weight_decay(decay)),
        other => panic!("no optimizer {other:?}"),
    }
}

#[test]
fn optimizers_walk_pytorchs_path_over_twenty_steps() {
    for case in cases("optimizers.json") {
        let mut expected = Expected::within(5e-6, 2e-6);
        let optimizer = optimizer(&case);
        let mut parameters: BTreeMap<String, (Tensor, Vec<Tensor>)> = BTreeMap::new();
        for (name, value) in case["parameters"].as_object().into_iter().flatten() {
            let state = optimizer.state(tensor(value).ty()).into_iter().map(|(_, value)| value).collect();
            parameters.insert(name.clone(), (tensor(value), state));
        }
        let steps = case["steps"].as_array().cloned().unwrap_or_default();
        assert_eq!((parameters.len(), steps.len()), (2, 20));
        for (i, step) in steps.iter().enumerate() {
            let counter = Tensor::scalar(i as i32);
            for (name, (parameter, state)) in &mut parameters {
                let gradient = tensor(&step["gradients"][name]);
                (*parameter, *state) = optimizer.update(&counter, parameter, &gradient, state);
                let what = format!("{}, step {i}: {name}", case["name"]);
                expected.tensor(what, parameter, &step["parameters"][name]);
            }
            let rate = step["lr"].as_f64().unwrap_or_else(|| number(&case["attrs"]["lr"]));
            expected.numbers(
                format!("{}, step {i}: rate", case["name"]),
                &optimizer.learning_rate(&counter),
                vec![rate],
            );
        }
        expected.check();
    }
}

#[test]
fn schedules_are_pytorchs_at_every_step() {
    // Relative to the number itself: the last rates of a cycle are a millionth of the first.
    let mut expected = Expected::within(2e-6, 0.0);
    let mut steps = 0;
    for case in cases("schedules.json") {
        let (attrs, rates) = (&case["attrs"], numbers(&case["lr"]));
        // Each operation of a schedule is elementwise, so a vector of steps gives all values at once.
        let step = Tensor::arange(DType::I32, rates.len());
        steps += rates.len();
        if case["op"] == "constant" {
            let rate = number(&attrs["lr"]).value(&step).broadcast_to([rates.len()]);
            expected.numbers("constant", &rate, rates);
            continue;
        }
        let cycle = cycle(attrs);
        expected.numbers(case["name"].to_string(), &cycle.value(&step), rates);
        if !case["momentum"].is_null() {
            let momentum = cycle.momentum(number(&attrs["base_momentum"]), number(&attrs["max_momentum"]));
            expected.numbers(format!("{}: momentum", case["name"]), &momentum.value(&step), numbers(&case["momentum"]));
        }
    }
    assert!(steps > 5_000);
    expected.check();
}

#[test]
fn a_schedule_of_one_step_is_the_element_of_the_schedule_of_all() {
    let cycle = OneCycle::new(0.1, 50).three_phase(true);
    let all = values(&cycle.value(&Tensor::arange(DType::I32, 50)));
    for step in [0, 14, 15, 28, 29, 49] {
        let one = cycle.value(&Tensor::scalar(step as i32));
        assert_eq!(one.ty(), &TensorType::scalar(DType::F32));
        assert_close(&values(&one), &all[step..=step], 1e-6, 0.0, "one step");
    }
}

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
