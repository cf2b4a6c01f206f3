//! Transformers and encodings of positions against PyTorch and Hugging Face: values and gradients.

use crate::common::reference::{
    Expected, cases, count, expect, fill, flag, inputs, number, tensor, word,
};
use crate::common::{assert_close, fault, on_the_device, set_simple_values, values};
use fulmen_nn::attention::{
    Attention, LearnedPositions, RotaryEmbedding, RotaryScaling, SinusoidalPositions, alibi,
    alibi_at, sinusoidal,
};
use fulmen_nn::{
    Gelu, Module, Prelu, Transformer, TransformerDecoderLayer, TransformerEncoder,
    TransformerEncoderLayer,
};
use fulmen_tensor::{DType, Tensor, random};
use serde_json::Value;

macro_rules! layer {
    ($kind:ident, $attrs:expr) => {{
        let attrs = $attrs;
        let layer = $kind::new(count(&attrs["d_model"]), count(&attrs["nhead"]))
            .dim_feedforward(count(&attrs["dim_feedforward"]))
            .layer_norm_eps(attrs["layer_norm_eps"].as_f64().unwrap_or(1e-5))
            .bias(attrs["bias"].as_bool().unwrap_or(true))
            .dropout(0.0)
            .norm_first(attrs["norm_first"].as_bool().unwrap_or(true));
        if attrs["activation"] == "gelu" { layer.activation(Gelu::default()) } else { layer }
    }};
}

#[test]
fn transformers_are_pytorchs() {
    let mut expected = Expected::within(2e-5, 2e-5);
    for case in cases("transformer.json") {
        let attrs = &case["attrs"];
        let inputs = inputs(&case);
        let padding = tensor(&attrs["src_seen"]).unsqueeze(1).unsqueeze(1);
        let src = Attention::new().mask(&padding);
        let tgt = Attention::new().causal(true);
        let (parameters, y) = match word(&case["op"], "op") {
            "encoder_layer" => {
                let layer = layer!(TransformerEncoderLayer, attrs);
                (fill(&layer, &case), layer.forward(&inputs[0], &src))
            }
            "decoder_layer" => {
                let layer = layer!(TransformerDecoderLayer, attrs);
                (fill(&layer, &case), layer.forward(&inputs[0], &inputs[1], &tgt, &src))
            }
            "transformer" => {
                let model = Transformer::new(
                    count(&attrs["d_model"]),
                    (count(&attrs["num_encoder_layers"]), || {
                        layer!(TransformerEncoderLayer, attrs)
                    }),
                    (count(&attrs["num_decoder_layers"]), || {
                        layer!(TransformerDecoderLayer, attrs)
                    }),
                );
                (fill(&model, &case), model.forward(&inputs[0], &inputs[1], &src, &tgt, &src))
            }
            other => panic!("no layer {other}"),
        };
        expect(&mut expected, &case, &inputs, &parameters, &y);
    }
    expected.check();
}

#[test]
fn a_transformer_begins_with_xaviers_rule_and_layers_of_their_own() {
    let model = Transformer::new(
        8,
        (1, || TransformerEncoderLayer::new(8, 2).dim_feedforward(16)),
        (0, || TransformerDecoderLayer::new(8, 2)),
    );
    model.initialize(0);
    for (name, parameter) in model.parameters().into_iter().filter(|(_, p)| p.ty().shape.rank() > 1)
    {
        let shape = parameter.ty().shape;
        let bound = (6.0 / (shape[0] + shape[1]) as f64).sqrt();
        let largest = values(&parameter.get()).into_iter().fold(0.0f64, |a, b| a.max(b.abs()));
        assert!(largest <= bound && largest > 0.8 * bound, "{name}: {largest} of {bound}");
    }
    let two = TransformerEncoder::new(2, || TransformerEncoderLayer::new(8, 2));
    assert_eq!(two.num_parameters(), 2 * two.layers[0].num_parameters());
}

#[test]
fn dropout_acts_in_every_place_while_training_only() {
    let encoder = TransformerEncoder::new(1, || {
        TransformerEncoderLayer::new(8, 2).dropout(0.5).activation(Prelu::new())
    });
    set_simple_values(&encoder);
    assert!(encoder.parameters().iter().any(|(name, _)| name == "layers.0.activation.weight"));
    let x = random::normal(&random::key(0), DType::F32, [2, 3, 8]);
    let run = || encoder.forward(&x, &Attention::new());
    assert!(fault(&run()).contains("set_random_key"));
    encoder.set_random_key(&random::key(1));
    let training = values(&run());
    encoder.eval();
    assert_ne!(values(&run()), training);
    assert_eq!(values(&run()), values(&run()));
    let text = fault(&encoder.forward(&Tensor::zeros(DType::F32, [2, 3, 6]), &Attention::new()));
    assert!(
        text.contains("MultiheadAttention(8, 2 heads)")
            && text.contains("reference_transformer.rs"),
        "{text}"
    );
}

fn scaling(attrs: &Value) -> RotaryScaling {
    let settings = &attrs["scaling"];
    match settings["rope_type"].as_str() {
        None => RotaryScaling::None,
        Some("linear") => RotaryScaling::Linear { factor: number(&settings["factor"]) },
        Some("llama3") => RotaryScaling::Llama3 {
            factor: number(&settings["factor"]),
            low_freq_factor: number(&settings["low_freq_factor"]),
            high_freq_factor: number(&settings["high_freq_factor"]),
            original_max_position_embeddings: count(&settings["original_max_position_embeddings"]),
        },
        Some("yarn") => RotaryScaling::Yarn {
            factor: number(&settings["factor"]),
            original_max_position_embeddings: count(&settings["original_max_position_embeddings"]),
            beta_fast: number(&settings["beta_fast"]),
            beta_slow: number(&settings["beta_slow"]),
            attention_factor: number(&settings["attention_factor"]),
            truncate: flag(&settings["truncate"]),
        },
        Some(other) => panic!("no scaling {other}"),
    }
}

#[test]
fn positions_are_hugging_faces() {
    let mut expected = Expected::within(1e-5, 1e-5);
    for case in cases("positions.json") {
        let attrs = &case["attrs"];
        let name = word(&case["name"], "name");
        if case["op"] == "alibi" {
            let heads = count(&attrs["heads"]);
            // The bias of the last query, relative to the first key instead of the query itself.
            let last = alibi(heads, 5, 5).narrow(1, 4, 1).reshape([heads, 5]);
            expected.tensor(name, &(&last - last.narrow(1, 0, 1)), &case["outputs"][0]);
            let shifted = alibi_at(heads, &Tensor::from_slice(&[4i32], [1]), 5).reshape([heads, 5]);
            expected.numbers(format!("{name} at 4"), &(shifted - last), vec![0.0; heads * 5]);
            continue;
        }
        let inputs = inputs(&case);
        let rope = RotaryEmbedding::new(count(&attrs["width"]))
            .theta(number(&attrs["theta"]))
            .scaling(scaling(attrs))
            .interleaved(flag(&attrs["interleaved"]));
        let y = rope.forward_at(&inputs[0], &tensor(&attrs["positions"]).unsqueeze(1));
        expect(&mut expected, &case, &inputs, &[], &y);
    }
    expected.check();
}

#[test]
fn rotated_products_depend_on_the_distance_alone() {
    for interleaved in [false, true] {
        let rope = RotaryEmbedding::new(8).interleaved(interleaved);
        let x = random::normal(&random::key(0), DType::F32, [2, 8]);
        let product = |a: i32| {
            let rotated = rope.forward_at(&x, &Tensor::from_slice(&[a, a + 3], [2]));
            values(&(rotated.narrow(0, 0, 1) * rotated.narrow(0, 1, 1)).sum_all())[0]
        };
        assert!((product(0) - product(100)).abs() < 1e-4);
    }
}

#[test]
fn encodings_refuse_what_does_not_fit() {
    let x = Tensor::zeros(DType::F32, [3, 4]);
    assert!(fault(&RotaryEmbedding::new(3).forward(&x)).contains("a width of 3"));
    assert!(fault(&RotaryEmbedding::new(6).forward(&x)).contains("with 6 features or more"));
    assert!(fault(&RotaryEmbedding::new(4).forward_at(&x, &x)).contains("are not integers"));
    assert!(
        fault(&RotaryEmbedding::new(4).forward_at(&x, &Tensor::arange(DType::I32, 2)))
            .contains("broadcast")
    );
    let deep = Tensor::zeros(DType::I32, [2, 1, 3]);
    assert!(
        fault(&RotaryEmbedding::new(4).forward_at(&x, &deep))
            .contains("i32[2, 1, 3] do not broadcast to [3]")
    );
    assert!(fault(&SinusoidalPositions::new(4).forward_at(&x, &deep)).contains("do not broadcast"));
    assert!(fault(&alibi_at(8, &deep, 3)).contains("must be integers [length]"));
    assert!(fault(&alibi(usize::MAX, 3, 3)).contains("heads are supported"));
    assert!(fault(&sinusoidal(3, usize::MAX)).contains("exceeds the limit"));
    assert!(fault(&SinusoidalPositions::new(5).forward(&x)).contains("[.., length, 5]"));
    let learned = LearnedPositions::new(2, 4);
    learned.initialize(0);
    assert!(fault(&learned.forward(&x)).contains("has 3 positions, there are 2"));
    let positions = Tensor::from_slice(&[1i32, 0, 2], [3]);
    let message = fault(&learned.forward_at(&x, &positions));
    assert!(message.contains("a position is 2, but there are 2 positions (row 2)"), "{message}");
    let output = values(&learned.forward_at(&x, &on_the_device(&positions)));
    assert!(output[..8].iter().all(|v| v.is_finite()) && output[8..].iter().all(|v| v.is_nan()));
    // With an odd width, the last feature is a sine.
    assert_close(&values(&sinusoidal(3, 5))[10..11], &[2f64.sin()], 1e-6, 0.0, "sine");
    assert_eq!(sinusoidal(3, 5).shape().dims(), [3, 5]);
    assert_eq!(sinusoidal(3, 0).shape().dims(), [3, 0]);
}
