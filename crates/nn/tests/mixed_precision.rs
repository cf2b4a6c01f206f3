//! Layers and losses under autocast: activations stay narrow, statistics and losses are f32, weights and their gradients
//! keep their dtype.

#![allow(clippy::unwrap_used)] // a test may panic: that fails the test

use fulmen_nn::loss::{Reduction, cross_entropy, mse_loss};
use fulmen_nn::{BatchNorm2d, Conv2d, Linear, Module};
use fulmen_tensor::{DType, Tensor, autocast, grad};

fn in_bf16<T>(record: impl FnOnce() -> T) -> T {
    autocast(Some(DType::Bf16), record)
}

#[test]
fn layers_keep_their_result_narrow_and_their_weights_gradients_wide() {
    let (conv, norm, linear) = (Conv2d::new(3, 4, 3), BatchNorm2d::new(4), Linear::new(4 * 4 * 4, 10));
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
    assert_eq!((logits.check().unwrap().dtype(), loss.check().unwrap().dtype()), (DType::Bf16, DType::F32));
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
    // 257² is beyond what bf16 tells from 256².
    let difference =
        mse_loss(&Tensor::full(DType::Bf16, [2], 256.0), &Tensor::full(DType::Bf16, [2], -1.0), Reduction::Mean);
    assert_eq!(difference.eval().unwrap().to_vec::<f32>().unwrap(), [257.0 * 257.0]);
}
