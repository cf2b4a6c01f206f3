//! Normalizations of inputs whose mean is many standard deviations away from the running mean,
//! against PyTorch in f64, on one device and split over eight.

use fulmen_nn::{
    BatchNorm1d, BatchNorm2d, BatchNorm3d, ConditionalBatchNorm2d, GroupNorm, InstanceNorm2d,
    LayerNorm, Module, RmsNorm,
};
use fulmen_tensor::{
    Accelerator, Argument, DType, Devices, Function, Literal, Mesh, Runtime, Sharding, Tensor,
    TensorType, grad,
};
use serde_json::Value;

use crate::common::reference::{cases, number, numbers, sizes, tensor, word};

/// The layers of the cases with this operation, in training mode.
fn output(op: &str, x: &Tensor) -> (Tensor, Vec<(String, Tensor)>) {
    macro_rules! normalized {
        ($layer:expr) => {{
            let layer = $layer;
            layer.parameters().iter().for_each(|(name, parameter)| {
                let ones = name.ends_with("weight");
                parameter.set(Tensor::full(DType::F32, &parameter.ty().shape, f64::from(ones)));
            });
            let y = layer.forward(x);
            let buffers = layer.buffers().into_iter().map(|(name, buffer)| (name, buffer.get()));
            (y, buffers.filter(|(name, _)| name != "num_batches_tracked").collect())
        }};
    }
    match op {
        "batch_norm1d" => normalized!(BatchNorm1d::new(3)),
        "batch_norm2d" => normalized!(BatchNorm2d::new(3)),
        "batch_norm3d" => normalized!(BatchNorm3d::new(3)),
        "untracked_batch_norm2d" => normalized!(BatchNorm2d::new(3).track_running_stats(false)),
        "conditional_batch_norm2d" => {
            let layer = ConditionalBatchNorm2d::new(3, 2);
            layer.gammas.weight.set(Tensor::ones(DType::F32, [2, 3]));
            layer.betas.weight.set(Tensor::zeros(DType::F32, [2, 3]));
            let y = layer.forward(x, Tensor::zeros(DType::I32, [x.size(0)]));
            let buffers = layer.buffers().into_iter().map(|(name, buffer)| (name, buffer.get()));
            (y, buffers.filter(|(name, _)| name != "num_batches_tracked").collect())
        }
        "instance_norm2d" => normalized!(InstanceNorm2d::new(3)),
        "group_norm" => normalized!(GroupNorm::new(1, 3)),
        "layer_norm" => normalized!(LayerNorm::new([6])),
        "rms_norm" => normalized!(RmsNorm::new([6])),
        "var" => (x.var(1), Vec::new()),
        "std" => (x.std(1), Vec::new()),
        other => panic!("no operation {other}"),
    }
}

/// The expected numbers of a case, in the order of [`results`].
fn expected(case: &Value) -> Vec<(String, Vec<f64>)> {
    let name = word(&case["name"], "the name");
    let mut all = vec![
        (format!("{name}: output"), numbers(&case["outputs"][0])),
        (format!("{name}: gradient"), numbers(&case["gradients"][0])),
    ];
    for buffer in ["running_mean", "running_var"] {
        if !case["buffers"][buffer].is_null() {
            all.push((format!("{name}: {buffer}"), numbers(&case["buffers"][buffer])));
        }
    }
    all
}

/// The output, the gradient of the input, and the running statistics.
fn results(case: &Value, x: &Tensor) -> Vec<Tensor> {
    let (y, buffers) = output(word(&case["op"], "op"), x);
    let loss = (y.to_dtype(DType::F32) * tensor(&case["cotangent"])).sum_all();
    let gradient = grad(&loss, &[x]).remove(0);
    let all = [y, gradient].into_iter().chain(buffers.into_iter().map(|(_, value)| value));
    all.map(|value| value.to_dtype(DType::F32)).collect()
}

/// The results of all cases, with the batch split over this many devices.
fn run(cases: &[Value], devices: usize) -> Vec<Vec<f64>> {
    let mesh = Mesh::new([("data", devices)]).unwrap();
    let runtime =
        Runtime::open(Accelerator::Cpu, &Devices::from(devices)).unwrap().with_mesh(&mesh).unwrap();
    let rows = Sharding::new([Some("data")]);
    let dtype = |case: &Value| match word(&case["dtype"], "dtype") {
        "bf16" => DType::Bf16,
        _ => DType::F32,
    };
    let types: Vec<TensorType> = cases
        .iter()
        .map(|case| TensorType::new(dtype(case), sizes(&case["inputs"][0]["shape"])))
        .collect();
    let mut function = Function::trace("normalize", &types, |inputs| {
        cases.iter().zip(&inputs).flat_map(|(case, x)| results(case, x)).collect::<Vec<_>>()
    });
    for i in 0..cases.len() {
        function = function.shard_parameter(i, rows.clone());
    }
    let compiled = runtime.compile(&function).unwrap();
    let arrays: Vec<_> = cases
        .iter()
        .map(|case| {
            let x: Literal = tensor(&case["inputs"][0]).to_dtype(dtype(case)).eval().unwrap();
            runtime.to_devices(&x, &rows).unwrap()
        })
        .collect();
    let outputs = compiled.call(arrays.iter().map(Argument::Borrow).collect()).unwrap();
    let arrays: Vec<_> = outputs.arrays.iter().collect();
    runtime.read(&arrays).unwrap().wait().unwrap().iter().map(Literal::to_f64).collect()
}

/// The largest difference, relative to the largest expected magnitude.
fn distance(actual: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let scale = expected.iter().fold(f64::MIN_POSITIVE, |scale, value| scale.max(value.abs()));
    let off = actual.iter().zip(expected).map(|(a, e)| (a - e).abs());
    off.fold(0.0, |largest, off| if off > largest || off.is_nan() { off } else { largest }) / scale
}

#[test]
fn a_mean_far_from_the_running_mean_loses_no_digits() {
    let cases = cases("far_means.json");
    for devices in [1, 8] {
        let mut actual = run(&cases, devices).into_iter();
        for case in &cases {
            // In units of its size, the mean has a rounding error of 2⁻²⁵ in f32.
            let rounding = if case["dtype"] == "bf16" { 2f64.powi(-7) } else { 2f64.powi(-22) };
            let ratio = if case["dtype"] == "bf16" { 1.0 } else { number(&case["ratio"]) };
            for (name, expected) in expected(case) {
                let off = distance(&actual.next().unwrap(), &expected);
                assert!(off <= rounding * ratio, "{name} on {devices} devices: off by {off:e}");
            }
        }
        assert!(actual.next().is_none());
    }
}
