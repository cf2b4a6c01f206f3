//! Emitted programs: StableHLO text, common subexpressions, dead code, donation, and the cache of
//! executables.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use std::collections::HashMap;

use expect_test::{Expect, expect};
use fulmen_tensor::{
    Accelerator, Argument, DType, Devices, Function, Literal, Pooling, Runtime, Tensor, TensorType,
    call, grad,
};

fn f32s<const N: usize>(shape: [usize; N]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

/// The text of a program without locations, which change with every edit of this file.
fn check(function: &Function, expected: &Expect) {
    expected.assert_eq(&unlocated(&function.stablehlo().unwrap()));
}

/// A program without locations.
pub(crate) fn unlocated(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with("#loc"));
    lines.map(|line| line.split(" loc(").next().unwrap().to_owned() + "\n").collect()
}

/// The statements of a program that carry a location, each with the operation and the source line
/// that its aliases resolve to.
fn located(text: &str) -> Vec<(&str, &str, &str)> {
    let aliases: HashMap<&str, &str> =
        text.lines().filter_map(|l| l.strip_prefix('#')?.split_once(" = loc(")).collect();
    let statements = text.lines().filter_map(|line| line.strip_suffix(')')?.split_once(" loc(#"));
    let located = statements.map(|(statement, alias)| {
        let (operation, line) = aliases[alias].split_once("(#").unwrap();
        (
            statement,
            operation.trim_matches('"'),
            aliases[line.trim_end_matches(')')].trim_end_matches(')'),
        )
    });
    located.collect()
}

#[test]
fn a_linear_layer_with_its_gradients_is_one_program() {
    let function =
        Function::trace("linear", (f32s([8, 3]), f32s([3, 2]), f32s([2])), |(x, weight, bias)| {
            let loss = (x.matmul(&weight) + &bias).mean_all();
            (loss.clone(), grad(&loss, &[&weight, &bias]))
        });
    check(
        &function,
        &expect![[r#"
            module @linear {
              func.func public @main(%arg0: tensor<8x3xf32>, %arg1: tensor<3x2xf32>, %arg2: tensor<2xf32>) -> (tensor<f32>, tensor<3x2xf32>, tensor<2xf32>) {
                %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x3xf32>, tensor<3x2xf32>) -> tensor<8x2xf32>
                %1 = stablehlo.broadcast_in_dim %arg2, dims = [1] : (tensor<2xf32>) -> tensor<8x2xf32>
                %2 = stablehlo.add %0, %1 : tensor<8x2xf32>
                %c0 = stablehlo.constant dense<0.0> : tensor<f32>
                %3 = stablehlo.reduce(%2 init: %c0) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<f32>
                %4 = stablehlo.constant dense<16.0> : tensor<f32>
                %5 = stablehlo.divide %3, %4 : tensor<f32>
                %6 = stablehlo.constant dense<1.0> : tensor<f32>
                %7 = stablehlo.divide %6, %4 : tensor<f32>
                %8 = stablehlo.broadcast_in_dim %7, dims = [] : (tensor<f32>) -> tensor<8x2xf32>
                %9 = stablehlo.dot_general %8, %arg0, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x2xf32>, tensor<8x3xf32>) -> tensor<2x3xf32>
                %10 = stablehlo.transpose %9, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
                %11 = stablehlo.reduce(%8 init: %c0) applies stablehlo.add across dimensions = [0] : (tensor<8x2xf32>, tensor<f32>) -> tensor<2xf32>
                return %5, %10, %11 : tensor<f32>, tensor<3x2xf32>, tensor<2xf32>
              }
            }
        "#]],
    );
}

#[test]
fn statements_carry_the_line_that_recorded_them() {
    let types = [f32s([2])];
    let line = line!() + 1;
    let f = |[x]: [Tensor; 1]| grad(&x.tanh().sum_all(), &[&x]).remove(0);
    let function = Function::trace("f", types, f);
    let text = function.stablehlo().unwrap();
    let location = format!("tests/it/programs.rs\":{line}:");
    for (spelled, operation) in [("stablehlo.tanh", "tanh"), ("stablehlo.multiply", "mul")] {
        let statement =
            located(&text).into_iter().find(|(statement, ..)| statement.contains(spelled)).unwrap();
        assert!(statement.1 == operation && statement.2.contains(&location), "{statement:?}");
    }
    // Each location is defined once.
    let mut defined: Vec<_> = text.lines().filter(|line| line.starts_with("#loc")).collect();
    defined.iter_mut().for_each(|line| *line = line.split_once(" = ").unwrap().1);
    let all = defined.len();
    defined.sort_unstable();
    defined.dedup();
    assert_eq!(defined.len(), all, "{text}");
}

#[test]
fn equal_calls_are_one_function_and_others_are_not() {
    let scaled = |by: f64| move |x: Tensor| (x * by).tanh();
    let function = Function::trace("f", [f32s([2]), f32s([2]), f32s([3])], |x| {
        let twice = |x: &Tensor| call("scale", x, scaled(2.0));
        let thrice = call("scale", &x[0], scaled(3.0));
        vec![twice(&x[0]), twice(&x[1]), twice(&x[2]), thrice]
    });
    check(
        &function,
        &expect![[r#"
            module @f {
              func.func public @main(%arg0: tensor<2xf32>, %arg1: tensor<2xf32>, %arg2: tensor<3xf32>) -> (tensor<2xf32>, tensor<2xf32>, tensor<3xf32>, tensor<2xf32>) {
                %0 = func.call @scale(%arg0) : (tensor<2xf32>) -> tensor<2xf32>
                %1 = func.call @scale(%arg1) : (tensor<2xf32>) -> tensor<2xf32>
                %2 = func.call @scale_1(%arg2) : (tensor<3xf32>) -> tensor<3xf32>
                %3 = func.call @scale_2(%arg0) : (tensor<2xf32>) -> tensor<2xf32>
                return %0, %1, %2, %3 : tensor<2xf32>, tensor<2xf32>, tensor<3xf32>, tensor<2xf32>
              }
              func.func private @scale(%arg0: tensor<2xf32>) -> (tensor<2xf32>) {
                %0 = stablehlo.constant dense<2.0> : tensor<f32>
                %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<2xf32>
                %2 = stablehlo.multiply %arg0, %1 : tensor<2xf32>
                %3 = stablehlo.tanh %2 : tensor<2xf32>
                return %3 : tensor<2xf32>
              }
              func.func private @scale_1(%arg0: tensor<3xf32>) -> (tensor<3xf32>) {
                %0 = stablehlo.constant dense<2.0> : tensor<f32>
                %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<3xf32>
                %2 = stablehlo.multiply %arg0, %1 : tensor<3xf32>
                %3 = stablehlo.tanh %2 : tensor<3xf32>
                return %3 : tensor<3xf32>
              }
              func.func private @scale_2(%arg0: tensor<2xf32>) -> (tensor<2xf32>) {
                %0 = stablehlo.constant dense<3.0> : tensor<f32>
                %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<2xf32>
                %2 = stablehlo.multiply %arg0, %1 : tensor<2xf32>
                %3 = stablehlo.tanh %2 : tensor<2xf32>
                return %3 : tensor<2xf32>
              }
            }
        "#]],
    );
}

#[test]
fn a_call_computes_and_differentiates_as_what_it_calls() {
    let rate = Tensor::placeholder("rate", f32s([]));
    let [x, y] = ["x", "y"].map(|name| Tensor::placeholder(name, f32s([3])));
    let body = |[a, b]: [Tensor; 2]| {
        let scaled = a * (&rate * 2.0).exp();
        let inner = call("inner", scaled, |s| s.sin());
        [&inner * b, inner.sum_all()]
    };
    let step = |called: bool| {
        // One input is computed from the other; no gradient may flow twice.
        let inputs = [&x, &(&x * &y)];
        let outputs =
            if called { call("outer", inputs, body) } else { body(inputs.map(Tensor::clone)) };
        let loss = (&outputs[0] * &outputs[0]).sum_all() * &outputs[1];
        let mut results = grad(&loss, &[&x, &y, &rate]);
        let second = (&results[0] * &results[1]).sum_all();
        results.extend(grad(&second, &[&x, &rate]));
        results.push(loss);
        Function::new("step", vec![x.clone(), y.clone(), rate.clone()], results)
    };
    let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(1)).unwrap();
    let arrays = [
        (vec![0.3f32, -1.2, 0.7], vec![3]),
        (vec![1.1, 0.4, -0.6], vec![3]),
        (vec![0.1], Vec::new()),
    ]
    .map(|(values, shape)| {
        runtime.to_device(&Literal::from_slice(&values, &shape[..]).unwrap()).unwrap()
    });
    let values = |called| {
        let step = runtime.compile(&step(called)).unwrap();
        let outputs = step.call(arrays.iter().map(Argument::Borrow).collect()).unwrap();
        let values =
            runtime.read(&outputs.arrays.iter().collect::<Vec<_>>()).unwrap().wait().unwrap();
        values.iter().flat_map(|literal| literal.to_f64()).collect::<Vec<_>>()
    };
    let called = values(true);
    let plain = values(false);
    assert_eq!(called.len(), 3 + 3 + 1 + 3 + 1 + 1);
    for (called, plain) in called.iter().zip(&plain) {
        assert!((called - plain).abs() <= 1e-5 * plain.abs().max(1.0), "{called} and {plain}");
    }
}

#[test]
fn a_call_of_what_is_impossible_is_poisoned_at_its_line() {
    let x = Tensor::ones(DType::F32, [2, 3]);
    let line = line!() + 1;
    let product = call("product", &[&x], |x| vec![x[0].matmul(&x[0])]).remove(0);
    assert_eq!(product.fault().unwrap().location().line(), line);
    let after = call("after", &[&product], |x| vec![x[0].exp()]).remove(0);
    assert_eq!(after.fault().unwrap().operation(), "matmul");
    let mixed = call("mixed", &[&x], |x| vec![x[0].exp(), x[0].matmul(&x[0])]);
    assert!(mixed.iter().all(|y| y.fault().is_some_and(|fault| fault.operation() == "matmul")));
    assert!(call("nothing", &[&x], |_| Vec::<Tensor>::new()).is_empty());
}

#[test]
fn a_program_that_runs_once_has_its_values_as_arguments_in_calls_too() {
    let shifted = |by: f32| {
        call("shift", &[&Tensor::ones(DType::F32, [2])], |x| vec![&x[0] + Tensor::scalar(by)])
            .remove(0)
    };
    let text = |by| {
        Function::new("f", Vec::new(), vec![shifted(by)]).constants_as_inputs().stablehlo().unwrap()
    };
    assert_eq!(text(1.0), text(2.0));
    assert_eq!(shifted(2.5).eval().unwrap().to_f64(), [3.5, 3.5]);
}

#[test]
fn every_statement_of_composed_operations_carries_the_users_line() {
    let function =
        Function::trace("f", (f32s([2, 3, 4]), f32s([4, 5]), f32s([2, 4, 5])), |(a, b, c)| {
            let products =
                a.matmul(&c) + Tensor::placeholder("y", f32s([])).zeros_like() + a.matmul(&b) * 2.0;
            let stacked = Tensor::ones(DType::F32, [4]).matmul(&c).narrow(0, 0, 1);
            let chosen = products.gt(0.5).select(&Tensor::scalar(1.0f32), &(1.0 - &products));
            let largest = chosen.argmax(-1).to_dtype(DType::F32)
                + chosen.argmin_keepdim(0).to_dtype(DType::F32).sum_all();
            let drawn =
                fulmen_tensor::random::normal(&fulmen_tensor::random::key(1), DType::Bf16, [3, 5]);
            let loss = chosen.softmax(-1).sum_all()
                + chosen.logsumexp(0).mean_all()
                + chosen.log_softmax(1).max([0, 1, 2])
                + chosen.var(0).sum_all()
                + largest.mean_all()
                + drawn.mean_all().to_dtype(DType::F32)
                + Tensor::stack(&[&stacked, &stacked], 0).sum_all();
            let mut results = grad(&loss, &[&a, &b, &c]);
            results.push(loss);
            results
        });
    let text = function.stablehlo().unwrap();
    let statements = located(&text);
    assert!(statements.len() > 80, "{text}");
    for statement in statements {
        assert!(statement.2.contains("tests/it/programs.rs\":"), "{statement:?}");
    }
    let unused = Tensor::scalar(1.0f32);
    assert!(
        grad(&Tensor::scalar(2.0f32), &[&unused])[0].location().file().ends_with("programs.rs")
    );
    assert!(function.parameters()[0].location().file().ends_with("programs.rs"));
}

#[test]
fn a_derivative_that_is_not_needed_need_not_exist() {
    let x = Tensor::from_slice(&[1.0f32, 4.0, 3.0, 2.0], [1, 1, 2, 2]);
    let pooled = x.max_pool(&Pooling::new([2, 2])).sum_all();
    let d = grad(&pooled, &[&x]).remove(0);
    let twice = grad(&(&d * &d).sum_all(), &[&d]).remove(0);
    assert_eq!(twice.eval().unwrap().to_f64(), [0.0, 2.0, 0.0, 0.0]);
    // Where the value is needed, its absence is still an error.
    assert!(grad(&(&d * &x).sum_all(), &[&x])[0].fault().is_none());
}

#[test]
fn a_mean_of_16_bit_floats_counts_further_than_they_do() {
    for dtype in [DType::F16, DType::Bf16] {
        let x = Tensor::ones(dtype, [100_001]);
        let mean = x.mean_all();
        assert_eq!((mean.dtype(), mean.eval().unwrap().to_f64()), (dtype, vec![1.0]), "{dtype}");
        let d = grad(&(x.mean_keepdim(0) * 1024.0).sum_all(), &[&x]).remove(0);
        assert_eq!(d.dtype(), dtype);
        let pooled = Tensor::ones(dtype, [1, 1, 1, 100_000]).avg_pool(&Pooling::new([1, 100_000]));
        assert_eq!(
            (pooled.dtype(), pooled.eval().unwrap().to_f64()),
            (dtype, vec![1.0]),
            "{dtype}"
        );
    }
}

#[test]
fn a_nan_flows_through_the_gradient_of_an_extreme() {
    let x = Tensor::from_slice(&[f32::NAN, 1.0, 2.0], [3]);
    for extreme in [x.max(0), x.min(0)] {
        let gradient =
            grad(&(&extreme * &extreme).sum_all(), &[&x]).remove(0).eval().unwrap().to_f64();
        assert!(gradient[0].is_nan(), "{gradient:?}");
        let gradient = grad(&extreme, &[&x]).remove(0).eval().unwrap().to_f64();
        assert_eq!(gradient, [1.0, 0.0, 0.0]);
    }
}

#[test]
fn bits_of_bits_are_those_of_the_first() {
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2]);
    let long = x.bitcast(DType::U64);
    for bits in [long.bitcast(DType::F16), long.detach().bitcast(DType::F16)] {
        assert_eq!(bits.ty().to_string(), "f16[2, 4]");
        let words = bits
            .bitcast(DType::U16)
            .bitcast(DType::F16)
            .bitcast(DType::U16)
            .eval()
            .unwrap()
            .to_vec::<u16>()
            .unwrap();
        assert_eq!(words, [0, 0x3f80, 0, 0x4000, 0, 0x4040, 0, 0x4080]);
    }
    let wide = x.bitcast(DType::U16).bitcast(DType::U32).bitcast(DType::U64);
    assert_eq!(
        wide.eval().unwrap().to_vec::<u64>().unwrap(),
        [0x4000_0000_3f80_0000, 0x4080_0000_4040_0000]
    );

    // Through integers the gradient is 0, not poisoned.
    let y = (x.bitcast(DType::U32).bitcast(DType::F32) * &x).sum_all();
    assert_eq!(grad(&y, &[&x])[0].eval().unwrap().to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn two_threads_that_compile_one_program_get_the_same_values() {
    let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(1)).unwrap();
    let values: Vec<_> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    runtime
                        .eval(&Tensor::from_slice(&[2.0f32, 5.0], [2]).pow(3.0))
                        .unwrap()
                        .to_f64()
                })
            })
            .collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    assert_eq!(values, vec![vec![8.0, 125.0]; 4]);
    assert_eq!(
        runtime.metrics().value("UncachedCompile") + runtime.metrics().value("CachedCompile"),
        4
    );
}

#[test]
fn substitution_replaces_a_tensor_wherever_it_is_used_and_nothing_else() {
    let x = Tensor::from_slice(&[1.0f32, 2.0], [2]);
    let y = Tensor::from_slice(&[3.0f32, 4.0], [2]);
    let sum = &x + &y;
    let expression = &sum * &sum + &x;
    let values = |t: &Tensor| t.eval().unwrap().to_vec::<f32>().unwrap();
    // The replacement is computed from what it replaces, and the original stays as it is.
    let replaced = expression.substitute(&[(&sum, &(&sum * 10.0))]);
    assert_eq!((values(&replaced), values(&expression)), (vec![1601.0, 3602.0], vec![17.0, 38.0]));
    // Both at once: what replaces `x` is not replaced itself.
    assert_eq!(values(&expression.substitute(&[(&x, &y), (&y, &x)])), [19.0, 40.0]);
    assert_eq!(values(&grad(&replaced.sum_all(), &[&y])[0]), [800.0, 1200.0]);
    let line = line!() + 1;
    let wrong = expression.substitute(&[(&x, &Tensor::scalar(1.0f32))]);
    let fault = wrong.fault().unwrap().to_string();
    assert!(
        fault.contains("f32[] cannot replace f32[2]")
            && fault.contains(&format!("programs.rs:{line}:")),
        "{fault}"
    );
}

#[test]
fn common_subexpressions_are_merged_and_dead_code_is_left_out() {
    let function = Function::trace("f", f32s([2]), |x| {
        let _dead = x.sin();
        x.exp() + x.exp()
    });
    let text = function.stablehlo().unwrap();
    assert_eq!(text.matches("stablehlo.exponential").count(), 1, "{text}");
    assert!(!text.contains("stablehlo.sine"), "{text}");
}

#[test]
fn a_long_chain_needs_no_deep_stack() {
    let mut x = Tensor::scalar(1.0f32);
    for _ in 0..200_000 {
        x = x.neg();
    }
    let function = Function::new("chain", Vec::new(), vec![x]);
    assert!(function.stablehlo().unwrap().lines().count() > 200_000);
}

#[test]
fn the_same_program_is_compiled_once_wherever_it_was_written() {
    let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(1)).unwrap();
    let square = |name: &str| Function::trace(name, f32s([7]), |x| &x * &x);
    let cube = Function::trace("f", f32s([7]), |x| &x * &x * &x);
    assert!(!runtime.compile(&square("f")).unwrap().was_cached());
    let again = runtime.compile(&Function::trace("f", f32s([7]), |x| &x * &x)).unwrap();
    assert!(again.was_cached());
    runtime.compile(&cube).unwrap();
    assert_eq!(runtime.metrics().value("UncachedCompile"), 2);
    assert_eq!(runtime.metrics().value("CachedCompile"), 1);
}

#[test]
fn a_donated_argument_is_consumed_and_a_borrowed_one_survives() {
    let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(1)).unwrap();
    let function = Function::trace("step", (f32s([3]), f32s([3])), |(state, by)| state + by)
        .donate(0, 0)
        .unwrap();
    let step = runtime.compile(&function).unwrap();
    assert_eq!(step.donated(), [true, false]);
    let ones = Literal::from_slice(&[1.0f32; 3], [3]).unwrap();
    let mut state = runtime.to_device(&ones).unwrap();
    let by = runtime.to_device(&ones).unwrap();
    for _ in 0..10 {
        let outputs = step.call(vec![Argument::Donate(state), Argument::Borrow(&by)]).unwrap();
        state = outputs.arrays.into_iter().next().unwrap();
    }
    let values = runtime.read(&[&state, &by]).unwrap().wait().unwrap();
    assert_eq!(values[0].to_vec::<f32>().unwrap(), [11.0; 3]);
    assert_eq!(values[1].to_vec::<f32>().unwrap(), [1.0; 3]);
    assert_eq!(runtime.metrics().value("TransferFromDeviceTime"), 1);
}

#[test]
fn arguments_that_do_not_fit_are_refused_before_the_call() {
    let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(1)).unwrap();
    let function = runtime.compile(&Function::trace("f", f32s([3]), |x| &x + 1.0)).unwrap();
    let message = function.call(Vec::new()).err().unwrap().to_string();
    assert_eq!(message, "`f` takes 1 argument, but got 0");
    let wrong = runtime.to_device(&Literal::from_slice(&[1i32; 3], [3]).unwrap()).unwrap();
    let message = function.call(vec![Argument::Borrow(&wrong)]).err().unwrap().to_string();
    assert_eq!(message, "`f`: argument 0 must be f32[3], but is i32[3]");
}

#[test]
fn values_of_every_dtype_go_to_the_device_and_back() {
    for dtype in DType::all() {
        let values = [0.0, 1.0, 1.0, 0.0];
        let tensor = Tensor::from_slice(&values, [2, 2]).to_dtype(dtype);
        let literal = tensor.eval().unwrap();
        assert_eq!(literal.ty(), &TensorType::new(dtype, [2, 2]));
        let parts = if dtype.is_complex() {
            vec![0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
        } else {
            values.to_vec()
        };
        assert_eq!(literal.to_f64(), parts, "{dtype}");
        assert_eq!(literal.to_tensor().eval().unwrap().bytes(), literal.bytes(), "{dtype}");
    }
}

#[test]
fn large_values_are_arguments_and_small_ones_constants() {
    let values: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let sum = Tensor::from_slice(&values, [1000]).sum_all()
        + Tensor::from_slice(&values[..3], [3]).sum_all();
    let text = Function::new("f", Vec::new(), vec![sum.clone()]).stablehlo().unwrap();
    assert!(text.contains("%arg0: tensor<1000xf32>") && text.contains("dense<\"0x"), "{text}");
    assert_eq!(sum.eval().unwrap().to_vec::<f32>().unwrap(), [499_500.0 + 3.0]);
}

#[test]
fn one_hot_counts_further_than_its_dtype() {
    let labels = Tensor::from_slice(&[1u8, 255], [2]);
    let positions = labels.one_hot(300).to_dtype(DType::F32).sum(0);
    let ones: Vec<usize> = positions
        .eval()
        .unwrap()
        .to_f64()
        .iter()
        .enumerate()
        .filter_map(|(i, &v)| (v == 1.0).then_some(i))
        .collect();
    assert_eq!(ones, [1, 255]);
}

#[test]
fn the_magnitude_of_complex_counting_compiles() {
    // XLA aborts the process on the magnitude of a complex iota.
    let magnitudes = Tensor::arange(DType::C128, 4).abs();
    assert_eq!(magnitudes.eval().unwrap().to_vec::<f64>().unwrap(), [0.0, 1.0, 2.0, 3.0]);
}
