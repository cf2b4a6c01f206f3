//! Layers and losses under autocast: activations stay narrow, statistics and losses are f32,
//! weights and their gradients keep their dtype.

#![allow(clippy::unwrap_used)] // a test may panic: that fails the test

use fulmen_nn::activation::{self, GeluKind};
use fulmen_nn::loss::{Reduction, cross_entropy, mse_loss};
use fulmen_nn::{
    AdaptiveAvgPool2d, AvgPool2d, BatchNorm2d, Conv2d, Dropout, Elu, Forward, Gelu, GroupNorm,
    Hardswish, InstanceNorm2d, LayerNorm, LeakyRelu, Linear, LogSigmoid, MaxPool2d, Mish, Module,
    Relu, RmsNorm, Silu, Softplus,
};
use fulmen_tensor::{DType, Tensor, autocast, grad, random};

fn in_bf16<T>(record: impl FnOnce() -> T) -> T {
    autocast(Some(DType::Bf16), record)
}

#[test]
fn layers_keep_their_result_narrow_and_their_weights_gradients_wide() {
    let conv = Conv2d::new(3, 4, 3);
    let norm = BatchNorm2d::new(4);
    let linear = Linear::new(4 * 4 * 4, 10);
    conv.initialize(1);
    norm.initialize(2);
    linear.initialize(3);
    let x = Tensor::ones(DType::F32, [2, 3, 6, 6]);
    let (logits, loss) = in_bf16(|| {
        let y = conv.forward(&x);
        assert_eq!(y.check().unwrap().dtype(), DType::Bf16);
        let y = norm.forward(&y);
        assert_eq!(y.check().unwrap().dtype(), DType::Bf16);
        let logits = linear.forward(&y.reshape([2, 64]));
        let loss = cross_entropy(&logits, &Tensor::from_slice(&[1i32, 3], [2]), Reduction::Mean);
        (logits, loss)
    });
    assert_eq!(
        (logits.check().unwrap().dtype(), loss.check().unwrap().dtype()),
        (DType::Bf16, DType::F32)
    );
    for (name, buffer) in norm.buffers() {
        assert_ne!(buffer.get().check().unwrap().dtype(), DType::Bf16, "{name}");
    }
    for layer in [conv.parameters(), norm.parameters(), linear.parameters()] {
        for (name, parameter) in layer {
            let gradient = &grad(&loss, &[&parameter.get()])[0];
            assert_eq!(gradient.check().unwrap().ty(), parameter.get().ty(), "{name}");
        }
    }
}

#[test]
fn losses_of_16_bit_numbers_are_f32() {
    // bf16 cannot distinguish 257² from 256².
    let difference = mse_loss(
        &Tensor::full(DType::Bf16, [2], 256.0),
        &Tensor::full(DType::Bf16, [2], -1.0),
        Reduction::Mean,
    );
    assert_eq!(difference.eval().unwrap().to_vec::<f32>().unwrap(), [257.0 * 257.0]);
}

#[test]
fn layers_without_weights_keep_the_dtype_of_their_input() {
    let x = Tensor::from_slice(
        &(0..32).map(|i| i as f32 / 8.0 - 2.0).collect::<Vec<_>>(),
        [2, 1, 4, 4],
    );
    let dropout = Dropout::new(0.5);
    dropout.set_random_key(&random::key(0));
    let layers: Vec<Box<dyn Forward>> = vec![
        Box::new(dropout),
        Box::new(MaxPool2d::new(2)),
        Box::new(AvgPool2d::new(2)),
        Box::new(AdaptiveAvgPool2d::new(3)),
        Box::new(AdaptiveAvgPool2d::new(1)),
        Box::new(Relu),
        Box::new(Gelu::new()),
        Box::new(Gelu::new().approximate(GeluKind::Tanh)),
        Box::new(Silu),
        Box::new(Elu::new()),
        Box::new(Softplus::default()),
        Box::new(LeakyRelu::new(0.1)),
        Box::new(Mish),
        Box::new(LogSigmoid),
        Box::new(Hardswish),
        Box::new(RmsNorm::new([4]).elementwise_affine(false)),
        Box::new(GroupNorm::new(1, 1).affine(false)),
        Box::new(InstanceNorm2d::new(1)),
        Box::new(LayerNorm::new([4]).elementwise_affine(false)),
        Box::new(BatchNorm2d::new(1).affine(false)),
    ];
    for dtype in [DType::Bf16, DType::F32] {
        for (i, layer) in layers.iter().enumerate() {
            let y = in_bf16(|| layer.forward(&x.to_dtype(dtype)));
            assert_eq!(y.check().unwrap().dtype(), dtype, "layer {i}");
            let outside = layer.forward(&x.to_dtype(dtype));
            assert_eq!(outside.check().unwrap().dtype(), dtype, "layer {i}");
        }
    }
}

#[test]
fn an_activation_of_16_bits_is_rounded_once() {
    let x: Vec<f32> = (0..64).map(|i| i as f32 / 8.0 - 4.0).collect();
    let x = Tensor::from_slice(&x, [64]);
    for (name, f) in [
        ("gelu", activation::gelu as fn(&Tensor) -> Tensor),
        ("gelu_tanh", activation::gelu_tanh),
        ("silu", activation::silu),
    ] {
        let narrow = f(&x.to_dtype(DType::Bf16))
            .to_dtype(DType::F32)
            .eval()
            .unwrap()
            .to_vec::<f32>()
            .unwrap();
        let whole = f(&x)
            .to_dtype(DType::Bf16)
            .to_dtype(DType::F32)
            .eval()
            .unwrap()
            .to_vec::<f32>()
            .unwrap();
        assert_eq!(narrow, whole, "{name}");
    }
}

#[test]
fn statistics_of_16_bit_numbers_are_those_of_f32() {
    // bf16 cannot represent the mean or the squares of these numbers.
    let x = Tensor::from_slice(&[256.0f32, 258.0, 260.0, 262.0], [1, 4]).to_dtype(DType::Bf16);
    let y = LayerNorm::new([4]).elementwise_affine(false).forward(&x).to_dtype(DType::F32);
    let y = y.eval().unwrap().to_vec::<f32>().unwrap();
    for (actual, expected) in y.iter().zip([-1.341_64f32, -0.447_21, 0.447_21, 1.341_64]) {
        assert!((actual - expected).abs() < 0.005, "{y:?}");
    }
    // With statistics in bf16, momentum·new would be lost when added to the old value.
    let norm = BatchNorm2d::new(1).momentum(0.001);
    norm.initialize(0);
    let ones = Tensor::full(DType::Bf16, [2, 1, 1, 1], 1.0);
    for _ in 0..10 {
        in_bf16(|| norm.forward(&ones));
    }
    let mean = norm.buffers()[0].1.get().eval().unwrap().to_vec::<f32>().unwrap();
    assert!((f64::from(mean[0]) - (1.0 - 0.999f64.powi(10))).abs() < 1e-6, "{mean:?}");
}
