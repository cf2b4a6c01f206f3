//! Schedules against PyTorch.

use crate::common::reference::{Expected, cases, count, cycle, number, numbers, word};
use crate::common::{assert_close, values};
use fulmen_nn::schedule::{
    Chained, Constant, CosineAnnealing, CosineAnnealingWarmRestarts, Cyclic, CyclicMode,
    Exponential, InverseSqrt, Linear, MultiStep, OneCycle, Polynomial, Schedule, Sequential, Step,
    Warmup,
};
use fulmen_tensor::{DType, Tensor, TensorType};
use serde_json::Value;

#[test]
fn schedules_are_pytorchs_at_every_step() {
    // A relative tolerance only, because the last rates of a cycle are a millionth of the first.
    let mut expected = Expected::within(2e-6, 0.0);
    let mut steps = 0;
    for case in cases("schedules.json") {
        let attrs = &case["attrs"];
        let rates = numbers(&case["lr"]);
        // Each operation of a schedule is elementwise, so a vector of steps gives all values at
        // once.
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
            let momentum =
                cycle.momentum(number(&attrs["base_momentum"]), number(&attrs["max_momentum"]));
            expected.numbers(
                format!("{}: momentum", case["name"]),
                &momentum.value(&step),
                numbers(&case["momentum"]),
            );
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
        let value = cycle.value(&Tensor::scalar(step as i32));
        assert_eq!(value.ty(), &TensorType::scalar(DType::F32));
        assert_close(&values(&value), &all[step..=step], 1e-6, 0.0, "one step");
    }
}

fn schedule(op: &str, attrs: &Value) -> Box<dyn Schedule> {
    let float = |name: &str| number(&attrs[name]);
    let whole = |name: &str| count(&attrs[name]) as u64;
    let lr = float("lr");
    match op {
        "constant" => Box::new(Constant::new(lr, whole("total_iters")).factor(float("factor"))),
        "step" => Box::new(Step::new(lr, whole("step_size")).gamma(float("gamma"))),
        "multi_step" => {
            let milestones =
                attrs["milestones"].as_array().into_iter().flatten().map(|m| count(m) as u64);
            Box::new(MultiStep::new(lr, milestones).gamma(float("gamma")))
        }
        "exponential" => Box::new(Exponential::new(lr, float("gamma"))),
        "linear" => {
            let line = Linear::new(lr, whole("total_iters"));
            Box::new(line.start_factor(float("start_factor")).end_factor(float("end_factor")))
        }
        "polynomial" => Box::new(Polynomial::new(lr, whole("total_iters")).power(float("power"))),
        "cosine_annealing" => {
            Box::new(CosineAnnealing::new(lr, whole("t_max")).eta_min(float("eta_min")))
        }
        "warm_restarts" => {
            let schedule =
                CosineAnnealingWarmRestarts::new(lr, whole("t_0")).t_mult(whole("t_mult"));
            Box::new(schedule.eta_min(float("eta_min")))
        }
        "cyclic" => {
            let mode = match word(&attrs["mode"], "mode") {
                "triangular" => CyclicMode::Triangular,
                "triangular2" => CyclicMode::Triangular2,
                _ => CyclicMode::ExpRange(float("gamma")),
            };
            let mut cyclic = Cyclic::new(float("base_lr"), float("max_lr"))
                .step_size_up(whole("step_size_up"))
                .mode(mode);
            if !attrs["step_size_down"].is_null() {
                cyclic = cyclic.step_size_down(whole("step_size_down"));
            }
            Box::new(cyclic)
        }
        "inverse_sqrt" => Box::new(InverseSqrt::new(lr, whole("warmup_steps"))),
        "transformer" => {
            Box::new(InverseSqrt::transformer(whole("d_model"), whole("warmup_steps")))
        }
        "warmup" => {
            let then = CosineAnnealing::new(lr, whole("t_max")).eta_min(float("eta_min"));
            Box::new(Warmup::new(whole("steps"), then).start_factor(float("start_factor")))
        }
        "sequential" => {
            let first = Constant::new(lr, 50).factor(0.1);
            let last = Linear::new(lr, 100).start_factor(0.5).end_factor(0.25);
            Box::new(Sequential::new(first).then(100, Exponential::new(lr, 0.99)).then(400, last))
        }
        "chained" => Box::new(
            Chained::new(Constant::new(lr, 20).factor(0.1)).times(Exponential::new(1.0, 0.995)),
        ),
        other => panic!("no schedule {other}"),
    }
}

#[test]
fn plain_schedules_are_pytorchs_over_a_thousand_steps() {
    let mut expected = Expected::within(2e-6, 0.0);
    let mut count = 0;
    for file in ["schedules_plain.json", "schedules_plain_2.json"] {
        for case in cases(file) {
            let rates = numbers(&case["lr"]);
            assert_eq!(rates.len(), 1000);
            let value = schedule(word(&case["op"], "op"), &case["attrs"])
                .value(&Tensor::arange(DType::I32, 1000));
            expected.numbers(case["name"].to_string(), &value, rates);
            count += 1;
        }
    }
    assert_eq!(count, 23);
    expected.check();
}

#[test]
fn late_steps_are_as_exact_as_early_ones() {
    let step = Tensor::from_slice(&[10_000_000i32, 9_999_999, 10_000_001], [3]);
    let mut expected = Expected::within(2e-6, 0.0);
    // The positions within a period, computed exactly in f64.
    let wave = |position: f64, length: f64| {
        0.05 * (1.0 + (std::f64::consts::PI * position / length).cos())
    };
    let positions = |n: f64| [10_000_000.0 % n, 9_999_999.0 % n, 10_000_001.0 % n];
    expected.numbers(
        "restarts",
        &CosineAnnealingWarmRestarts::new(0.1, 777).value(&step),
        positions(777.0).map(|position| wave(position, 777.0)).to_vec(),
    );
    expected.numbers(
        "cosine",
        &CosineAnnealing::new(0.1, 777).value(&step),
        positions(1554.0).map(|position| wave(position, 777.0)).to_vec(),
    );
    let stairs = [10_000_000.0f64, 9_999_999.0, 10_000_001.0]
        .map(|k| 0.1 * 0.9f64.powf((k / 100_000.0).floor()));
    expected.numbers("step", &Step::new(0.1, 100_000).gamma(0.9).value(&step), stairs.to_vec());
    let slow = [10_000_000.0f64, 9_999_999.0, 10_000_001.0].map(|k| 0.1 * 0.999_999_9f64.powf(k));
    expected.numbers(
        "exponential",
        &Exponential::new(0.1, 0.999_999_9).value(&step),
        slow.to_vec(),
    );
    let milestone = MultiStep::new(0.1, [10_000_000]).gamma(0.5).value(&step);
    expected.numbers("milestone", &milestone, vec![0.05, 0.1, 0.05]);
    expected.check();
}

#[test]
fn a_schedule_without_sense_says_so() {
    let step = Tensor::scalar(0i32);
    for (schedule, expected) in [
        (Box::new(Step::new(0.1, 0)) as Box<dyn Schedule>, "step_size must be at least 1"),
        (Box::new(Exponential::new(0.1, f64::NAN)), "gamma must be finite, but it is NaN"),
        (Box::new(Linear::new(0.1, 0)), "total_iters must be at least 1"),
        (Box::new(Polynomial::new(0.1, 10).power(-1.0)), "power must be at least 0, but it is -1"),
        (Box::new(CosineAnnealing::new(f64::INFINITY, 10)), "lr must be finite, but it is inf"),
        (
            Box::new(CosineAnnealingWarmRestarts::new(0.1, 10).t_mult(0)),
            "t_mult must be at least 1",
        ),
        (Box::new(Cyclic::new(0.1, 1.0).step_size_down(0)), "step_size_down must be at least 1"),
        (Box::new(InverseSqrt::new(0.1, 0)), "warmup_steps must be at least 1"),
        (
            Box::new(Sequential::new(0.1).then(10, 0.2).then(10, 0.3)),
            "milestones must grow, but they are [10, 10]",
        ),
        (Box::new(Warmup::new(10, Step::new(0.1, 0))), "step_size must be at least 1"),
        (Box::new(Chained::new(0.1).times(Constant::new(f64::NAN, 1))), "lr must be finite"),
    ] {
        assert!(crate::common::fault(&schedule.value(&step)).contains(expected), "{schedule:?}");
    }
}
