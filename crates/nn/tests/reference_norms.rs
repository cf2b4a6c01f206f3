//! Normalizations and layers of two inputs against PyTorch: values, the gradients of inputs and parameters, and running
//! statistics.

mod common;

use common::reference::{Expected, cases, count, expect, fill, flag, inputs, number, sizes, word};
use fulmen_nn::{
    BatchNorm1d, BatchNorm2d, BatchNorm3d, Bilinear, ConditionalBatchNorm2d, Forward, GroupNorm, InstanceNorm1d,
    InstanceNorm2d, InstanceNorm3d, LocalResponseNorm, Module, RmsNorm,
};
use fulmen_tensor::Tensor;
use serde_json::Value;

#[test]
fn normalizations_without_state_and_bilinear_layers_are_pytorchs() {
    let mut expected = Expected::within(1e-5, 1e-5);
    for case in cases("norms.json") {
        let (attrs, inputs) = (&case["attrs"], inputs(&case));
        let layer: Box<dyn Forward> = match word(&case["op"], "op") {
            "rms_norm" => {
                let layer = RmsNorm::new(sizes(&attrs["normalized_shape"]))
                    .elementwise_affine(flag(&attrs["elementwise_affine"]));
                Box::new(if attrs["eps"].is_null() { layer } else { layer.eps(number(&attrs["eps"])) })
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
                let layer = Bilinear::new(count(&attrs["in1"]), count(&attrs["in2"]), count(&attrs["out"]))
                    .bias(flag(&attrs["bias"]));
                let parameters = fill(&layer, &case);
                expect(&mut expected, &case, &inputs, &parameters, &layer.forward(&inputs[0], &inputs[1]));
                continue;
            }
            other => panic!("no layer {other}"),
        };
        let parameters = fill(&layer, &case);
        expect(&mut expected, &case, &inputs, &parameters, &layer.forward(&inputs[0]));
    }
    expected.check();
}

/// A layer, and what it makes of the inputs of a case.
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
            let layer = ConditionalBatchNorm2d::new(count(&attrs["features"]), count(&attrs["classes"]));
            let same = layer.clone();
            (Box::new(layer), Box::new(move |inputs: &[Tensor]| same.forward(&inputs[0], &inputs[1])))
        }
        other => panic!("no layer {other}"),
    }
}

#[test]
fn running_statistics_are_pytorchs_over_three_steps_and_in_evaluation() {
    let mut expected = Expected::within(2e-5, 2e-5);
    for case in cases("batch_norm.json") {
        let (layer, run) = layer(word(&case["op"], "op"), &case["attrs"]);
        let steps = case["steps"].as_array().cloned().unwrap_or_default();
        assert_eq!(steps.len(), 3);
        for step in steps.iter().chain([&case["eval"]]) {
            let (parameters, inputs) = (fill(&layer, step), inputs(step));
            if step["buffers"].is_null() {
                layer.eval();
            }
            expect(&mut expected, step, &inputs, &parameters, &run(&inputs));
            let Some(buffers) = step["buffers"].as_object() else { continue };
            let found = layer.buffers();
            assert_eq!(found.len(), buffers.len(), "{}", step["name"]);
            for (name, buffer) in found {
                let what = format!("{}: {name}", step["name"]);
                match buffers[&name].as_f64() {
                    Some(number) => expected.numbers(what, &buffer.get(), vec![number]),
                    None => expected.tensor(what, &buffer.get(), &buffers[&name]),
                }
            }
        }
    }
    expected.check();
}
