//! Attention against PyTorch: values, and the gradients of inputs and parameters.

use crate::common::reference::{
    Expected, cases, count, expect, fill, flag, inputs, number, tensor, word,
};
use crate::common::{assert_close, fault, values};
use fulmen_nn::attention::{Attention, scaled_dot_product_attention};
use fulmen_nn::{Dropout, Module, MultiheadAttention};
use fulmen_tensor::{DType, Tensor, grad, random};
use serde_json::Value;

fn attention(attrs: &Value) -> Attention {
    let flag = |name: &str| attrs[name].as_bool().unwrap_or(false);
    let mut attention = Attention::new().causal(flag("causal")).enable_gqa(flag("enable_gqa"));
    if !attrs["scale"].is_null() {
        attention = attention.scale(number(&attrs["scale"]));
    }
    if !attrs["mask"].is_null() {
        attention = attention.mask(&tensor(&attrs["mask"]));
    }
    attention
}

#[test]
fn attention_is_pytorchs() {
    let mut expected = Expected::within(1e-5, 1e-5);
    for case in cases("attention.json") {
        let attrs = &case["attrs"];
        let inputs = inputs(&case);
        match word(&case["op"], "op") {
            "attention" => {
                let y = attention(attrs).forward(&inputs[0], &inputs[1], &inputs[2]);
                expect(&mut expected, &case, &inputs, &[], &y);
            }
            "multihead_attention" => {
                let mut layer =
                    MultiheadAttention::new(count(&attrs["embed_dim"]), count(&attrs["num_heads"]))
                        .bias(flag(&attrs["bias"]));
                if !attrs["kdim"].is_null() {
                    layer = layer.kdim_vdim(count(&attrs["kdim"]), count(&attrs["vdim"]));
                }
                let parameters = fill(&layer, &case);
                let k = inputs.get(1).unwrap_or(&inputs[0]);
                let v = inputs.get(2).unwrap_or(&inputs[0]);
                let (y, weights) = layer.forward_with_weights(&inputs[0], k, v, &attention(attrs));
                expect(&mut expected, &case, &inputs, &parameters, &y);
                expected.tensor(format!("{}: weights", case["name"]), &weights, &case["weights"]);
            }
            other => panic!("no operation {other}"),
        }
    }
    expected.check();
}

#[test]
fn a_query_that_sees_nothing_gets_zeros_and_no_nan_in_any_gradient() {
    let x = Tensor::from_slice(&[1.0f32, 2.0, -1.0, 0.5], [2, 2]);
    let mask = Tensor::from_slice(&[true, true, false, false], [2, 2]);
    let y = Attention::new().mask(&mask).forward(&x, &x, &x);
    assert_eq!(values(&y)[2..], [0.0, 0.0]);
    let gradient = values(&grad(&(&y * &y).sum_all(), &[&x])[0]);
    assert!(gradient.iter().all(|g| g.is_finite()), "{gradient:?}");
}

#[test]
fn a_later_position_changes_nothing_before_it() {
    let x = random::normal(&random::key(0), DType::F32, [1, 6, 8]);
    let layer = MultiheadAttention::new(8, 2);
    layer.initialize(1);
    let run = |x: &Tensor| values(&layer.forward(x, x, x, &Attention::new().causal(true)));
    let change = Tensor::iota(DType::F32, [1, 6, 1], 1).ge(4.0).to_dtype(DType::F32);
    let before = run(&x);
    let after = run(&(&x + change));
    assert_close(&after[..32], &before[..32], 1e-6, 1e-6, "the first four");
    assert!(before[32..].iter().zip(&after[32..]).all(|(a, b)| (a - b).abs() > 1e-4));
}

#[test]
fn dropout_acts_on_the_weights_while_training_only() {
    let x = random::normal(&random::key(0), DType::F32, [2, 5, 8]);
    let layer = MultiheadAttention::new(8, 2).dropout(0.5);
    layer.initialize(1);
    let run = || layer.forward(&x, &x, &x, &Attention::new());
    assert!(fault(&run()).contains("set_random_key"));
    layer.set_random_key(&random::key(0));
    let training = values(&run());
    layer.eval();
    assert_ne!(values(&run()), training);
    assert_eq!(values(&run()), values(&run()));
}

#[test]
fn what_does_not_fit_is_told_with_both_sides() {
    let zeros = |shape: &[usize]| Tensor::zeros(DType::F32, shape);
    let text = fault(&scaled_dot_product_attention(
        &zeros(&[2, 3]),
        &zeros(&[2, 4]),
        &zeros(&[2, 4]),
        false,
    ));
    assert!(
        text.contains("f32[2, 3]")
            && text.contains("f32[2, 4]")
            && text.contains("reference_attention.rs"),
        "{text}"
    );
    let text = fault(&scaled_dot_product_attention(
        &zeros(&[2, 3]),
        &zeros(&[2, 3]),
        &zeros(&[4, 3]),
        false,
    ));
    assert!(text.contains("numbers of keys and values differ"), "{text}");
    let text =
        fault(&scaled_dot_product_attention(&zeros(&[3]), &zeros(&[2, 3]), &zeros(&[2, 3]), false));
    assert!(text.contains("f32[3] is not a floating-point tensor [.., length, width]"), "{text}");
    let x = zeros(&[2, 3]);
    let text = fault(&Attention::new().mask(&zeros(&[3, 3])).forward(&x, &x, &x));
    assert!(
        text.contains("the mask f32[3, 3] does not broadcast to the scores f32[2, 2]"),
        "{text}"
    );
    let heads = zeros(&[2, 4, 3]);
    for mask in [&[2, 1, 1, 4][..], &[3, 1, 4]] {
        let mask = Tensor::ones(DType::Bool, mask.to_vec());
        let text = fault(&Attention::new().mask(&mask).forward(&heads, &heads, &heads));
        let expected =
            format!("the mask {} does not broadcast to the scores f32[2, 4, 4]", mask.ty());
        assert!(text.contains(&expected) && text.contains("reference_attention.rs"), "{text}");
    }
    assert!(
        Attention::new().mask(&zeros(&[2, 1, 4])).forward(&heads, &heads, &heads).fault().is_none()
    );
    let text =
        fault(&Attention::new().mask(&Tensor::zeros(DType::I32, [2, 2])).forward(&x, &x, &x));
    assert!(text.contains("must be boolean or floating-point"), "{text}");

    let x = zeros(&[1, 2, 6]);
    let layer = |heads| {
        let layer = MultiheadAttention::new(6, heads);
        layer.initialize(0);
        layer
    };
    for heads in [0, 4] {
        let text = fault(&layer(heads).forward(&x, &x, &x, &Attention::new()));
        assert!(text.contains("heads do not divide 6 features"), "{text}");
    }
    let q = zeros(&[1, 6, 2, 4]);
    let k = zeros(&[1, 4, 2, 4]);
    let text = fault(&Attention::new().enable_gqa(true).forward(&q, &k, &k));
    assert!(
        text.contains("f32[1, 6, 2, 4] are not a multiple of those of keys f32[1, 4, 2, 4]"),
        "{text}"
    );
    let text = fault(&Attention::new().enable_gqa(true).forward(
        &zeros(&[2, 4]),
        &zeros(&[2, 4]),
        &zeros(&[2, 4]),
    ));
    assert!(text.contains("(axis -3)"), "{text}");
    let text = fault(&layer(2).forward(&x, &zeros(&[1, 2, 4]), &x, &Attention::new()));
    assert!(
        text.starts_with("MultiheadAttention(6, 2 heads): the input f32[1, 2, 4] is not"),
        "{text}"
    );
}

#[test]
fn a_dropout_of_the_call_acts_in_place_of_the_layers() {
    let x = (Tensor::iota(DType::F32, [1, 16, 4], 1) * 0.1).sin();
    let layer = MultiheadAttention::new(4, 2).dropout(0.5);
    layer.initialize(0);
    layer.set_random_key(&random::key(0));
    let zeros = |attention: &Attention| {
        let (_, weights) = layer.forward_with_weights(&x, &x, &x, attention);
        values(&weights).iter().filter(|w| **w == 0.0).count()
    };
    assert!(zeros(&Attention::new()) > 100);
    assert_eq!(zeros(&Attention::new().dropout(&Dropout::new(0.0))), 0);
}

#[test]
fn keys_and_values_as_wide_as_queries_share_the_joint_weight() {
    let names = |layer: MultiheadAttention| {
        layer
            .parameters()
            .into_iter()
            .map(|(name, p)| format!("{name} {}", p.ty()))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        names(MultiheadAttention::new(6, 2).kdim_vdim(6, 6)),
        names(MultiheadAttention::new(6, 2))
    );
    let layer = MultiheadAttention::new(6, 2).kdim_vdim(4, 6).kdim_vdim(6, 6);
    assert_eq!(names(layer), names(MultiheadAttention::new(6, 2)));
    assert_eq!(names(MultiheadAttention::new(6, 2).kdim_vdim(4, 6)).len(), 6);
}
