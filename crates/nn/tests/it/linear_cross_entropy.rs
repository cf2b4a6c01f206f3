//! Cross-entropy of the logits of a linear layer, plain, in chunks and by the kernel: values and
//! gradients against PyTorch and in f64; on eight devices; what is kept, and what is reported.

use crate::common::reference::{Expected, cases, expect, inputs, number, numbers, word};
use crate::common::{assert_all_close, evaluated, fault, on_the_device};
use fulmen_nn::axes::AxisRules;
use fulmen_nn::loss::{
    CrossEntropyLoss, LinearCrossEntropyLoss, LossMethod, Reduction, linear_cross_entropy,
};
use fulmen_tensor::internal::{IndexChecks, mean_weights};
use fulmen_tensor::{
    Accelerator, Argument, DType, Devices, Function, Literal, Mesh, Runtime, Sharding, Tensor,
    TensorType, autocast, grad,
};
use serde_json::Value;

const METHODS: [LossMethod; 2] = [LossMethod::Plain, LossMethod::Chunks];

/// The settings of a case.
fn loss(attrs: &Value) -> LinearCrossEntropyLoss {
    let reduction = match word(&attrs["reduction"], "reduction") {
        "mean" => Reduction::Mean,
        "sum" => Reduction::Sum,
        _ => Reduction::None,
    };
    let mut loss = CrossEntropyLoss::new().reduction(reduction);
    if let Some(share) = attrs["label_smoothing"].as_f64() {
        loss = loss.label_smoothing(share);
    }
    if let Some(index) = attrs["ignore_index"].as_i64() {
        loss = loss.ignore_index(index);
    }
    if let Some(factor) = attrs["z_loss"].as_f64() {
        loss = loss.z_loss(factor);
    }
    if attrs["weight"].is_array() {
        let weight: Vec<f32> = numbers(&attrs["weight"]).iter().map(|&w| w as f32).collect();
        loss = loss.weight(Tensor::from_slice(&weight, [weight.len()]));
    }
    let loss = LinearCrossEntropyLoss::new(loss);
    if attrs["softcap"].is_null() { loss } else { loss.softcap(number(&attrs["softcap"])) }
}

/// What the kernel takes.
fn has_kernel(case: &Value, inputs: &[Tensor]) -> bool {
    let attrs = &case["attrs"];
    inputs.len() == 3 && !(attrs["weight"].is_array() && attrs["label_smoothing"].is_number())
}

#[test]
fn all_methods_are_pytorchs() {
    let mut expected = Expected::within(1e-5, 5e-6);
    let mut by_kernel = 0;
    for method in [LossMethod::Plain, LossMethod::Chunks, LossMethod::Kernel] {
        for case in cases("linear_cross_entropy.json") {
            let inputs = inputs(&case);
            if method == LossMethod::Kernel {
                if !has_kernel(&case, &inputs) {
                    continue;
                }
                by_kernel += 1;
            }
            let mut loss = loss(&case["attrs"]).method(method).chunk_size(3);
            if let Some(bias) = inputs.get(3) {
                loss = loss.bias(bias);
            }
            let value = loss.forward(&inputs[0], &inputs[1], &inputs[2]);
            expect(&mut expected, &case, &inputs, &[], &value);
        }
    }
    expected.check();
    assert!(by_kernel > 3, "{by_kernel} cases");
}

fn simple(shape: &[usize], factor: usize, dtype: DType) -> Tensor {
    let count: usize = shape.iter().product();
    let numbers: Vec<f32> = (0..count).map(|i| (i * factor % 101) as f32 / 50.0 - 1.0).collect();
    Tensor::from_slice(&numbers, shape).to_dtype(dtype)
}

/// Features `[2, 11, 4]`, a weight `[7, 4]` and a bias `[7]`.
fn tensors(dtype: DType) -> [Tensor; 3] {
    [simple(&[2, 11, 4], 37, dtype), simple(&[7, 4], 29, dtype), simple(&[7], 13, dtype)]
}

fn targets() -> Tensor {
    let targets: Vec<i32> = (0..22).map(|i| if i % 5 == 3 { -100 } else { i % 7 }).collect();
    Tensor::from_slice(&targets, [2, 11])
}

fn settings() -> CrossEntropyLoss {
    CrossEntropyLoss::new().ignore_index(-100).label_smoothing(0.1).z_loss(0.01)
}

/// The loss and the gradients of features, weight and bias.
fn results(
    loss: &CrossEntropyLoss,
    method: LossMethod,
    [x, weight, bias]: &[Tensor; 3],
    target: &Tensor,
) -> Vec<Tensor> {
    let loss = LinearCrossEntropyLoss::new(loss.clone()).bias(bias).softcap(3.0).method(method);
    let value = loss.chunk_size(4).forward(x, weight, target);
    let mut results = grad(&value.sum_all(), &[x, weight, bias]);
    results.push(value);
    results
}

#[test]
fn chunks_are_exact_in_f64_and_have_the_same_second_derivative() {
    let inputs = tensors(DType::F64);
    let of = |method| {
        let mut all = results(&settings(), method, &inputs, &targets());
        let slope = all[1].sin().sum_all();
        all.extend(grad(&slope, &inputs));
        all
    };
    let all = evaluated(&METHODS.map(of).concat());
    let (plain, chunks) = all.split_at(all.len() / 2);
    assert_all_close(chunks, plain, 1e-12);
    assert!(plain[0].iter().any(|x| x.abs() > 1e-3));
}

#[test]
fn the_kernel_is_exact_in_f64_also_for_devices_that_share_the_batch() {
    let [x, weight, _] = tensors(DType::F64);
    let weighted = CrossEntropyLoss::new().weight(simple(&[7], 13, DType::F64) + 1.5).z_loss(0.01);
    let of = |loss: &CrossEntropyLoss, method| {
        let loss = LinearCrossEntropyLoss::new(loss.clone()).softcap(3.0).method(method);
        let value = loss.forward(&x, &weight, targets());
        let mut all = grad(&value.sum_all(), &[&x, &weight]);
        all.push(value);
        all
    };
    let mesh = Mesh::new([("data", 2)]).unwrap();
    for loss in [settings(), weighted.ignore_index(-100).reduction(Reduction::None)] {
        let kernel = || of(&loss, LossMethod::Kernel);
        let all =
            [of(&loss, LossMethod::Plain), kernel(), AxisRules::default().apply(&mesh, kernel)];
        let all = evaluated(&all.concat());
        assert_all_close(&all[3..6], &all[..3], 1e-12);
        assert_all_close(&all[6..], &all[..3], 1e-12);
    }
}

#[test]
fn sequences_without_targets_and_single_tokens_are_as_in_the_plain_loss() {
    let inputs = tensors(DType::F32);
    let nobody = on_the_device(&Tensor::full(DType::I32, [2, 11], -100.0));
    let one = [inputs[0].narrow(1, 3, 1), inputs[1].clone(), inputs[2].clone()];
    let alone = targets().narrow(1, 4, 1);
    for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
        let loss = settings().reduction(reduction);
        let of = |method| {
            let mut all = results(&loss, method, &inputs, &nobody);
            all.extend(results(&loss, method, &one, &alone));
            all
        };
        let all = evaluated(&METHODS.map(of).concat());
        let (plain, chunks) = all.split_at(all.len() / 2);
        assert_all_close(chunks, plain, 1e-5);
        assert_eq!(chunks[3][0].is_nan(), reduction == Reduction::Mean);
    }
    let x = inputs[0].index(0, 0).index(0, 0);
    let token = Tensor::scalar(2i32);
    let loss = LinearCrossEntropyLoss::new(CrossEntropyLoss::new().reduction(Reduction::None));
    let value = loss.method(LossMethod::Chunks).forward(&x, &inputs[1], &token);
    assert_eq!(value.ty().to_string(), "f32[]");
    let empty = Tensor::zeros(DType::F32, [2, 0, 4]);
    let loss = LinearCrossEntropyLoss::new(CrossEntropyLoss::new().reduction(Reduction::None));
    let none = loss.method(LossMethod::Chunks).forward(
        &empty,
        &inputs[1],
        Tensor::zeros(DType::I32, [2, 0]),
    );
    assert_eq!(none.ty().to_string(), "f32[2, 0]");
}

/// In bf16, a sum of equal numbers stays at 256 times the number.
#[test]
fn the_gradient_of_the_weight_is_added_up_in_f32() {
    let length = 1024;
    let x = Tensor::ones(DType::F32, [1, length, 2]);
    let weight = Tensor::zeros(DType::F32, [2, 2]);
    let target = Tensor::zeros(DType::I32, [1, length]);
    let gradient = autocast(Some(DType::Bf16), || {
        let loss = CrossEntropyLoss::new().reduction(Reduction::Sum);
        let loss = LinearCrossEntropyLoss::new(loss).method(LossMethod::Chunks).chunk_size(1);
        grad(&loss.forward(&x, &weight, &target), &[&weight]).remove(0)
    });
    assert_eq!(gradient.dtype(), DType::F32);
    assert_eq!(evaluated(&[gradient])[0], [-512.0, -512.0, 512.0, 512.0]);
}

#[test]
fn a_mean_brings_the_number_of_targets_that_count() {
    let [x, weight, _] = tensors(DType::F32);
    for method in METHODS {
        let loss = LinearCrossEntropyLoss::new(settings()).method(method).chunk_size(3);
        let weights = mean_weights(&loss.forward(&x, &weight, targets()));
        assert_eq!(evaluated(&[weights[0].weight.clone()])[0], [18.0]);
    }
}

/// The memory that the gradients need besides arguments and results.
fn temporaries(method: LossMethod, length: usize) -> i64 {
    let types = [[1, length, 8], [1, 1024, 8]].map(|shape| TensorType::new(DType::F32, shape));
    let function = Function::trace("gradients", types, |[x, weight]| {
        let target = Tensor::zeros(DType::I32, [1, length]);
        let loss = LinearCrossEntropyLoss::new(CrossEntropyLoss::new()).method(method);
        let loss = loss.chunk_size(32).forward(&x, weight.index(0, 0), target);
        grad(&loss, &[x, weight])
    });
    let compiled = Runtime::global().unwrap().compile(&function).unwrap();
    compiled.executable().memory_analysis().unwrap().temp_bytes
}

#[test]
fn the_logits_of_one_chunk_are_in_memory() {
    let logits = 4 * 1024 * 1024;
    assert!(temporaries(LossMethod::Plain, 1024) >= logits);
    let [short, long] = [512, 1024].map(|length| temporaries(LossMethod::Chunks, length));
    assert!(8 * (long - short) < logits && 4 * long < logits, "{short} and {long} bytes");
}

/// The results with the batch, the length, the classes or the features split over the devices.
fn on_devices(
    devices: usize,
    method: LossMethod,
    of_x: &[&str; 3],
    of_weight: &[&str; 2],
) -> Vec<Vec<f64>> {
    let mesh = Mesh::new([("d", devices)]).unwrap();
    let runtime =
        Runtime::open(Accelerator::Cpu, &Devices::from(devices)).unwrap().with_mesh(&mesh).unwrap();
    let split = |names: &[&str]| {
        Sharding::new(names.iter().map(|name| Some(*name).filter(|name| !name.is_empty())))
    };
    let literals =
        [&[8, 16, 8][..], &[24, 8]].map(|shape| simple(shape, 37, DType::F32).eval().unwrap());
    let types = [TensorType::new(DType::F32, [8, 16, 8]), TensorType::new(DType::F32, [24, 8])];
    let function = Function::trace("step", types, |[x, weight]| {
        let targets: Vec<i32> = (0..128).map(|i| if i % 7 == 0 { -100 } else { i % 24 }).collect();
        let target = Tensor::from_slice(&targets, [8, 16]);
        let loss = LinearCrossEntropyLoss::new(settings()).method(method).chunk_size(5);
        let loss = loss.forward(&x, &weight, &target);
        let mut all = grad(&loss, &[x, weight]);
        all.push(loss);
        all
    });
    let function = function
        .shard_parameter(0, split(of_x))
        .shard_parameter(1, split(of_weight))
        .shard_result(0, split(of_x))
        .shard_result(1, split(of_weight));
    let compiled = runtime.compile(&function).unwrap();
    let arrays = [
        runtime.to_devices(&literals[0], &split(of_x)).unwrap(),
        runtime.to_devices(&literals[1], &split(of_weight)).unwrap(),
    ];
    let outputs = compiled.call(arrays.iter().map(Argument::Borrow).collect()).unwrap();
    let arrays = outputs.arrays.iter().collect::<Vec<_>>();
    runtime.read(&arrays).unwrap().wait().unwrap().iter().map(Literal::to_f64).collect()
}

#[test]
fn eight_devices_do_what_one_does_however_the_tensors_are_split() {
    let whole = ["", "", ""];
    let plain = on_devices(1, LossMethod::Plain, &whole, &["", ""]);
    for (of_x, of_weight) in [
        (["d", "", ""], ["", ""]),
        (["d", "", ""], ["d", ""]), // fsdp
        (["d", "", ""], ["", "d"]),
        (whole, ["d", ""]), // the vocabulary
        (["", "", "d"], ["", "d"]),
        (["", "d", ""], ["", ""]),
    ] {
        assert_all_close(&on_devices(8, LossMethod::Chunks, &of_x, &of_weight), &plain, 1e-5);
    }
}

#[test]
fn what_does_not_fit_is_told() {
    let [x, weight, bias] = tensors(DType::F32);
    let target = targets();
    let ignoring = CrossEntropyLoss::new().ignore_index(-100);
    let with = |loss: CrossEntropyLoss| {
        LinearCrossEntropyLoss::new(loss).method(LossMethod::Chunks).chunk_size(4)
    };
    let check = |value: &Tensor, expected: &str| {
        let text = fault(value);
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("linear_cross_entropy"), "{text}");
        assert!(text.contains("tests/it/linear_cross_entropy.rs"), "{text}");
    };
    let plain = with(ignoring.clone());
    check(&plain.forward(&target, &weight, &target), "is not floating-point [.., features]");
    let expected =
        "the weight f32[7] must be floating-point [classes, 4] for the input f32[2, 11, 4]";
    check(&plain.forward(&x, &bias, &target), expected);
    let wide = Tensor::zeros(DType::F32, [7, 5]);
    check(&plain.forward(&x, &wide, &target), "the weight f32[7, 5] must be");
    let expected = "the targets f32[2, 11, 4] must be integer indices [2, 11]";
    check(&plain.forward(&x, &weight, &x), expected);
    check(&plain.forward(&x, &weight, target.index(0, 0)), "must be integer indices [2, 11]");
    let by_kernel = plain.clone().bias(&bias).method(LossMethod::Kernel);
    check(&by_kernel.forward(&x, &weight, &target), "by `kernel` does not take a bias; use the");
    let short = plain.clone().bias(bias.narrow(0, 0, 6));
    check(&short.forward(&x, &weight, &target), "there are 7 classes, but the bias is f32[6]");
    let first = with(ignoring.clone().class_axis(1));
    let expected = "the classes are on the last axis, not on axis 1";
    check(&first.forward(&x, &weight, &target), expected);
    check(&plain.clone().chunk_size(0).forward(&x, &weight, &target), "the chunk size is 0");
    let smooth = with(ignoring.clone().label_smoothing(2.0));
    check(&smooth.forward(&x, &weight, &target), "label_smoothing must be between 0 and 1");
    let z = with(ignoring.clone().z_loss(-1.0));
    check(&z.forward(&x, &weight, &target), "z_loss must be a finite number of at least 0");
    let uneven = with(ignoring.weight(Tensor::ones(DType::F32, [6])));
    check(&uneven.forward(&x, &weight, &target), "7 classes, but the weight is f32[6]");
    let strict = with(CrossEntropyLoss::new());
    let expected = "a target is -100, but there are 7 classes (row 0, position 3)";
    check(&strict.forward(&x, &weight, &target), expected);
    check(&linear_cross_entropy(&x, &weight, &target, Reduction::Mean), "a target is -100");
}

#[test]
fn an_invalid_target_of_the_device_makes_its_loss_nan() {
    let [x, weight, _] = tensors(DType::F32);
    let target = on_the_device(&targets());
    let loss = LinearCrossEntropyLoss::new(CrossEntropyLoss::new().reduction(Reduction::None));
    let loss = loss.method(LossMethod::Chunks).chunk_size(4);
    let losses = loss.forward(&x, &weight, &target);
    let line = line!() - 1;
    // What a training step reports.
    let facts = IndexChecks::find(std::slice::from_ref(&losses)).facts();
    assert_eq!(facts.len(), 1);
    assert_eq!(facts[0].location.line(), line);
    assert!(facts[0].location.file().ends_with("linear_cross_entropy.rs"));
    assert_eq!(facts[0].shape.dims(), [2, 11]);
    assert_eq!(facts[0].rule.message(-100), "a target is -100, but there are 7 classes");
    let losses = evaluated(&[losses]).remove(0);
    let targets = evaluated(&[targets()]).remove(0);
    for (loss, target) in losses.iter().zip(targets) {
        assert_eq!(loss.is_nan(), target < 0.0);
    }
}
