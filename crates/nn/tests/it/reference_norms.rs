//! Normalizations and layers of two inputs against PyTorch: values, the gradients of inputs and
//! parameters, and running statistics.

use crate::common::reference::{
    Expected, cases, count, expect, fill, flag, inputs, number, sizes, tensor, word,
};
use crate::common::{assert_close, fault, values};
use fulmen_nn::{
    BatchNorm1d, BatchNorm2d, BatchNorm3d, Bilinear, ConditionalBatchNorm2d, Conv2d, Forward,
    GroupNorm, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d, Linear, LocalResponseNorm, Module,
    RmsNorm, SpectralNorm, Weighted,
};
use fulmen_tensor::Tensor;
use serde_json::Value;

#[test]
fn normalizations_without_state_and_bilinear_layers_are_pytorchs() {
    let mut expected = Expected::within(2e-5, 2e-5);
    for case in cases("norms.json") {
        let attrs = &case["attrs"];
        let inputs = inputs(&case);
        let layer: Box<dyn Forward> = match word(&case["op"], "op") {
            "rms_norm" => {
                let layer = RmsNorm::new(sizes(&attrs["normalized_shape"]))
                    .elementwise_affine(flag(&attrs["elementwise_affine"]));
                Box::new(if attrs["eps"].is_null() {
                    layer
                } else {
                    layer.eps(number(&attrs["eps"]))
                })
            }
            "group_norm" => Box::new(
                GroupNorm::new(count(&attrs["groups"]), count(&attrs["channels"]))
                    .eps(number(&attrs["eps"]))
                    .affine(flag(&attrs["affine"])),
            ),
            "local_response_norm" => Box::new(LocalResponseNorm {
                size: count(&attrs["size"]),
                alpha: number(&attrs["alpha"]),
                beta: number(&attrs["beta"]),
                k: number(&attrs["k"]),
            }),
            "bilinear" => {
                let layer =
                    Bilinear::new(count(&attrs["in1"]), count(&attrs["in2"]), count(&attrs["out"]))
                        .bias(flag(&attrs["bias"]));
                let parameters = fill(&layer, &case);
                expect(
                    &mut expected,
                    &case,
                    &inputs,
                    &parameters,
                    &layer.forward(&inputs[0], &inputs[1]),
                );
                continue;
            }
            other => panic!("no layer {other}"),
        };
        let parameters = fill(&layer, &case);
        expect(&mut expected, &case, &inputs, &parameters, &layer.forward(&inputs[0]));
    }
    expected.check();
}

/// A layer, and the function that applies it to the inputs of a case.
type Made = (Box<dyn Module>, Box<dyn Fn(&[Tensor]) -> Tensor>);

fn layer(op: &str, attrs: &Value) -> Made {
    macro_rules! layer {
        ($kind:ident, $momentum:expr) => {{
            let layer = $kind::new(count(&attrs["features"]))
                .eps(number(&attrs["eps"]))
                .momentum($momentum)
                .affine(flag(&attrs["affine"]))
                .track_running_stats(flag(&attrs["track_running_stats"]));
            let same = layer.clone();
            (Box::new(layer), Box::new(move |inputs: &[Tensor]| same.forward(&inputs[0])))
        }};
    }
    match op {
        "batch_norm1d" => layer!(BatchNorm1d, attrs["momentum"].as_f64()),
        "batch_norm2d" => layer!(BatchNorm2d, attrs["momentum"].as_f64()),
        "batch_norm3d" => layer!(BatchNorm3d, attrs["momentum"].as_f64()),
        "instance_norm1d" => layer!(InstanceNorm1d, number(&attrs["momentum"])),
        "instance_norm2d" => layer!(InstanceNorm2d, number(&attrs["momentum"])),
        "instance_norm3d" => layer!(InstanceNorm3d, number(&attrs["momentum"])),
        "conditional_batch_norm2d" => {
            let layer =
                ConditionalBatchNorm2d::new(count(&attrs["features"]), count(&attrs["classes"]));
            let same = layer.clone();
            (
                Box::new(layer),
                Box::new(move |inputs: &[Tensor]| same.forward(&inputs[0], &inputs[1])),
            )
        }
        "spectral_norm_linear" => spectral(Linear::new(4, 3), attrs),
        "spectral_norm_steps" => spectral(Linear::new(3, 5).bias(false), attrs),
        "spectral_norm_conv2d" => spectral(Conv2d::new(2, 3, 2), attrs),
        other => panic!("no layer {other}"),
    }
}

fn spectral<L: Weighted + 'static>(layer: L, attrs: &Value) -> Made {
    let layer = SpectralNorm::new(layer).n_power_iterations(count(&attrs["n_power_iterations"]));
    let same = layer.clone();
    (Box::new(layer), Box::new(move |inputs: &[Tensor]| same.forward(&inputs[0])))
}

#[test]
fn running_statistics_are_pytorchs_over_three_steps_and_in_evaluation() {
    let mut expected = Expected::within(2e-5, 2e-5);
    for case in cases("batch_norm.json") {
        let (layer, run) = layer(word(&case["op"], "op"), &case["attrs"]);
        for (name, buffer) in layer.buffers().iter().filter(|_| !case["first"].is_null()) {
            buffer.set(tensor(&case["first"][name]));
        }
        let steps = case["steps"].as_array().cloned().unwrap_or_default();
        assert_eq!(steps.len(), 3);
        for step in steps.iter().chain([&case["eval"]]) {
            let parameters = fill(&layer, step);
            let inputs = inputs(step);
            if step["buffers"].is_null() {
                layer.eval();
            }
            expect(&mut expected, step, &inputs, &parameters, &run(&inputs));
            let Some(buffers) = step["buffers"].as_object() else { continue };
            let actual_buffers = layer.buffers();
            assert_eq!(actual_buffers.len(), buffers.len(), "{}", step["name"]);
            for (name, buffer) in actual_buffers {
                let title = format!("{}: {name}", step["name"]);
                match buffers[&name].as_f64() {
                    Some(number) => expected.numbers(title, &buffer.get(), vec![number]),
                    None => expected.tensor(title, &buffer.get(), &buffers[&name]),
                }
            }
        }
    }
    expected.check();
}

#[test]
fn spectral_normalization_divides_by_the_largest_singular_value() {
    let layer = SpectralNorm::new(Linear::new(6, 4)).n_power_iterations(40).parametrization_names();
    layer.initialize(0);
    let names: Vec<String> = layer.state().into_iter().map(|(name, _)| name).collect();
    let weight = "parametrizations.weight";
    let expected = [
        format!("{weight}.original"),
        "bias".into(),
        format!("{weight}.0._u"),
        format!("{weight}.0._v"),
    ];
    assert_eq!(names, expected);
    // In a nested model, the names of its neighbors do not change.
    let model = (Linear::new(2, 2), vec![layer.clone()], Linear::new(2, 2));
    let names: Vec<String> = model.parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names[2..5], ["1.0.parametrizations.weight.original", "1.0.bias", "2.weight"]);

    // The largest eigenvalue of WWᵀ is 1, and its vector is u.
    let weight = layer.weight();
    let u = layer.buffers()[0].1.get();
    let turned = weight.matmul(&weight.t().matmul(&u));
    assert_close(&values(&turned), &values(&u), 1e-4, 1e-4, "eigenvector");
    layer.eval();
    let before = values(&u);
    layer.forward(&Tensor::zeros(fulmen_tensor::DType::F32, [1, 6]));
    assert_eq!(values(&layer.buffers()[0].1.get()), before);
}

#[test]
fn normalizations_say_what_does_not_fit() {
    let zeros = |shape: &[usize]| Tensor::zeros(fulmen_tensor::DType::F32, shape);
    assert!(
        fault(&GroupNorm::new(3, 4).forward(&zeros(&[2, 4])))
            .contains("3 groups do not divide 4 channels")
    );
    assert!(fault(&GroupNorm::new(0, 4).forward(&zeros(&[2, 4]))).contains("0 groups"));
    assert!(
        fault(&GroupNorm::new(2, 4).forward(&zeros(&[2, 3])))
            .contains("has 3 channels on its axis 1, not 4")
    );
    assert!(
        fault(&RmsNorm::new([4]).forward(&zeros(&[2, 3])))
            .contains("the last axes of the input f32[2, 3] are not [4]")
    );
    assert!(
        fault(&InstanceNorm2d::new(4).forward(&zeros(&[2, 4, 1, 1]))).contains("needs at least 2")
    );
    assert!(
        fault(&InstanceNorm1d::new(4).forward(&zeros(&[4])))
            .contains("[batch, 4, length] or [4, length]")
    );
    assert!(fault(&LocalResponseNorm::new(0).forward(&zeros(&[1, 4, 2]))).contains("at least 1"));
    assert!(
        fault(&Bilinear::new(2, 3, 4).forward(&zeros(&[5, 2]), &zeros(&[6, 3])))
            .contains("same leading axes")
    );
    let bn = ConditionalBatchNorm2d::new(4, 10);
    bn.initialize(0);
    assert!(fault(&bn.forward(&zeros(&[2, 4, 3, 3]), &zeros(&[2]))).contains("the classes f32[2]"));
    let poison = zeros(&[2, 3]).reshape([5]);
    for y in [
        GroupNorm::new(1, 1).forward(&poison),
        RmsNorm::new([1]).forward(&poison),
        InstanceNorm3d::new(1).forward(&poison),
        SpectralNorm::new(Linear::new(1, 1)).forward(&poison),
        bn.forward(&zeros(&[2, 4, 3, 3]), &poison),
    ] {
        assert_eq!(fault(&y), fault(&poison));
    }
}
