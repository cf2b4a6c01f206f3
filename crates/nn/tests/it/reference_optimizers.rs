//! Optimizers against PyTorch and optax.

use std::collections::BTreeMap;

use crate::common::reference::{Expected, cases, cycle, number, tensor, word};
use fulmen_nn::optim::{
    Adadelta, Adafactor, Adagrad, Adam, AdamW, AdjustLr, Lamb, Lars, Lion, Muon, NAdam, Optimizer,
    RAdam, RmsProp, Sgd, Step,
};
use fulmen_tensor::Tensor;
use serde_json::Value;

fn optimizer_of_pytorch(case: &Value) -> Box<dyn Optimizer> {
    let attrs = &case["attrs"];
    let lr = number(&attrs["lr"]);
    let decay = number(&attrs["weight_decay"]);
    let one_cycle = attrs["one_cycle"].as_object().map(|_| {
        let attrs = &attrs["one_cycle"];
        let cycle = cycle(attrs);
        (
            cycle.clone(),
            cycle.momentum(number(&attrs["base_momentum"]), number(&attrs["max_momentum"])),
        )
    });
    if case["op"] == "sgd" {
        let sgd = match one_cycle {
            Some((rate, momentum)) => Sgd::new(rate).momentum(momentum),
            None => Sgd::new(lr).momentum(number(&attrs["momentum"])),
        };
        return Box::new(
            sgd.dampening(number(&attrs["dampening"]))
                .nesterov(attrs["nesterov"] == true)
                .weight_decay(decay),
        );
    }
    let beta1 = number(&attrs["betas"][0]);
    let beta2 = number(&attrs["betas"][1]);
    let eps = number(&attrs["eps"]);
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

/// The optimizer of a case; settings that its attributes do not name keep their defaults.
fn optimizer(case: &Value) -> Box<dyn Optimizer> {
    let attrs = &case["attrs"];
    let flag = |name: &str| attrs[name] == true;
    let float = |name: &str, default: f64| attrs[name].as_f64().unwrap_or(default);
    let lr = float("lr", float("learning_rate", f64::NAN));
    let beta = |i: usize, default: f64| attrs["betas"][i].as_f64().unwrap_or(default);
    let betas = |first: f64, second: f64| (beta(0, first), beta(1, second));
    let decay = float("weight_decay", 0.0);
    let eps = float("eps", f64::NAN);
    match word(&case["op"], "op") {
        "adam" if flag("amsgrad") => Box::new(Adam::new(lr).amsgrad(true)),
        "adamw" if flag("maximize") => Box::new(AdamW::new(lr).maximize(true)),
        "nadam" => {
            let (beta1, beta2) = betas(0.9, 0.999);
            Box::new(
                NAdam::new(lr)
                    .betas(beta1, beta2)
                    .eps(eps)
                    .weight_decay(decay)
                    .decoupled_weight_decay(flag("decoupled_weight_decay"))
                    .momentum_decay(float("momentum_decay", f64::NAN)),
            )
        }
        "radam" => {
            let (beta1, beta2) = betas(0.9, 0.999);
            let radam = RAdam::new(lr).betas(beta1, beta2).eps(eps).weight_decay(decay);
            Box::new(radam.decoupled_weight_decay(flag("decoupled_weight_decay")))
        }
        "rmsprop" => {
            let rmsprop =
                RmsProp::new(lr).alpha(float("alpha", f64::NAN)).eps(eps).weight_decay(decay);
            Box::new(rmsprop.momentum(float("momentum", f64::NAN)).centered(flag("centered")))
        }
        "adagrad" => {
            let adagrad =
                Adagrad::new(lr).eps(eps).weight_decay(decay).lr_decay(float("lr_decay", f64::NAN));
            Box::new(
                adagrad.initial_accumulator_value(float("initial_accumulator_value", f64::NAN)),
            )
        }
        "adadelta" => {
            Box::new(Adadelta::new(lr).rho(float("rho", f64::NAN)).eps(eps).weight_decay(decay))
        }
        "adafactor" => {
            let adafactor = Adafactor::new(lr)
                .beta2_decay(float("beta2_decay", f64::NAN))
                .d(float("d", f64::NAN));
            Box::new(
                adafactor
                    .eps(attrs["eps"][0].as_f64(), number(&attrs["eps"][1]))
                    .weight_decay(decay),
            )
        }
        "lion" => {
            let lion = Lion::new(lr).betas(float("b1", 0.9), float("b2", 0.99));
            Box::new(lion.weight_decay(float("weight_decay", 1e-3)))
        }
        "lars" => {
            let lars = Lars::new(lr)
                .weight_decay(decay)
                .nesterov(flag("nesterov"))
                .momentum(float("momentum", 0.9));
            Box::new(
                lars.trust_coefficient(float("trust_coefficient", 0.001)).eps(float("eps", 0.0)),
            )
        }
        "lamb" => {
            let lamb =
                Lamb::new(lr).betas(float("b1", 0.9), float("b2", 0.999)).weight_decay(decay);
            Box::new(lamb.eps(float("eps", 1e-6)))
        }
        "muon" => {
            let adjust = match attrs["adjust_lr_fn"].as_str() {
                Some("match_rms_adamw") => AdjustLr::MatchRmsAdamW,
                Some("spectral_unclamped") => AdjustLr::SpectralUnclamped,
                _ => AdjustLr::Original,
            };
            let [a, b, c] = [0, 1, 2].map(|i| number(&attrs["ns_coefficients"][i]));
            Box::new(
                Muon::new(lr)
                    .momentum(float("momentum", f64::NAN))
                    .nesterov(flag("nesterov"))
                    .weight_decay(decay)
                    .eps(eps)
                    .ns_coefficients(a, b, c)
                    .ns_steps(float("ns_steps", f64::NAN) as u32)
                    .adjust_lr(adjust),
            )
        }
        _ => optimizer_of_pytorch(case),
    }
}

#[test]
fn optimizers_walk_pytorchs_path_over_twenty_steps() {
    check_steps("optimizers.json", 5e-6, 2e-6);
}

#[test]
fn adaptive_optimizers_walk_pytorchs_path_over_twenty_steps() {
    check_steps("optimizers_adaptive.json", 5e-6, 2e-6);
}

#[test]
fn optimizers_that_pytorch_has_not_walk_optaxs_path_over_twenty_steps() {
    check_steps("optimizers_optax.json", 5e-6, 2e-6);
}

#[test]
fn muon_walks_pytorchs_path_over_twenty_steps() {
    // In f64, against PyTorch's formula in f64. The file has the digits of f32.
    check_steps("muon_f64.json", 5e-6, 2e-6);
    // Rounding to bf16 moves singular values by up to 1 %, and the steps add up to 0.4.
    check_steps("muon.json", 0.0, 4e-3);
}

/// Compares all steps of each case. The tolerances are relative and absolute.
fn check_steps(file: &str, relative: f64, absolute: f64) {
    for case in cases(file) {
        let mut expected = Expected::within(relative, absolute);
        let optimizer = optimizer(&case);
        let mut parameters: BTreeMap<String, (Tensor, Vec<Tensor>)> = BTreeMap::new();
        for (name, value) in case["parameters"].as_object().into_iter().flatten() {
            let state = optimizer
                .state(name, tensor(value).ty())
                .into_iter()
                .map(|(_, value)| value)
                .collect();
            parameters.insert(name.clone(), (tensor(value), state));
        }
        let steps = case["steps"].as_array().cloned().unwrap_or_default();
        assert_eq!((parameters.len(), steps.len()), (2, 20));
        for (i, step) in steps.iter().enumerate() {
            let current = Step::new(&Tensor::scalar(i as i32));
            for (name, (parameter, state)) in &mut parameters {
                let gradient = tensor(&step["gradients"][name]);
                (*parameter, *state) =
                    optimizer.update(&current, name, parameter, &gradient, state);
                let title = format!("{}, step {i}: {name}", case["name"]);
                expected.tensor(title, parameter, &step["parameters"][name]);
            }
            let attrs = &case["attrs"];
            let rate = step["lr"]
                .as_f64()
                .or(attrs["lr"].as_f64())
                .unwrap_or_else(|| number(&attrs["learning_rate"]));
            expected.numbers(
                format!("{}, step {i}: rate", case["name"]),
                &optimizer.learning_rate(&current),
                vec![rate],
            );
        }
        expected.check();
    }
}
