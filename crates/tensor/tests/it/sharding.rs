//! Programs on several CPU devices: the sharding of values, and the same results as on one device.

use std::sync::Arc;

use fulmen_tensor::{
    Accelerator, Argument, DType, DeviceArray, Devices, Function, Literal, Mesh, Runtime, Sharding,
    Tensor, TensorType, checkpoint, custom_gradient, grad, random,
};

fn cpu(devices: impl Into<Devices>) -> Runtime {
    Runtime::open(Accelerator::Cpu, &devices.into()).unwrap()
}

fn f32s<const N: usize>(dims: [usize; N]) -> TensorType {
    TensorType::new(DType::F32, dims)
}

fn numbers<const N: usize>(dims: [usize; N]) -> Literal {
    let count = dims.iter().product::<usize>();
    Literal::from_slice(&(0..count).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<_>>(), dims)
        .unwrap()
}

fn rows() -> Sharding {
    Sharding::new([Some("data")])
}

#[test]
fn a_value_is_split_as_its_sharding_says_and_read_back_whole() {
    let runtime = cpu(8).with_mesh(&Mesh::new([("data", 4), ("model", 2)]).unwrap()).unwrap();
    let value = numbers([8, 6]);
    for (sharding, shard) in [
        (rows(), [2, 6]),
        (Sharding::new([Some("data"), Some("model")]), [2, 3]),
        (Sharding::new([None, Some("model")]), [8, 3]),
        (Sharding::over([vec!["model", "data"]]), [1, 6]),
        (Sharding::replicated(), [8, 6]),
    ] {
        let array = runtime.to_devices(&value, &sharding).unwrap();
        assert_eq!(array.shards().len(), 8);
        assert!(array.shards().iter().all(|s| s.dims() == shard), "{array:?}");
        let back = runtime.read(&[&array]).unwrap().wait().unwrap();
        assert_eq!(back[0].to_vec::<f32>().unwrap(), value.to_vec::<f32>().unwrap(), "{array:?}");
    }
    let error = runtime.to_devices(&numbers([6, 6]), &rows()).unwrap_err().to_string();
    assert!(error.contains("cannot be split evenly over data (4 devices)"), "{error}");
}

#[test]
fn an_order_of_axes_changes_only_where_elements_are_in_memory() {
    let sharding = rows().in_order(&[2, 3, 1, 0]);
    let value = numbers([8, 3, 2, 2]);
    let expected = value.to_vec::<f32>().unwrap();
    for devices in [1, 8] {
        let mesh = Mesh::new([("data", devices)]).unwrap();
        let runtime = cpu(devices).with_mesh(&mesh).unwrap();
        let array = || runtime.to_devices(&value, &sharding).unwrap();
        let captured = Tensor::from_array(Arc::new(array()));
        let step = Function::trace("step", f32s([8, 3, 2, 2]), |w| {
            vec![&w * 2.0 + &captured, w.permute([1, 0, 2, 3]).sum(-1), w.clone()]
        });
        let step = step.shard_parameter(0, sharding.clone()).shard_result(0, sharding.clone());
        let step = step.donate(0, 0).unwrap();
        assert_eq!(array().shards()[0].dims(), [2, 2, 3, 8 / devices]);
        let outputs = runtime.compile(&step).unwrap().call(vec![array().into()]).unwrap().arrays;
        assert_eq!(outputs[0].sharding(), array().sharding());
        assert_eq!(outputs[0].shards()[0].dims(), [2, 2, 3, 8 / devices]);
        assert_eq!(outputs[2].shards()[0].dims(), [8, 3, 2, 2]);
        let read = runtime.read(&outputs.iter().collect::<Vec<_>>()).unwrap().wait().unwrap();
        let floats = |i: usize| read[i].to_vec::<f32>().unwrap();
        assert_eq!(floats(0), expected.iter().map(|x| x * 2.0 + x).collect::<Vec<_>>());
        assert_eq!(floats(2), expected);
        let sum = |i: usize| {
            let input = i / 16;
            let output = i / 2 % 8;
            let row = i % 2;
            let start = ((output * 3 + input) * 2 + row) * 2;
            expected[start] + expected[start + 1]
        };
        assert_eq!(floats(1), (0..48).map(sum).collect::<Vec<_>>());
        let parts = DeviceArray::own_parts(&[&outputs[0]], None).remove(0);
        let read_parts = runtime.read_parts(&parts.iter().collect::<Vec<_>>()).unwrap();
        let bytes: Vec<u8> = read_parts.iter().flat_map(|part| part.to_vec()).collect();
        assert_eq!((parts.len(), &bytes[..]), (devices, read[0].bytes()));
    }
    let error = cpu(1).to_devices(&value, &Sharding::replicated().in_order(&[1, 0])).unwrap_err();
    assert!(error.to_string().contains("does not have each axis of [8, 3, 2, 2] once"), "{error}");
}

#[test]
fn each_device_selects_the_largest_elements_of_its_own_rows() {
    let value = numbers([16, 12]);
    let selected = |devices: usize| {
        let runtime = cpu(devices);
        let function = Function::trace("select", f32s([16, 12]), |x| {
            // The order of the rows' elements is not that of their indices.
            (x * 5.0).sin().topk(3)
        });
        let function =
            function.shard_parameter(0, rows()).shard_result(0, rows()).shard_result(1, rows());
        let compiled = runtime.compile(&function).unwrap();
        let collectives = compiled.executable().hlo().unwrap().collectives();
        assert!(collectives.is_empty(), "{collectives:?}");
        let outputs = compiled.call(vec![runtime.to_devices(&value, &rows()).unwrap().into()]);
        let arrays = outputs.unwrap().arrays;
        let read = runtime.read(&arrays.iter().collect::<Vec<_>>()).unwrap().wait().unwrap();
        (read[0].to_vec::<f32>().unwrap(), read[1].to_vec::<i32>().unwrap())
    };
    assert_eq!(selected(8), selected(1));
}

#[test]
fn what_is_gathered_over_one_axis_stays_split_over_the_other() {
    let mesh = Mesh::new([("fsdp", 4), ("model", 2)]).unwrap();
    let runtime = cpu(8).with_mesh(&mesh).unwrap();
    let parts = Sharding::new([Some("fsdp"), Some("model")]);
    let columns = Sharding::new([None, Some("model")]);
    let step = Function::trace("step", f32s([16, 4]), |w| {
        let gathered = w.all_gather_to(&parts, &columns);
        let transposed = gathered.t();
        let (shards, [sharding, other]) = transposed.gathered_from().unwrap();
        assert_eq!(
            (shards.ty().to_string(), sharding.to_string(), other.to_string()),
            ("f32[4, 16]".into(), "[model, fsdp]".into(), "[model]".into())
        );
        let gradient = grad(&(&gathered * &gathered).sum_all(), &[&w]).remove(0);
        vec![gradient, gathered]
    })
    .shard_parameter(0, parts.clone());
    let text = step.stablehlo_for(&mesh).unwrap();
    assert!(
        text.contains("sdy.sharding_constraint") && text.contains("[{}, {\"model\"}]"),
        "{text}"
    );
    let value = numbers([16, 4]);
    let w = runtime.to_devices(&value, &parts).unwrap();
    let outputs = runtime.compile(&step).unwrap().call(vec![Argument::Borrow(&w)]).unwrap();
    let values = runtime.read(&outputs.arrays.iter().collect::<Vec<_>>()).unwrap().wait().unwrap();
    let value = value.to_vec::<f32>().unwrap();
    assert_eq!(values[1].to_vec::<f32>().unwrap(), value);
    let doubled: Vec<f32> = value.iter().map(|x| 2.0 * x).collect();
    assert_eq!(values[0].to_vec::<f32>().unwrap(), doubled);
}

#[test]
fn what_is_gathered_has_a_sharded_gradient() {
    let runtime = cpu(8).with_mesh(&Mesh::new([("data", 8)]).unwrap()).unwrap();
    let step = Function::trace("step", f32s([16, 3]), |w| {
        let whole = w.all_gather(&rows());
        let half = whole.t().to_dtype(DType::Bf16);
        let (parts, [sharding, _]) = half.gathered_from().unwrap();
        assert_eq!(
            (parts.ty().to_string(), sharding.to_string()),
            ("bf16[3, 16]".into(), "[-, data]".into())
        );
        let loss = half.to_dtype(DType::F32).sum_all() + (&whole * &whole).sum_all();
        vec![grad(&loss, &[&w]).remove(0), whole]
    })
    .shard_parameter(0, rows());
    let value = numbers([16, 3]);
    let w = runtime.to_devices(&value, &rows()).unwrap();
    let outputs = runtime.compile(&step).unwrap().call(vec![Argument::Borrow(&w)]).unwrap();
    let values = runtime.read(&outputs.arrays.iter().collect::<Vec<_>>()).unwrap().wait().unwrap();
    let value = value.to_vec::<f32>().unwrap();
    assert_eq!(values[1].to_vec::<f32>().unwrap(), value);
    let expected: Vec<f32> = value.iter().map(|x| 2.0 * x + 1.0).collect();
    assert_eq!(values[0].to_vec::<f32>().unwrap(), expected);
}

#[test]
fn a_gathered_input_of_a_custom_gradient_has_a_gradient() {
    let runtime = cpu(8).with_mesh(&Mesh::new([("data", 8)]).unwrap()).unwrap();
    let step = Function::trace("step", f32s([16, 3]), |w| {
        let whole = w.all_gather(&rows());
        let tripled = custom_gradient(&whole, |w| w * 3.0, |_, _, of_tripled| of_tripled * 5.0);
        grad(&tripled.sum_all(), &[&w])
    })
    .shard_parameter(0, rows());
    let w = runtime.to_devices(&numbers([16, 3]), &rows()).unwrap();
    let outputs = runtime.compile(&step).unwrap().call(vec![Argument::Borrow(&w)]).unwrap();
    let values = runtime.read(&outputs.arrays.iter().collect::<Vec<_>>()).unwrap().wait().unwrap();
    assert_eq!(values[0].to_vec::<f32>().unwrap(), [5.0; 48]);
}

#[test]
fn blocks_that_gather_and_recompute_have_the_same_gradients() {
    let step = |is_sharded: bool| {
        let types = [f32s([16, 16]), f32s([16, 16]), f32s([16, 16]), f32s([16]), f32s([8, 16])];
        let function = Function::trace("step", &types, |inputs| {
            let weights = &inputs[..3];
            let shift = &inputs[3];
            let x = inputs[4].clone();
            let gather = |t: &Tensor| if is_sharded { t.all_gather(&rows()) } else { t.clone() };
            let shift = gather(shift);
            let block = |h: &Tensor, weight: &Tensor| {
                (h.matmul(&weight.t().to_dtype(DType::F32)) + &shift).tanh() + h
            };
            let y = weights.iter().fold(x, |h, weight| {
                let weight = gather(weight);
                if is_sharded {
                    checkpoint(|h| vec![block(&h[0], &weight)], &[&h]).remove(0)
                } else {
                    block(&h, &weight)
                }
            });
            let loss = (&y * &y).mean_all();
            let mut results = grad(&loss, &inputs);
            results.push(loss);
            results
        });
        (0..5).fold(function, |f, i| if is_sharded { f.shard_parameter(i, rows()) } else { f })
    };
    let mesh = Mesh::new([("data", 8)]).unwrap();
    // Each block has a barrier in the backward pass. The second and third have one in the forward
    // pass, too.
    let text = step(true).stablehlo_for(&mesh).unwrap();
    assert_eq!(text.matches("stablehlo.optimization_barrier").count(), 5, "{text}");
    let run = |runtime: &Runtime, is_sharded: bool| {
        let compiled = runtime.compile(&step(is_sharded)).unwrap();
        let inputs: Vec<_> = [
            numbers([16, 16]),
            numbers([16, 16]),
            numbers([16, 16]),
            numbers([16]),
            numbers([8, 16]),
        ]
        .iter()
        .map(|value| {
            let sharding = if is_sharded { rows() } else { Sharding::replicated() };
            runtime.to_devices(value, &sharding).unwrap()
        })
        .collect();
        let outputs = compiled.call(inputs.iter().map(Argument::Borrow).collect()).unwrap();
        let literals =
            runtime.read(&outputs.arrays.iter().collect::<Vec<_>>()).unwrap().wait().unwrap();
        literals.iter().flat_map(|l| l.to_vec::<f32>().unwrap()).collect::<Vec<f32>>()
    };
    let expected = run(&cpu(1), false);
    let actual = run(&cpu(8).with_mesh(&mesh).unwrap(), true);
    assert_eq!(expected.len(), actual.len());
    let differs = |(a, b): &(&f32, &f32)| (**a - **b).abs() > 1e-5;
    assert_eq!(expected.iter().zip(&actual).filter(differs).count(), 0);
}

#[test]
fn one_chosen_device_runs_the_program_and_no_other() {
    let runtime = cpu([5]);
    assert_eq!(runtime.devices().len(), 1);
    let double = Function::trace("double", f32s([3]), |x| &x * 2.0);
    let double = runtime.compile(&double).unwrap();
    let x = runtime.to_device(&numbers([3])).unwrap();
    let y = double.call(vec![Argument::Borrow(&x)]).unwrap();
    for array in [&x, &y.arrays[0]] {
        let ids: Vec<i32> = array.shards().iter().map(|shard| shard.device().id()).collect();
        assert_eq!(ids, [5]);
    }
    assert_eq!(double.executable().devices().len(), 1);
    assert_eq!(double.executable().devices()[0].id(), 5);
}

#[test]
fn gradients_of_a_split_batch_are_those_of_the_whole() {
    let step = || {
        Function::trace(
            "step",
            (f32s([6, 3]), f32s([8, 6]), f32s([8, 3])),
            |(weight, x, target)| {
                let error = x.matmul(&weight).tanh() - &target;
                let loss = (&error * &error).mean_all();
                let mut results = grad(&loss, &[&weight]);
                results.push(loss);
                results
            },
        )
        .shard_parameter(1, rows())
        .shard_parameter(2, rows())
    };
    let run = |runtime: &Runtime| {
        let compiled = runtime.compile(&step()).unwrap();
        let w = runtime.to_device(&numbers([6, 3])).unwrap();
        let x = runtime.to_devices(&numbers([8, 6]), &rows()).unwrap();
        let y = runtime.to_devices(&numbers([8, 3]), &rows()).unwrap();
        let outputs = compiled
            .call(vec![Argument::Borrow(&w), Argument::Borrow(&x), Argument::Borrow(&y)])
            .unwrap();
        let literals =
            runtime.read(&outputs.arrays.iter().collect::<Vec<_>>()).unwrap().wait().unwrap();
        literals.iter().flat_map(|l| l.to_vec::<f32>().unwrap()).collect::<Vec<_>>()
    };
    let one = run(&cpu(1));
    for devices in [2, 4, 8] {
        for (a, b) in one.iter().zip(run(&cpu(devices))) {
            assert!((a - b).abs() <= 1e-5 * a.abs().max(1e-3), "{devices} devices: {a} and {b}");
        }
    }
}

#[test]
fn random_numbers_do_not_depend_on_the_devices() {
    let draw = |runtime: &Runtime, sharding: Sharding| {
        let bits = random::uniform(&random::key(7), DType::F32, [16, 8], 0.0, 1.0)
            .with_sharding(&sharding);
        runtime.eval(&(bits * 1.0)).unwrap().to_vec::<f32>().unwrap()
    };
    let one = draw(&cpu(1), Sharding::replicated());
    assert_eq!(draw(&cpu(8), Sharding::replicated()), one);
    assert_eq!(draw(&cpu(8), rows()), one);
}

#[test]
fn a_value_of_other_devices_is_brought_over() {
    let one = cpu(1);
    let eight = cpu(8);
    let array = eight.to_devices(&numbers([8]), &rows()).unwrap();
    let tensor = Tensor::from_array(array.into()) + 1.0;
    let expected: Vec<f32> =
        numbers([8]).to_vec::<f32>().unwrap().iter().map(|v| v + 1.0).collect();
    assert_eq!(one.eval(&tensor).unwrap().to_vec::<f32>().unwrap(), expected);
    assert_eq!(eight.eval(&tensor).unwrap().to_vec::<f32>().unwrap(), expected);
}

#[test]
fn arguments_of_another_sharding_are_refused() {
    let runtime = cpu(2);
    let function = Function::trace("f", f32s([4]), |x| x.sum_all()).shard_parameter(0, rows());
    let function = runtime.compile(&function).unwrap();
    let whole = runtime.to_device(&numbers([4])).unwrap();
    let message = function.call(vec![Argument::Borrow(&whole)]).err().unwrap().to_string();
    assert!(message.contains("must have the sharding [data], but has []"), "{message}");
    let array = cpu(4).to_devices(&numbers([4]), &rows()).unwrap();
    let message = function.call(vec![Argument::Borrow(&array)]).err().unwrap().to_string();
    assert!(message.contains("is not on the devices of the program"), "{message}");
}

#[test]
fn a_sharding_that_the_mesh_does_not_fit_is_an_error_with_the_users_line() {
    let line = line!() + 1;
    let x = Tensor::zeros(DType::F32, [4, 4]).with_sharding(&Sharding::new([None, Some("model")]));
    let error = cpu(2).eval(&(&x + 1.0)).unwrap_err().to_string();
    assert!(
        error.contains("the mesh is data=2") && error.contains(&format!("sharding.rs:{line}:")),
        "{error}"
    );
    // On one device a sharding has no effect.
    assert_eq!(cpu(1).eval(&x).unwrap().to_vec::<f32>().unwrap(), [0.0; 16]);
    let error = cpu(2).with_mesh(&Mesh::new([("data", 3)]).unwrap()).err().unwrap().to_string();
    assert!(error.contains("the runtime has 2"), "{error}");
    let donated = Function::trace("f", f32s([4]), |x| &x + 1.0).donate(0, 0).unwrap();
    let error = donated.shard_parameter(0, rows()).stablehlo().unwrap_err().to_string();
    assert!(error.contains("donated to result 0, but their shardings differ"), "{error}");
}

#[test]
fn ten_thousand_steps_on_eight_devices_need_no_wait_in_user_code() {
    let runtime = cpu(8);
    let step =
        Function::trace("step", (f32s([8]), f32s([8])), |(state, batch)| state + batch.mean_all());
    let step = step.shard_parameter(1, rows()).donate(0, 0).unwrap();
    let step = runtime.compile(&step).unwrap();
    let ones = Literal::from_slice(&[1.0f32; 8], [8]).unwrap();
    let batch = runtime.to_devices(&ones, &rows()).unwrap();
    let mut state = runtime.to_device(&Literal::from_slice(&[0.0f32; 8], [8]).unwrap()).unwrap();
    for _ in 0..10_000 {
        state = step
            .call(vec![Argument::Donate(state), Argument::Borrow(&batch)])
            .unwrap()
            .arrays
            .remove(0);
    }
    let values = runtime.read(&[&state]).unwrap().wait().unwrap();
    assert_eq!(values[0].to_vec::<f32>().unwrap(), [10_000.0; 8]);
}
