//! Layers against PyTorch: values, and the gradients of inputs and parameters.

use crate::common::reference::{
    Expected, cases, count, expect, fill, flag, inputs, number, pair, path, sizes, tensor, word,
};
use crate::common::values;
use fulmen_nn::weights::{Strictness, load_weights};
use fulmen_nn::{
    AdaptiveAvgPool2d, AvgPool2d, BagMode, BatchNorm2d, Conv2d, Embedding, EmbeddingBag, Forward,
    LayerNorm, Linear, MaxPool2d, Module, Relu, Sequential, activation,
};
use fulmen_tensor::Tensor;

#[test]
fn linear_convolution_pooling_and_layer_normalization_are_pytorchs() {
    let mut expected = Expected::within(1e-5, 2e-5);
    for case in cases("layers.json") {
        let attrs = &case["attrs"];
        let layer: Box<dyn Forward> = match word(&case["op"], "op") {
            "linear" => Box::new(
                Linear::new(count(&attrs["in_features"]), count(&attrs["out_features"]))
                    .bias(flag(&attrs["bias"])),
            ),
            "conv2d" => Box::new(
                Conv2d::new(
                    count(&attrs["in_channels"]),
                    count(&attrs["out_channels"]),
                    pair(&attrs["kernel"]),
                )
                .stride(pair(&attrs["stride"]))
                .padding(pair(&attrs["padding"]))
                .dilation(pair(&attrs["dilation"]))
                .groups(count(&attrs["groups"]))
                .bias(flag(&attrs["bias"])),
            ),
            "max_pool2d" => Box::new(
                MaxPool2d::new(pair(&attrs["window"]))
                    .stride(pair(&attrs["stride"]))
                    .padding(pair(&attrs["padding"])),
            ),
            "avg_pool2d" => Box::new(
                AvgPool2d::new(pair(&attrs["window"]))
                    .stride(pair(&attrs["stride"]))
                    .padding(pair(&attrs["padding"]))
                    .count_include_pad(flag(&attrs["count_include_pad"])),
            ),
            "embedding" => {
                let layer = Embedding::new(count(&attrs["rows"]), count(&attrs["width"]));
                Box::new(if attrs["padding_idx"].is_null() {
                    layer
                } else {
                    layer.padding_idx(count(&attrs["padding_idx"]))
                })
            }
            "embedding_bag" => {
                let mode = match word(&attrs["mode"], "mode") {
                    "mean" => BagMode::Mean,
                    "sum" => BagMode::Sum,
                    _ => BagMode::Max,
                };
                let layer =
                    EmbeddingBag::new(count(&attrs["rows"]), count(&attrs["width"])).mode(mode);
                Box::new(if attrs["padding_idx"].is_null() {
                    layer
                } else {
                    layer.padding_idx(count(&attrs["padding_idx"]))
                })
            }
            "adaptive_avg_pool2d" => Box::new(AdaptiveAvgPool2d::new(pair(&attrs["size"]))),
            "layer_norm" => Box::new(
                LayerNorm::new(sizes(&attrs["normalized_shape"]))
                    .eps(number(&attrs["eps"]))
                    .elementwise_affine(flag(&attrs["elementwise_affine"]))
                    .bias(flag(&attrs["elementwise_affine"]) && flag(&attrs["bias"])),
            ),
            other => panic!("no layer {other}"),
        };
        let parameters = fill(&layer, &case);
        let inputs = inputs(&case);
        expect(&mut expected, &case, &inputs, &parameters, &layer.forward(&inputs[0]));
    }
    expected.check();
}

/// The network whose state dict PyTorch saved.
#[derive(Module)]
struct Net {
    features: Sequential,
    norm: BatchNorm2d,
    head: Linear,
}

impl Net {
    fn new() -> Net {
        let features = Sequential::new()
            .add(Conv2d::new(3, 6, 3).padding(1).bias(false))
            .add(BatchNorm2d::new(6))
            .add(Relu)
            .add(MaxPool2d::new(2))
            .add(Conv2d::new(6, 8, 3).stride(2));
        Net { features, norm: BatchNorm2d::new(8), head: Linear::new(8, 5) }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let x = activation::relu(&self.norm.forward(&self.features.forward(x)));
        self.head.forward(&x.flatten(1, -1))
    }
}

#[test]
fn a_state_dict_of_pytorch_loads_by_name_and_gives_its_logits() {
    let case = &cases("net.json")[0];
    let net = Net::new();
    let report = load_weights(&net, path("net.safetensors"), Strictness::Strict)
        .unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(report.loaded.len(), case["state"].as_object().map_or(0, |state| state.len()));
    assert!(report.converted.is_empty());
    for (name, variable) in net.state() {
        let expected = &case["state"][&name];
        assert_eq!(variable.ty().dtype.name(), expected["dtype"], "{name}");
        assert_eq!(serde_json::json!(variable.ty().shape.dims()), expected["shape"], "{name}");
    }
    let trained =
        net.buffers().iter().all(|(_, buffer)| values(&buffer.get()).iter().all(|&v| v != 0.0));
    assert!(trained, "the running statistics are not the initial ones");
    net.eval();
    let mut expected = Expected::within(1e-4, 1e-5);
    expected.tensor("logits", &net.forward(&tensor(&case["inputs"][0])), &case["outputs"][0]);
    expected.check();
}
