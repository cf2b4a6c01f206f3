//! `eval` in a loop: the number of compilations, the notes about them, and errors where a tensor
//! has no value.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use fulmen_pjrt::{CompileOptions, Effort};
use fulmen_tensor::internal::with_eval_advice;
use fulmen_tensor::{
    Accelerator, DType, Devices, Function, Runtime, Tensor, TensorType, cond, fori_loop, grad,
    random, scan, while_loop,
};

use crate::notes;

/// A runtime with its own metrics.
fn open(devices: usize) -> Runtime {
    Runtime::open(Accelerator::Cpu, &Devices::from(devices)).unwrap()
}

/// Evaluates `record` of 20 different values, compares the results with `expected`, and returns the
/// number of compilations.
fn compilations(
    runtime: &Runtime,
    record: impl Fn(i32) -> Tensor,
    expected: impl Fn(i32) -> Vec<f64>,
) -> u64 {
    let before = runtime.metrics().value("UncachedCompile");
    for i in 0..20 {
        assert_eq!(runtime.eval(&record(i)).unwrap().to_f64(), expected(i), "value {i}");
    }
    runtime.metrics().value("UncachedCompile") - before
}

#[test]
fn twenty_evals_of_four_new_numbers_are_one_compilation() {
    for devices in [1, 2] {
        let new = |i: i32| Tensor::from_slice(&[i as f32, 1.0, 2.0, -3.0], [4]);
        let count = compilations(
            &open(devices),
            |i| (new(i) * 2.0 + new(1)).reshape([2, 2]),
            |i| vec![2.0 * f64::from(i) + 1.0, 3.0, 6.0, -9.0],
        );
        assert_eq!(count, 1, "{devices} devices");
    }
}

#[test]
fn two_inputs_that_are_equal_once_are_still_two_inputs() {
    let pair = |i: i32| Tensor::from_slice(&[i, 3], [2]) - Tensor::from_slice(&[7, 3], [2]);
    assert_eq!(compilations(&open(1), pair, |i| vec![f64::from(i) - 7.0, 0.0]), 1);
}

#[test]
fn a_new_scalar_or_key_is_no_new_program() {
    let runtime = open(1);
    let scaled = |i: i32| Tensor::ones(DType::F32, [3]) * Tensor::scalar(i as f32);
    assert_eq!(compilations(&runtime, scaled, |i| vec![f64::from(i); 3]), 1);
    let before = runtime.metrics().value("UncachedCompile");
    let drawn: Vec<Vec<f64>> = (0..5)
        .map(|i| {
            runtime.eval(&random::normal(&random::key(i), DType::F32, [2, 3])).unwrap().to_f64()
        })
        .collect();
    assert_eq!(runtime.metrics().value("UncachedCompile") - before, 1);
    assert!(drawn.iter().skip(1).all(|other| *other != drawn[0]), "{drawn:?}");
}

#[test]
fn new_numbers_in_the_body_of_a_loop_or_a_branch_are_no_new_program() {
    for devices in [1, 2] {
        let runtime = open(devices);
        let table = |i: i32| Tensor::from_slice(&[i, 10, 20], [3]);
        let count = compilations(
            &runtime,
            |i| {
                let before = table(i);
                fori_loop(0, 3, &[&Tensor::zeros(DType::I32, [3])], |_, c| {
                    vec![&c[0] + &before + table(i)]
                })
                .remove(0)
            },
            |i| vec![6.0 * f64::from(i), 60.0, 120.0],
        );
        assert_eq!(count, 1, "fori_loop, {devices} devices");
        let count = compilations(
            &runtime,
            |i| {
                let rows = Tensor::from_slice(&[1.0f32, 2.0, 3.0, i as f32], [2, 2]);
                let (carry, _) = scan(&[&Tensor::zeros(DType::F32, [2])], &[&rows], |c, x| {
                    let next = &c[0] + &x[0] * Tensor::from_slice(&[i as f32, 1.0], [2]);
                    (vec![next.clone()], vec![next])
                });
                carry[0].clone()
            },
            |i| vec![4.0 * f64::from(i), 2.0 + f64::from(i)],
        );
        assert_eq!(count, 1, "scan, {devices} devices");
        let count = compilations(
            &runtime,
            |i| {
                let limit = table(i);
                while_loop(
                    &[&Tensor::zeros(DType::I32, [3])],
                    |c| c[0].lt(&limit).any(0),
                    |c| vec![&c[0] + Tensor::from_slice(&[1, 2, 2 + i], [3])],
                )
                .remove(0)
            },
            |i| {
                let steps = i.max(5).max((21 + i) / (2 + i));
                [1, 2, 2 + i].map(|step| f64::from(step * steps)).to_vec()
            },
        );
        assert_eq!(count, 1, "while_loop, {devices} devices");
        let count = compilations(
            &runtime,
            |i| {
                let x = table(i);
                let large = x.max(0).gt(Tensor::scalar(i + 15));
                cond(&large, &[&x], |x| vec![&x[0] + table(i)], |x| vec![&x[0] - table(1)])
                    .remove(0)
            },
            |i| {
                if i < 5 {
                    vec![2.0 * f64::from(i), 20.0, 40.0]
                } else {
                    vec![f64::from(i) - 1.0, 0.0, 0.0]
                }
            },
        );
        assert_eq!(count, 1, "cond, {devices} devices");
    }
}

#[test]
fn a_loop_that_uses_the_programs_inputs_compiles_for_a_tpu() {
    let Some(plugin) = crate::libtpu::libtpu() else { return };
    let literal = || Tensor::from_slice(&[1.0f32, 2.0], [2]);
    let inner = |x: &Tensor| {
        let positive = x.sum_all().gt(0.0);
        cond(&positive, &[x], |x| vec![&x[0] * literal()], |x| vec![&x[0] + literal()]).remove(0)
    };
    let last = fori_loop(0, 3, &[&literal()], |_, c| vec![inner(&c[0])]).remove(0);
    let text =
        Function::new("f", Vec::new(), vec![last]).constants_as_inputs().stablehlo().unwrap();
    assert!(text.contains("%arg2: tensor<2xf32>") && !text.contains("dense<\"0x"), "{text}");
    let topology = plugin.topology("v5e:1x1").unwrap();
    plugin.compile(&topology, &text, &CompileOptions::new().optimization(Effort::O1)).unwrap();
}

#[test]
fn what_is_a_value_already_needs_no_program() {
    let runtime = open(2);
    let array = Arc::new(
        runtime
            .compute(&[&(Tensor::ones(DType::F32, [3]) * Tensor::scalar(2.0f32))])
            .unwrap()
            .remove(0),
    );
    let before =
        runtime.metrics().value("UncachedCompile") + runtime.metrics().value("CachedCompile");
    let literal = Tensor::from_slice(&[1, 2], [2]);
    let large = Tensor::from_slice(&[7u8; 2000], [2000]);
    let device = Tensor::from_array(array);
    let values = runtime.eval_many(&[&literal, &device, &large]).unwrap();
    assert_eq!(values[0].to_vec::<i32>().unwrap(), [1, 2]);
    assert_eq!(values[1].to_vec::<f32>().unwrap(), [2.0; 3]);
    assert_eq!(values[2].to_vec::<u8>().unwrap(), [7; 2000]);
    assert_eq!(
        runtime.metrics().value("UncachedCompile") + runtime.metrics().value("CachedCompile"),
        before
    );
    // Results keep their order among expressions.
    let values = runtime.eval_many(&[&device, &(&literal + 1.0), &literal, &device.exp()]).unwrap();
    let shapes: Vec<String> = values.iter().map(|value| value.ty().to_string()).collect();
    assert_eq!(shapes, ["f32[3]", "i32[2]", "i32[2]", "f32[3]"]);
    assert_eq!(values[1].to_vec::<i32>().unwrap(), [2, 3]);
}

#[test]
fn a_line_that_compiles_its_fifth_program_is_told_of_once() {
    notes::collect();
    let runtime = open(1);
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3]);
    let mut lines = Vec::new();
    let mut run = |line: u32, evals: usize, eval: &dyn Fn(usize)| {
        (0..evals).for_each(eval);
        lines.push(line);
    };
    let vector = |value: f32, n: usize| Tensor::from_slice(&vec![value; n], [n]);
    let sines = Tensor::arange(DType::F32, 9).sin();
    // Four programs cause no note, however often they run.
    run(line!(), 40, &|i| drop(runtime.eval(&vector(1.5, 1 + i % 4).neg()).unwrap()));
    run(line!(), 7, &|i| drop(runtime.eval(&vector(2.5, 9 - i).cos()).unwrap()));
    run(line!(), 7, &|i| drop(runtime.eval(&(&x * (0.25 * i as f64))).unwrap()));
    run(line!(), 7, &|i| drop(runtime.eval(&sines.narrow(0, i, 2)).unwrap()));
    run(line!(), 7, &|i| drop(runtime.eval(&(0..=i).fold(x.cos(), |x, _| x.exp())).unwrap()));
    let notes_of_lines: Vec<Vec<String>> =
        lines.iter().map(|line| notes::about(&format!("one line, {}:{line}. ", file!()))).collect();
    assert!(notes_of_lines[0].is_empty(), "{:?}", notes_of_lines[0]);
    let expected = [
        "differ in a shape or dtype: an input was f32[6], then f32[5]",
        "differ in a number: it was 0.75, then 1. A number in an expression is part of the program",
        "differ in the arguments of `slice`",
        "are different expressions",
    ];
    for (notes_of_lines, expected) in notes_of_lines[1..].iter().zip(expected) {
        assert_eq!(notes_of_lines.len(), 1, "{notes_of_lines:?}");
        assert!(
            notes_of_lines[0].starts_with("`eval` has compiled 5 programs")
                && notes_of_lines[0].contains(expected),
            "{}",
            notes_of_lines[0]
        );
    }
}

#[test]
fn a_value_of_a_step_that_is_recorded_names_the_line_that_asked() {
    let x = Tensor::placeholder("batch.x", TensorType::new(DType::F32, [2]));
    let error = with_eval_advice("training_step", "log it", || {
        (x.exp().eval().unwrap_err().to_string(), line!())
    });
    let expected = "eval: the tensor has no value yet: it depends on `batch.x`, an input of training_step, which is being \
                    recorded and runs later; log it\n  at ";
    assert!(
        error.0.starts_with(expected) && error.0.contains(&format!("evals.rs:{}:", error.1)),
        "{}",
        error.0
    );
    // A tensor that does not depend on the step has a value within it.
    with_eval_advice("training_step", "log it", || {
        assert_eq!(Tensor::ones(DType::F32, []).eval().unwrap().to_f64(), [1.0])
    });
}

#[test]
fn a_jitted_function_is_compiled_once_for_each_combination_of_types() {
    notes::collect();
    let runtime = open(1);
    let compiled = || runtime.metrics().value("UncachedCompile");
    let traced = Cell::new(0);
    let mut norm = runtime.jit("norm", |x: Vec<Tensor>| {
        traced.set(traced.get() + 1);
        ((&x[0] * &x[0]).sum_all().sqrt(), &x[0] * &x[1])
    });
    let vector = |values: &[f32]| Tensor::from_slice(values, [values.len()]);
    for i in 1..=5 {
        let x = vector(&[3.0 * i as f32, 4.0 * i as f32]);
        let (length, scaled) = norm.call(&[x, Tensor::scalar(i as f32)]).unwrap();
        let values = runtime.eval_many(&[length, scaled]).unwrap();
        assert_eq!(values[0].to_vec::<f32>().unwrap(), [5.0 * i as f32]);
        assert_eq!(values[1].to_vec::<f32>().unwrap(), [(3 * i * i) as f32, (4 * i * i) as f32]);
    }
    assert_eq!((norm.programs(), compiled()), (1, 1));
    let two = Tensor::scalar(2.0f32);
    for length in [3, 4, 3, 2] {
        norm.call(&[&vector(&vec![1.0; length]), &two]).unwrap();
    }
    assert_eq!((norm.programs(), compiled()), (3, 3));
    let error = norm.call(&[&two]).unwrap_err().to_string();
    assert!(
        error.contains("`norm` was first called with 2 tensors, and is now called with 1; pass"),
        "{error}"
    );
    assert_eq!(traced.get(), 3);
    // Only the first new shape causes a note.
    let notes = notes::about("`norm`");
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("input 0 was f32[2], then f32[3]"), "{notes:?}");

    let mut wrong = runtime.jit("wrong", |(x, y): (Tensor, Tensor)| x.matmul(&y));
    let error = wrong.call((vector(&[1.0, 2.0]), &two)).unwrap_err();
    assert!(error.location().is_some_and(|line| line.file().ends_with("evals.rs")), "{error}");
    let mut asks =
        runtime.jit("asks", |x: Tensor| Tensor::scalar(x.eval().map_or(1.0f32, |_| 0.0)));
    let answer = asks.call(&two).unwrap();
    assert_eq!(answer.eval().unwrap().to_vec::<f32>().unwrap(), [1.0]);
}

#[test]
fn a_jitted_function_in_a_recorded_one_is_a_part_of_it() {
    let runtime = open(1);
    let scaled = RefCell::new(runtime.jit("scaled", |(x, y): (Tensor, Tensor)| x * y.exp()));
    let mut outer = runtime.jit("outer", |x: Tensor| {
        let y = scaled.borrow_mut().call((&x, &x * 0.5)).unwrap();
        (grad(&y.sum_all(), &[&x]).remove(0), y)
    });
    let points = [-1.0f64, 0.5, 2.0];
    let (slope, value) = outer.call(Tensor::from_slice(&points, [3])).unwrap();
    let close = |tensor: &Tensor, expected: [f64; 3]| {
        let values = tensor.eval().unwrap().to_f64();
        let near = values.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-14);
        assert!(near && values.len() == 3, "{values:?} for {expected:?}");
    };
    close(&value, points.map(|x| x * (0.5 * x).exp()));
    close(&slope, points.map(|x| (1.0 + 0.5 * x) * (0.5 * x).exp()));
    assert_eq!((outer.programs(), scaled.borrow().programs()), (1, 0));
    // With values, it is a program of its own.
    let x = Tensor::from_slice(&points, [3]);
    let alone = scaled.borrow_mut().call((&x, &x)).unwrap();
    close(&alone, points.map(|x| x * x.exp()));
    assert_eq!(scaled.borrow().programs(), 1);

    let ty = TensorType::new(DType::F32, [3]);
    let traced = Function::trace("f", &ty, |x| scaled.borrow_mut().call((&x, &x)).unwrap());
    assert!(traced.stablehlo().unwrap().contains("stablehlo.exponential"));
    let wrong =
        RefCell::new(runtime.jit("wrong", |x: Tensor| x.matmul(Tensor::ones(DType::F32, [9]))));
    let line = line!() - 1;
    let error = runtime.jit("outer", |x: Tensor| wrong.borrow_mut().call(&x).unwrap()).call(&x);
    let error = error.unwrap_err();
    assert_eq!(error.location().unwrap().line(), line, "{error}");
}

#[test]
fn the_inputs_of_a_jitted_function_are_values_or_expressions() {
    let runtime = open(2);
    let other = open(1);
    let compiled =
        || runtime.metrics().value("UncachedCompile") + runtime.metrics().value("CachedCompile");
    let copied = || runtime.metrics().value("OutboundData");
    let mut next = runtime.jit("next", |x: Tensor| x + 1.0);
    let value = |x: &Tensor| x.eval().unwrap().to_f64()[0];
    let first = next.call(Tensor::from_slice(&[1.0f32; 1000], [1000])).unwrap();
    // A result is on the devices. The next call takes it without a copy, and reading it needs no
    // program.
    let before = (compiled(), copied());
    let second = next.call(&first).unwrap();
    assert_eq!((value(&first), value(&second)), (2.0, 3.0));
    assert_eq!((compiled(), copied()), before);
    assert!(second.array().is_some());
    // An expression is computed first, and a value on other devices is copied.
    assert_eq!(value(&next.call(&second * 10.0).unwrap()), 31.0);
    let elsewhere = Tensor::from_array(Arc::new(other.compute(&[&second]).unwrap().remove(0)));
    assert_eq!(value(&next.call(elsewhere).unwrap()), 4.0);
    assert_eq!(next.programs(), 1);

    let wrong = first.matmul(Tensor::ones(DType::F32, [3]));
    let error = next.call(&wrong).unwrap_err();
    assert_eq!(error.location().unwrap().line(), line!() - 2);
}
