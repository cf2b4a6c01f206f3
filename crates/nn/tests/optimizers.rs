//! What the optimizers and schedules promise besides PyTorch's numbers: types, state, settings without sense.

mod common;

use common::{assert_close, fault, values};
use fulmen_nn::optim::{Adam, AdamW, Optimizer, Sgd};
use fulmen_nn::schedule::{Anneal, OneCycle, Schedule};
use fulmen_tensor::{DType, Tensor, TensorType};

fn vector(v: &[f32]) -> Tensor {
    Tensor::from_slice(v, [v.len()])
}

fn step(n: i32) -> Tensor {
    Tensor::scalar(n)
}

/// The values before the first step.
fn first_state(optimizer: &dyn Optimizer, parameter: &Tensor) -> Vec<Tensor> {
    optimizer.state(parameter.ty()).into_iter().map(|(_, value)| value).collect()
}

#[test]
fn state_has_pytorchs_names_and_at_least_f32() {
    let ty = TensorType::new(DType::Bf16, [3]);
    let names = |optimizer: &dyn Optimizer| -> Vec<(&'static str, String)> {
        optimizer.state(&ty).into_iter().map(|(name, value)| (name, value.ty().to_string())).collect()
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
    let optimizers: [Box<dyn Optimizer>; 3] =
        [Box::new(Sgd::new(0.1).momentum(0.9)), Box::new(Adam::new(0.1)), Box::new(AdamW::new(0.1))];
    for optimizer in &optimizers {
        for dtype in [DType::F32, DType::Bf16, DType::F16, DType::F64] {
            let p = vector(&[1.0, 2.0]).to_dtype(dtype);
            // A gradient may come wider than its parameter.
            let g = vector(&[0.5, -0.5]);
            let state = first_state(optimizer.as_ref(), &p);
            let (new, next) = optimizer.update(&step(0), &p, &g, &state);
            assert_eq!(new.ty(), p.ty(), "{optimizer:?}");
            for (before, after) in state.iter().zip(&next) {
                assert_eq!(before.ty(), after.ty(), "{optimizer:?}");
            }
            assert!(values(&new)[0] < 1.0 && values(&new)[1] > 2.0);
        }
    }
}

#[test]
fn the_first_step_of_adam_is_exactly_one_learning_rate_long() {
    // m/(1 − β₁) = g and v/(1 − β₂) = g², whatever the betas: a correction that lost digits would show here.
    for beta2 in [0.9, 0.999, 0.999_999] {
        let adam = Adam::new(0.01).betas(0.9, beta2).eps(0.0);
        let p = vector(&[0.0, 0.0]);
        let (new, _) = adam.update(&step(0), &p, &vector(&[3.0, -0.002]), &first_state(&adam, &p));
        assert_close(&values(&new), &[-0.01, 0.01], 1e-6, 0.0, "step");
    }
}

#[test]
fn a_beta_may_be_a_schedule() {
    let (p, g) = (vector(&[1.0, -2.0]), vector(&[0.3, 0.7]));
    let number = Adam::new(0.1).betas(0.9, 0.99);
    // A schedule that is not known to be constant takes the other way through the formula.
    let cycle = OneCycle::new(0.1, 10).momentum(0.9, 0.9);
    let schedule = Adam::new(0.1).betas(cycle, 0.99);
    let (mut a, mut b) = ((p.clone(), first_state(&number, &p)), (p.clone(), first_state(&schedule, &p)));
    for i in 0..4 {
        a = number.update(&step(i), &a.0, &g, &a.1);
        b = schedule.update(&step(i), &b.0, &g, &b.1);
    }
    assert_close(&values(&b.0), &values(&a.0), 1e-5, 0.0, "parameters");
}

#[test]
fn a_momentum_may_be_a_schedule() {
    let cycle = OneCycle::new(1.0, 5);
    let sgd = Sgd::new(1.0).momentum(cycle.momentum(0.5, 1.0));
    let p = vector(&[0.0]);
    let (_, state) = sgd.update(&step(0), &p, &vector(&[0.0]), &[vector(&[8.0])]);
    assert_close(&values(&state[0]), &[8.0], 1e-6, 0.0, "momentum 1 at the start");
    let later = values(&cycle.momentum(0.5, 1.0).value(&step(1)))[0];
    let (_, state) = sgd.update(&step(1), &p, &vector(&[0.0]), &[vector(&[8.0])]);
    assert_close(&values(&state[0]), &[8.0 * later], 1e-6, 0.0, "momentum of step 1");
}

#[test]
fn settings_without_sense_are_poisoned() {
    let p = vector(&[1.0]);
    let message = |optimizer: &dyn Optimizer, state: &[Tensor]| fault(&optimizer.update(&step(0), &p, &p, state).0);
    assert!(message(&Sgd::new(0.1).nesterov(true), &[]).contains("nesterov needs a momentum"));
    assert!(message(&Sgd::new(-0.1), &[]).contains("at least 0"));
    assert!(message(&Sgd::new(f64::NAN), &[]).contains("at least 0"));
    assert!(message(&Sgd::new(0.1).momentum(0.9), &[]).contains("0 tensors of state were given, 1 are remembered"));
    let wrong = Sgd::new(0.1).update(&step(0), &p, &vector(&[1.0, 2.0]), &[]).0;
    assert!(fault(&wrong).contains("the gradient f32[2] is not of the parameter f32[1]"));
    assert!(fault(&OneCycle::new(0.1, 0).value(&step(0))).contains("total_steps"));
    assert!(fault(&OneCycle::new(0.1, 9).pct_start(1.5).value(&step(0))).contains("pct_start"));
    assert!(fault(&OneCycle::new(0.1, 9).div_factor(0.0).value(&step(0))).contains("div_factor"));
}

#[test]
fn a_cycle_of_any_length_has_numbers_and_ends_at_its_end() {
    for total in [1u64, 2, 3, 4, 7] {
        for pct in [0.0, 0.3, 0.5, 1.0] {
            for anneal in [Anneal::Cos, Anneal::Linear] {
                for three_phase in [false, true] {
                    let cycle = OneCycle::new(0.1, total).pct_start(pct).anneal(anneal).three_phase(three_phase);
                    for i in 0..total as i32 + 3 {
                        let rate = values(&cycle.value(&step(i)))[0];
                        assert!(rate > 0.0 && rate <= 0.100_001, "{cycle:?} at {i}: {rate}");
                    }
                    let (last, after) = (total as i32 - 1, total as i32 + 100);
                    assert_eq!(values(&cycle.value(&step(last))), values(&cycle.value(&step(after))), "{cycle:?}");
                }
            }
        }
    }
}

#[test]
fn a_number_is_a_schedule() {
    assert_eq!(values(&0.25.value(&step(7))), [0.25]);
    assert_eq!(0.25.constant(), Some(0.25));
    assert_eq!(values(&Sgd::new(0.5).learning_rate(&step(3))), [0.5]);
}
