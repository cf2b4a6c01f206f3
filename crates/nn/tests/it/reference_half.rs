//! Attention and sums in 16 bits against PyTorch: a product or a sum that is too large for its
//! dtype only until it is scaled.

use crate::common::{assert_close, values};
use fulmen_nn::attention::Attention;
use fulmen_tensor::{DType, Tensor, autocast, grad, scan};
use serde_json::Value;

/// Written by `half.py`.
fn reference() -> Value {
    serde_json::from_str(include_str!("../reference/half.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

/// The input of the script with this number.
fn wave(number: f64, shape: &Value, amplitude: f64) -> Tensor {
    let shape: Vec<usize> = serde_json::from_value(shape.clone()).unwrap();
    let element = |i: usize| amplitude * (0.7 * i as f64 + number).sin();
    let elements: Vec<f64> = (0..shape.iter().product()).map(element).collect();
    Tensor::from_slice(&elements, shape).to_dtype(DType::F16)
}

#[test]
fn attention_scales_before_a_product_of_f16_can_overflow() {
    let reference = reference();
    let mut overflowing = 0;
    for case in reference["attention"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let amplitude = case["amplitude"].as_f64().unwrap();
        overflowing += usize::from(case["largest_product"].as_f64().unwrap() > 65_504.0);
        let q = wave(0.0, &case["q"], amplitude);
        let k = wave(1.0, &case["k"], amplitude);
        let v = wave(2.0, &case["k"], 1.0);
        let mut attention = Attention::new().enable_gqa(case["grouped"].as_bool().unwrap());
        if let Some(scale) = case["scale"].as_f64() {
            attention = attention.scale(scale);
        }
        let y = attention.forward(&q, &k, &v);
        assert_eq!(y.dtype(), DType::F16, "{name}");
        assert_close(&values(&y), &numbers(&case["output"]), 2e-3, 2e-3, name);
        let gradient = &grad(y.to_dtype(DType::F32).sum_all(), &[&v])[0];
        assert_close(&values(gradient), &numbers(&case["v_gradient"]), 4e-3, 4e-3, name);
        // The same with f32 inputs under autocast.
        let [q, k, v] = [&q, &k, &v].map(|t| t.to_dtype(DType::F32));
        let y = autocast(Some(DType::F16), || attention.forward(&q, &k, &v));
        assert_close(&values(&y), &numbers(&case["output"]), 2e-3, 2e-3, name);
    }
    assert_eq!(overflowing, 3);
}

#[test]
fn a_sum_in_a_derivative_is_rounded_only_at_its_end() {
    let reference = reference();
    let half = |value: f64| Tensor::full(DType::F32, [1], value).to_dtype(DType::F16);
    let b = half(1.0);
    let factor = half(0.001).squeeze(0);
    let product = b.broadcast_to([200_000]) * factor;
    let gradient = grad(product.to_dtype(DType::F32).sum_all(), &[&b]);
    assert_eq!(values(&gradient[0]), [reference["broadcast"].as_f64().unwrap()]);

    let x = half(0.0).broadcast_to([100_000]) * 1.0;
    let gradient = values(&grad(x.max(0), &[&x])[0]);
    assert_eq!(gradient[99_999], reference["ties"].as_f64().unwrap());

    // The exact number: in PyTorch and JAX, a bf16 sum stops at 256.
    let w = Tensor::ones(DType::Bf16, []);
    let xs = Tensor::ones(DType::Bf16, [4096]);
    let (_, ys) = scan(Tensor::scalar(0i32), &xs, |c, x| (c, x * &w));
    let gradient = grad(ys.to_dtype(DType::F32).sum_all(), &[&w]);
    assert_eq!(gradient[0].dtype(), DType::Bf16);
    assert_eq!(values(&gradient[0]), [4096.0]);
}
