//! Optimizers and schedules beyond PyTorch's numbers: types, state, groups and invalid settings.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use crate::common::{assert_close, fault, values};
use fulmen_nn::optim::{
    Adadelta, Adafactor, Adagrad, Adam, AdamW, Lamb, Lars, Lion, Muon, NAdam, Optimizer,
    ParamGroups, RAdam, RmsProp, Sgd, Step,
};
use fulmen_nn::schedule::{self, Anneal, OneCycle, Schedule};
use fulmen_tensor::{DType, Runtime, Tensor, TensorType};

fn vector(v: &[f32]) -> Tensor {
    Tensor::from_slice(v, [v.len()])
}

fn step(n: i32) -> Step {
    Step::new(&counter(n))
}

fn counter(n: i32) -> Tensor {
    Tensor::scalar(n)
}

/// One of each kind, with a rate so large that even 16-bit numbers change.
fn all() -> Vec<Box<dyn Optimizer>> {
    vec![
        Box::new(Sgd::new(0.1).momentum(0.9)),
        Box::new(Adam::new(0.1).amsgrad(true)),
        Box::new(AdamW::new(0.1)),
        Box::new(NAdam::new(0.1)),
        Box::new(RAdam::new(0.1)),
        Box::new(RmsProp::new(0.1).centered(true).momentum(0.5)),
        Box::new(Adagrad::new(0.1)),
        Box::new(Adadelta::new(100.0)),
        Box::new(Lion::new(0.1).weight_decay(0.0)),
        Box::new(Lars::new(10.0)),
        Box::new(Lamb::new(0.1)),
        Box::new(Adafactor::new(0.1)),
    ]
}

/// The values before the first step.
fn first_state(optimizer: &dyn Optimizer, parameter: &Tensor) -> Vec<Tensor> {
    optimizer.state("p", parameter.ty()).into_iter().map(|(_, value)| value).collect()
}

#[test]
fn state_has_pytorchs_names_and_at_least_f32() {
    let ty = TensorType::new(DType::Bf16, [3]);
    let names = |optimizer: &dyn Optimizer| -> Vec<(&'static str, String)> {
        optimizer
            .state("p", &ty)
            .into_iter()
            .map(|(name, value)| (name, value.ty().to_string()))
            .collect()
    };
    assert_eq!(names(&Sgd::new(0.1)), []);
    assert_eq!(names(&Sgd::new(0.1).momentum(0.0)), []);
    assert_eq!(names(&Sgd::new(0.1).momentum(0.9)), [("momentum_buffer", "f32[3]".to_owned())]);
    let adam = [("exp_avg", "f32[3]".to_owned()), ("exp_avg_sq", "f32[3]".to_owned())];
    assert_eq!(names(&Adam::new(0.1)), adam);
    assert_eq!(names(&AdamW::new(0.1)), adam);
}

#[test]
fn parameters_and_state_keep_their_types() {
    let optimizers = all();
    let mut after = Vec::new();
    for optimizer in &optimizers {
        for dtype in [DType::F32, DType::Bf16, DType::F16, DType::F64] {
            let p = vector(&[1.0, 2.0]).to_dtype(dtype);
            // A gradient may have a wider dtype than its parameter.
            let g = vector(&[0.5, -0.5]);
            let state = first_state(optimizer.as_ref(), &p);
            let (new, next) = optimizer.update(&step(0), "p", &p, &g, &state);
            assert_eq!(new.ty(), p.ty(), "{optimizer:?}");
            for (before, after) in state.iter().zip(&next) {
                assert_eq!(before.ty(), after.ty(), "{optimizer:?}");
            }
            next.iter().for_each(|value| assert!(!value.dtype().is_half(), "{optimizer:?}"));
            after.push((format!("{optimizer:?} {dtype}"), new));
        }
    }
    let tensors: Vec<&Tensor> = after.iter().map(|(_, new)| new).collect();
    for (literal, (name, _)) in
        Runtime::global().unwrap().eval_many(&tensors).unwrap().iter().zip(&after)
    {
        let new = literal.to_f64();
        assert!(new[0] < 1.0 && new[1] > 2.0, "{name}: {new:?}");
    }
}

#[test]
fn the_first_step_of_adam_is_exactly_one_learning_rate_long() {
    // m/(1 − β₁) = g and v/(1 − β₂) = g² for any betas, so a bias correction that loses digits
    // would be visible.
    for beta2 in [0.9, 0.999, 0.999_999] {
        let adam = Adam::new(0.01).betas(0.9, beta2).eps(0.0);
        let p = vector(&[0.0, 0.0]);
        let (new, _) =
            adam.update(&step(0), "p", &p, &vector(&[3.0, -0.002]), &first_state(&adam, &p));
        assert_close(&values(&new), &[-0.01, 0.01], 1e-6, 0.0, "step");
    }
}

#[test]
fn a_beta_may_be_a_schedule() {
    let p = vector(&[1.0, -2.0]);
    let g = vector(&[0.3, 0.7]);
    let number = Adam::new(0.1).betas(0.9, 0.99);
    // A schedule that is not known to be constant uses the other form of the formula.
    let cycle = OneCycle::new(0.1, 10).momentum(0.9, 0.9);
    let schedule = Adam::new(0.1).betas(cycle, 0.99);
    let mut a = (p.clone(), first_state(&number, &p));
    let mut b = (p.clone(), first_state(&schedule, &p));
    for i in 0..4 {
        a = number.update(&step(i), "p", &a.0, &g, &a.1);
        b = schedule.update(&step(i), "p", &b.0, &g, &b.1);
    }
    assert_close(&values(&b.0), &values(&a.0), 1e-5, 0.0, "parameters");
}

#[test]
fn a_momentum_may_be_a_schedule() {
    let cycle = OneCycle::new(1.0, 5);
    let sgd = Sgd::new(1.0).momentum(cycle.momentum(0.5, 1.0));
    let p = vector(&[0.0]);
    let (_, state) = sgd.update(&step(0), "p", &p, &vector(&[0.0]), &[vector(&[8.0])]);
    assert_close(&values(&state[0]), &[8.0], 1e-6, 0.0, "momentum 1 at the start");
    let later = values(&cycle.momentum(0.5, 1.0).value(&counter(1)))[0];
    let (_, state) = sgd.update(&step(1), "p", &p, &vector(&[0.0]), &[vector(&[8.0])]);
    assert_close(&values(&state[0]), &[8.0 * later], 1e-6, 0.0, "momentum of step 1");
}

#[test]
fn settings_without_sense_are_poisoned() {
    let p = vector(&[1.0]);
    let message = |optimizer: &dyn Optimizer, state: &[Tensor]| {
        fault(&optimizer.update(&step(0), "p", &p, &p, state).0)
    };
    assert!(message(&Sgd::new(0.1).nesterov(true), &[]).contains("nesterov needs a momentum"));
    assert!(message(&Sgd::new(-0.1), &[]).contains("at least 0"));
    assert!(message(&Sgd::new(f64::NAN), &[]).contains("at least 0"));
    assert!(message(&Sgd::new(0.1).momentum(0.9), &[]).contains("got 0 state tensors, expected 1"));
    let wrong = Sgd::new(0.1).update(&step(0), "p", &p, &vector(&[1.0, 2.0]), &[]).0;
    assert!(fault(&wrong).contains("the gradient f32[2] does not belong to the parameter f32[1]"));
    assert!(fault(&OneCycle::new(0.1, 0).value(&counter(0))).contains("total_steps"));
    assert!(fault(&OneCycle::new(0.1, 9).pct_start(1.5).value(&counter(0))).contains("pct_start"));
    assert!(
        fault(&OneCycle::new(0.1, 9).div_factor(0.0).value(&counter(0))).contains("div_factor")
    );
}

#[test]
fn a_cycle_of_any_length_has_numbers_and_ends_at_its_end() {
    for total in [1u64, 2, 3, 4, 7] {
        for pct in [0.0, 0.3, 0.5, 1.0] {
            for anneal in [Anneal::Cos, Anneal::Linear] {
                for three_phase in [false, true] {
                    let cycle = OneCycle::new(0.1, total)
                        .pct_start(pct)
                        .anneal(anneal)
                        .three_phase(three_phase);
                    for i in 0..total as i32 + 3 {
                        let rate = values(&cycle.value(&counter(i)))[0];
                        assert!(rate > 0.0 && rate <= 0.100_001, "{cycle:?} at {i}: {rate}");
                    }
                    let last = total as i32 - 1;
                    let after = total as i32 + 100;
                    assert_eq!(
                        values(&cycle.value(&counter(last))),
                        values(&cycle.value(&counter(after))),
                        "{cycle:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_number_is_a_schedule() {
    assert_eq!(values(&0.25.value(&counter(7))), [0.25]);
    assert_eq!(0.25.constant(), Some(0.25));
    assert_eq!(values(&Sgd::new(0.5).learning_rate(&step(3))), [0.5]);
}

#[test]
fn settings_without_sense_are_refused_at_the_line_that_gave_them() {
    let line = line!() + 1;
    let optimizer = AdamW::new(0.1).betas(1.0, 0.9);
    let error = optimizer.check(&[]).unwrap_err().to_string();
    assert!(error.starts_with("AdamW: betas must be at least 0 and below 1"), "{error}");
    assert!(error.contains(&format!("optimizers.rs:{line}:")), "{error}");
    // Errors in a schedule are reported at the line of its optimizer.
    let line = line!() + 1;
    let optimizer = Lion::new(schedule::Step::new(0.1, 0));
    let p = vector(&[1.0]);
    let wrong = fault(&optimizer.update(&step(0), "p", &p, &p, std::slice::from_ref(&p)).0);
    assert!(wrong.contains("the learning rate: Step: step_size must be at least 1"), "{wrong}");
    assert!(wrong.contains(&format!("optimizers.rs:{line}:")), "{wrong}");
    assert!(fault(&optimizer.learning_rate(&step(0))).contains("step_size"));
    // The same for schedules of a momentum or a beta, and for values that are not scalars.
    let two = || schedule::Lambda::new(|_: &Tensor| vector(&[0.1, 0.2]));
    let first = line!();
    let cases = [
        (
            Box::new(Sgd::new(0.1).momentum(schedule::Step::new(0.1, 0))) as Box<dyn Optimizer>,
            "momentum: Step: step_size",
        ),
        (
            Box::new(Adam::new(0.1).betas(schedule::Step::new(0.1, 0), 0.9)),
            "beta1: Step: step_size must be at least 1",
        ),
        (
            Box::new(Sgd::new(two())),
            "the learning rate must be a scalar, f32[], and its schedule gives f32[2]",
        ),
        (
            Box::new(Sgd::new(0.1).momentum(two())),
            "momentum must be a scalar, f32[], and its schedule gives f32[2]",
        ),
    ];
    let lines = first..line!();
    for (optimizer, expected) in cases {
        let state: Vec<Tensor> =
            optimizer.state("p", p.ty()).into_iter().map(|(_, first)| first).collect();
        let wrong = fault(&optimizer.update(&step(0), "p", &p, &p, &state).0);
        let names_line =
            lines.clone().any(|line| wrong.contains(&format!("optimizers.rs:{line}:")));
        assert!(wrong.contains(expected) && names_line, "{wrong}");
    }
    for (optimizer, expected) in [
        (
            Box::new(Sgd::new(0.1).weight_decay(-1.0)) as Box<dyn Optimizer>,
            "weight_decay must be at least 0, but it is -1",
        ),
        (Box::new(Sgd::new(0.1).momentum(-0.5)), "momentum must be at least 0"),
        (Box::new(NAdam::new(0.1).momentum_decay(-1.0)), "momentum_decay"),
        (Box::new(RAdam::new(0.1).betas(0.9, 0.0)), "the second above 0"),
        (Box::new(RmsProp::new(0.1).alpha(2.0)), "alpha must be between 0 and 1, but it is 2"),
        (
            Box::new(Adagrad::new(0.1).lr_decay(f64::NAN)),
            "lr_decay must be at least 0, but it is NaN",
        ),
        (Box::new(Adadelta::new(0.1).rho(-0.1)), "rho must be between 0 and 1, but it is -0.1"),
        (
            Box::new(Lion::new(f64::INFINITY)),
            "the learning rate must be at least 0 and finite, but it is inf",
        ),
        (
            Box::new(Adafactor::new(0.1).beta2_decay(f64::NEG_INFINITY)),
            "beta2_decay must be at most 0 and finite",
        ),
        (Box::new(Lion::new(-0.1)), "the learning rate must be at least 0, but it is -0.1"),
        (Box::new(Lars::new(0.1).trust_coefficient(-1.0)), "trust_coefficient"),
        (Box::new(Lamb::new(0.1).betas(0.9, 1.0)), "betas"),
        (Box::new(Adafactor::new(0.1).d(0.5)), "d must be at least 1, but it is 0.5"),
        (Box::new(Adafactor::new(0.1).beta2_decay(0.5)), "beta2_decay must be at most 0"),
        (Box::new(Muon::new(0.1).momentum(-0.5)), "momentum must be at least 0, but it is -0.5"),
        (Box::new(Muon::new(0.1).ns_steps(100)), "ns_steps must be below 100, but it is 100"),
        (Box::new(Muon::new(0.1).eps(-1.0)), "eps must be at least 0, but it is -1"),
        (
            Box::new(Muon::new(0.1).ns_coefficients(1.0, f64::NAN, 0.0)),
            "ns_coefficients must be finite, but are [1.0, NaN, 0.0]",
        ),
    ] {
        let error = optimizer.check(&[]).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("optimizers.rs:"), "{error}");
    }
    all().iter().for_each(|optimizer| optimizer.check(&[]).unwrap());
}

#[test]
fn muon_takes_matrices_and_names_what_else_it_was_given() {
    let named = |name: &str, shape: &[usize]| (name.to_owned(), TensorType::new(DType::F32, shape));
    let parameters = [
        named("embed.weight", &[8, 4]),
        named("layers.0.norm.weight", &[4]),
        named("layers.0.fc.weight", &[4, 4]),
    ];
    let alone = Muon::new(0.02).check(&parameters).unwrap_err().to_string();
    assert!(
        alone.contains("Muon: the parameter `layers.0.norm.weight` is f32[4], and the steps of Muon are for matrices")
            && alone.contains("ParamGroups::matrices")
            && alone.contains("optimizers.rs:"),
        "{alone}"
    );
    let vector = Tensor::ones(DType::F32, [4]);
    let update = |p: &Tensor| {
        let (wrong, _) = Muon::new(0.02).update(&step(0), "p", p, p, std::slice::from_ref(p));
        fault(&wrong)
    };
    let wrong = update(&vector);
    assert!(
        wrong.contains("the parameter is f32[4], and the steps of Muon are for matrices"),
        "{wrong}"
    );
    let wrong = update(&Tensor::ones(DType::C64, [4, 4]));
    assert!(wrong.contains("the parameter is complex, c64[4, 4]"), "{wrong}");

    let groups = ParamGroups::new(AdamW::new(3e-4)).matrices("layers.*", Muon::new(0.02));
    groups.check(&parameters).unwrap();
    let states = parameters.each_ref().map(|(name, ty)| groups.state(name, ty)[0].0);
    assert_eq!(states, ["exp_avg", "exp_avg", "momentum_buffer"]);
    // A frozen vector needs no step.
    ParamGroups::new(Muon::new(0.02)).freeze("*.norm.*").check(&parameters).unwrap();
    let none = ParamGroups::new(AdamW::new(3e-4)).matrices("*.norm.*", Muon::new(0.02));
    let error = none.check(&parameters).unwrap_err().to_string();
    assert!(error.contains("no parameter that `*.norm.*` matches has two axes"), "{error}");
}

#[test]
fn muon_updates_stacked_matrices_like_each_alone() {
    let muon = Muon::new(0.02);
    let draw = |seed: u64| {
        fulmen_tensor::random::normal(&fulmen_tensor::random::key(seed), DType::F32, [3, 4, 6])
    };
    let [p, g, buffer] = [1, 2, 3].map(draw);
    let layer_type = TensorType::new(DType::F32, [4, 6]);
    assert!(muon.updates_stacked(&["a", "b", "c"], &layer_type));
    let buffers = [buffer.clone()];
    let (stacked, _) = muon.update(&step(0).of_stacked(), "a", &p, &g, &buffers);
    let alone: Vec<Tensor> = (0..3)
        .map(|i| {
            let state = [buffer.index(0, i)];
            muon.update(&step(0), "a", &p.index(0, i), &g.index(0, i), &state).0
        })
        .collect();
    let alone = Tensor::stack(&alone.iter().collect::<Vec<_>>(), 0);
    assert_close(&values(&stacked), &values(&alone), 0.0, 2e-4, "stacked");
}

#[test]
fn a_group_has_its_own_optimizer_decay_and_rate() {
    let groups = ParamGroups::new(Sgd::new(0.1).weight_decay(0.5))
        .group("head.*", AdamW::new(0.2))
        .no_decay_on_biases_and_norms()
        .lr_factor("body.*", 10.0)
        .lr_factor("body.last.*", 3.0)
        .weight_decay("body.last.weight", 0.25)
        .freeze("stem.*")
        .unfreeze("*.norm");
    let matrix = Tensor::ones(DType::F32, [1, 2]);
    let vector = Tensor::ones(DType::F32, [2]);
    let states = |name: &str, p: &Tensor| {
        groups.state(name, p.ty()).into_iter().map(|s| s.0).collect::<Vec<_>>()
    };
    assert_eq!(states("head.weight", &matrix), ["exp_avg", "exp_avg_sq"]);
    assert_eq!(states("body.weight", &matrix), [""; 0]);
    let trained = |name: &str| groups.trains(name, matrix.ty());
    assert_eq!(["stem.0", "stem.norm", "body.0"].map(trained), [false, true, true]);
    // A gradient of 0, so that only the decay moves a parameter.
    let moved = |name: &str, p: &Tensor| {
        let state: Vec<Tensor> = groups.state(name, p.ty()).into_iter().map(|s| s.1).collect();
        values(&groups.update(&step(0), name, p, &p.zeros_like(), &state).0)[0]
    };
    for (name, p, expected) in [
        ("other.weight", &matrix, 1.0 - 0.1 * 0.5),
        ("other.bias", &vector, 1.0),
        ("body.weight", &matrix, 1.0 - 1.0 * 0.5),
        ("body.last.weight", &matrix, 1.0 - 0.3 * 0.25),
        ("body.last.bias", &vector, 1.0),
        ("head.weight", &matrix, 1.0 - 0.2 * 0.01),
        ("head.bias", &vector, 1.0),
    ] {
        assert_close(&[moved(name, p)], &[expected], 1e-6, 0.0, name);
    }
    assert_eq!(values(&groups.learning_rate(&step(0).scaled(2.0))), [f64::from(0.2f32)]);
}

#[test]
fn a_group_without_a_parameter_is_refused_with_the_nearest_names() {
    let ty = TensorType::new(DType::F32, [2]);
    let names: Vec<(String, TensorType)> = ["encoder.0.weight", "encoder.0.bias", "head.weight"]
        .iter()
        .map(|n| (n.to_string(), ty.clone()))
        .collect();
    let groups = || ParamGroups::new(Sgd::new(0.1));
    let message = |groups: ParamGroups| groups.check(&names).unwrap_err().to_string();
    let line = line!() + 1;
    let error = message(groups().freeze("endoder.*"));
    assert!(
        error.contains("the pattern `endoder.*` matches no parameter; the nearest are `encoder.0"),
        "{error}"
    );
    assert!(error.contains(&format!("optimizers.rs:{line}:")), "{error}");
    assert!(
        message(groups().weight_decay("head.*", -0.1))
            .contains("weight_decay must be finite and at least 0")
    );
    assert!(
        message(groups().lr_factor("head.*", f64::INFINITY)).contains("lr_factor must be finite")
    );
    assert!(
        message(groups().group("head.*", AdamW::new(-1.0)))
            .contains("AdamW: the learning rate must be")
    );
    assert!(
        message(ParamGroups::new(AdamW::new(-1.0))).contains("AdamW: the learning rate must be")
    );
    assert!(groups().no_decay_on_biases_and_norms().freeze("*").check(&names).is_ok());
}

#[test]
fn a_trust_ratio_of_a_gradient_whose_squares_overflow_takes_a_step() {
    let p = vector(&[0.0, 2.0]);
    let g = vector(&[3e25, 4e25]);
    let lars = Lars::new(1.0).momentum(0.0).trust_coefficient(0.5);
    let (after, _) = lars.update(&step(0), "p", &p, &g, &first_state(&lars, &p));
    // The length of the step is half of the parameter's.
    assert_close(&values(&after), &[-0.6, 2.0 - 0.8], 1e-6, 0.0, "LARS");
    let p = vector(&[3e25, 4e25]);
    let adafactor = Adafactor::new(1.0);
    let update = |g: &Tensor| {
        let (after, _) = adafactor.update(&step(0), "p", &p, g, &first_state(&adafactor, &p));
        values(&((after - &p) / &p))
    };
    // A step of the root mean square of the parameter, by the sign of the gradient.
    let rms = 12.5f64.sqrt();
    assert_close(&update(&vector(&[1.0, -1.0])), &[-rms / 3.0, rms / 4.0], 1e-5, 0.0, "Adafactor");
}
