//! Layers: the inputs that they reject, and properties that PyTorch's reference values do not show.

use crate::common::{assert_close, fault, on_the_device, values};
use fulmen_nn::loss::{CrossEntropyLoss, Reduction, cross_entropy, mse_loss};
use fulmen_nn::{
    AdaptiveAvgPool2d, AvgPool2d, BagMode, BatchNorm1d, BatchNorm2d, Conv2d, Dropout, Embedding,
    EmbeddingBag, InstanceNorm1d, LayerNorm, Linear, MaxPool2d, Module, MultiheadAttention,
    activation, metrics,
};
use fulmen_tensor::{DType, Tensor, grad, random};

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(DType::F32, shape)
}

/// Numbers so irregular that an error does not cancel out in a sum.
fn numbers(shape: &[usize]) -> Tensor {
    let n = shape.iter().product::<usize>();
    let all: Vec<f32> = (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 23.0).collect();
    Tensor::from_slice(&all, shape)
}

#[test]
fn inputs_that_do_not_fit_are_poisoned_by_the_layer_with_both_sides() {
    let initialized = |layer: &dyn Module| layer.initialize(0);
    let linear = Linear::new(784, 512);
    initialized(&linear);
    let text = fault(&linear.forward(&zeros(&[32, 100])));
    assert!(
        text.starts_with("Linear(784 -> 512): the input f32[32, 100] has 100 features"),
        "{text}"
    );
    assert!(text.contains("layers.rs"), "{text}");
    assert!(fault(&linear.forward(&zeros(&[]))).contains("is a scalar"));

    let conv = Conv2d::new(3, 8, 5);
    initialized(&conv);
    let text = fault(&conv.forward(&zeros(&[2, 1, 28, 28])));
    assert!(
        text.starts_with(
            "Conv2d(3 -> 8, kernel 5x5): the input f32[2, 1, 28, 28] has 1 channel on its axis"
        ),
        "{text}"
    );
    assert!(
        fault(&conv.forward(&zeros(&[3, 4, 28])))
            .contains("the height of f32[3, 4, 28] is 4, the window needs 5")
    );
    assert!(fault(&conv.forward(&zeros(&[28]))).contains("is not [batch, 3, height, width]"));

    assert!(
        fault(&MaxPool2d::new(2).padding(2).forward(&zeros(&[1, 1, 4, 4])))
            .contains("more than half")
    );
    assert!(fault(&AvgPool2d::new(0).forward(&zeros(&[1, 1, 4, 4]))).contains("at least 1"));
    assert!(
        fault(&MaxPool2d::new(5).forward(&zeros(&[1, 1, 4, 4]))).contains("the window needs 5")
    );

    let bn = BatchNorm2d::new(4);
    initialized(&bn);
    assert!(
        fault(&bn.forward(&zeros(&[2, 3, 5, 5]))).contains("has 3 channels on its axis 1, not 4")
    );
    assert!(fault(&bn.forward(&zeros(&[1, 4, 1, 1]))).contains("at least 2 while training"));
}

#[test]
fn settings_without_sense_are_poisoned_and_never_panic() {
    let x = zeros(&[1, 8, 6, 6]);
    assert!(
        fault(&Conv2d::new(8, 8, 3).groups(3).forward(&x))
            .contains("3 groups do not divide 8 and 8")
    );
    assert!(fault(&Conv2d::new(8, 8, 3).groups(0).forward(&x)).contains("0 groups"));
    assert!(fault(&Conv2d::new(8, 8, 3).stride(0).forward(&x)).contains("at least 1"));
    assert!(fault(&Conv2d::new(8, 8, 0).forward(&x)).contains("at least 1"));
    assert!(
        fault(&Conv2d::new(8, 8, 3).dilation(usize::MAX).forward(&x)).contains("the window needs")
    );
    for p in [-0.1, 1.5, f64::NAN] {
        assert!(fault(&Dropout::new(p).forward(&x)).contains("between 0 and 1"));
    }
    // Layers without inputs are initialized too.
    let empty = Linear::new(0, 2);
    empty.initialize(0);
    assert_eq!(values(&empty.forward(&zeros(&[1, 0]))), [0.0, 0.0]);
}

#[test]
fn a_poisoned_input_passes_through_every_layer() {
    let poison = zeros(&[2, 3]).matmul(&zeros(&[2, 3]));
    let before = fault(&poison);
    for y in [
        Linear::new(1, 1).forward(&poison),
        Conv2d::new(1, 1, 1).forward(&poison),
        BatchNorm2d::new(1).forward(&poison),
        Dropout::new(0.5).forward(&poison),
        MaxPool2d::new(1).forward(&poison),
        activation::gelu(&poison),
        cross_entropy(&poison, &poison, Reduction::Mean),
        mse_loss(&poison, &zeros(&[1]), Reduction::Mean),
        metrics::correct(&poison, &poison),
    ] {
        assert_eq!(fault(&y), before);
    }
}

#[test]
fn one_image_is_a_batch_of_one_without_its_axis() {
    let conv = Conv2d::new(2, 3, 3).padding(1);
    conv.initialize(0);
    let x = numbers(&[2, 6, 6]);
    let batch = x.unsqueeze(0);
    assert_eq!(conv.forward(&x).shape().dims(), [3, 6, 6]);
    assert_eq!(values(&conv.forward(&x)), values(&conv.forward(&batch)));
    assert_eq!(values(&MaxPool2d::new(2).forward(&x)), values(&MaxPool2d::new(2).forward(&batch)));
}

#[test]
fn averages_can_leave_padding_out() {
    let x = Tensor::ones(DType::F32, [1, 1, 4, 4]);
    let counted = AvgPool2d::new(3).stride(2).padding(1);
    assert_close(
        &values(&counted.forward(&x)),
        &[4.0, 6.0, 6.0, 9.0].map(|n| n / 9.0),
        1e-6,
        0.0,
        "counted",
    );
    let left_out = counted.count_include_pad(false);
    assert_close(&values(&left_out.forward(&x)), &[1.0; 4], 1e-6, 0.0, "left out");
}

#[test]
fn dropout_keeps_the_expected_share_and_scales_it() {
    let dropout = Dropout::new(0.25);
    let x = Tensor::ones(DType::F32, [100, 100]);
    assert!(fault(&dropout.forward(&x)).contains("set_random_key"));
    dropout.set_random_key(&random::key(1));
    let first = values(&dropout.forward(&x));
    let second = values(&dropout.forward(&x));
    assert_ne!(first, second, "each call draws new numbers");
    let kept = first.iter().filter(|&&y| (y - 4.0 / 3.0).abs() < 1e-6).count();
    let dropped = first.iter().filter(|&&y| y == 0.0).count();
    assert_eq!(kept + dropped, 10_000);
    assert!((7_300..7_700).contains(&kept), "{kept}");
    assert!(values(&Dropout::new(1.0).forward(&x)).iter().all(|&y| y == 0.0));
    dropout.eval();
    assert!(dropout.forward(&x).is(&x));
}

#[test]
fn batch_norm_of_half_precision_keeps_f32_statistics() {
    let bn = BatchNorm2d::new(1);
    bn.initialize(0);
    // bf16 cannot represent 300 + 1/64, nor the mean of these numbers.
    let x =
        Tensor::from_slice(&[300.0f32, 302.0, 304.0, 300.0], [4, 1, 1, 1]).to_dtype(DType::Bf16);
    let y = bn.forward(&x);
    assert_eq!(y.dtype(), DType::Bf16);
    let mean = &bn.buffers()[0].1;
    assert_eq!(mean.ty().dtype, DType::F32);
    assert_close(&values(&mean.get()), &[30.15], 1e-6, 0.0, "running mean");
    assert_eq!(values(&bn.buffers()[2].1.get()), [1.0]);
}

#[test]
fn batch_norm_without_running_statistics_uses_the_batch_in_evaluation() {
    let bn = BatchNorm2d::new(1).track_running_stats(false).affine(false);
    assert_eq!(bn.state().len(), 0);
    bn.eval();
    let y = values(&bn.forward(&Tensor::from_slice(&[1.0f32, 3.0], [2, 1, 1, 1])));
    assert_close(&y, &[-1.0, 1.0], 1e-5, 0.0, "y");
}

#[test]
fn targets_out_of_range_are_nan_and_so_is_their_gradient() {
    let logits = numbers(&[4, 3]);
    for target in [
        Tensor::from_slice(&[0i32, 3, -1, 2], [4]),
        Tensor::from_slice(&[0i64, 1 << 32, i64::MIN, 2], [4]),
        Tensor::from_slice(&[0u64, u64::MAX, 1 << 32, 2], [4]),
        Tensor::from_slice(&[0u8, 255, 3, 2], [4]),
    ] {
        let message = fault(&cross_entropy(&logits, &target, Reduction::None));
        assert!(message.contains(", but there are 3 classes (row 1)"), "{message}");
        // On the device, nobody looks at it but the Trainer.
        let target = on_the_device(&target);
        let losses = values(&cross_entropy(&logits, &target, Reduction::None));
        let nan: Vec<bool> = losses.iter().map(|l| l.is_nan()).collect();
        assert_eq!(nan, [false, true, true, false], "{target:?}");
        let loss = cross_entropy(&logits, &target, Reduction::Sum);
        let gradient = values(&grad(&loss, &[&logits])[0]);
        let nan: Vec<bool> = gradient.chunks(3).map(|row| row.iter().all(|g| g.is_nan())).collect();
        assert_eq!(nan, [false, true, true, false], "{target:?}");
    }
}

#[test]
fn a_short_integer_can_index_more_classes_than_it_counts() {
    let logits = numbers(&[2, 300]);
    let as_u8 = cross_entropy(&logits, &Tensor::from_slice(&[255u8, 3], [2]), Reduction::None);
    let as_i64 = cross_entropy(&logits, &Tensor::from_slice(&[255i64, 3], [2]), Reduction::None);
    let as_u8 = values(&as_u8);
    let as_i64 = values(&as_i64);
    assert!(as_u8.iter().all(|l| l.is_finite()));
    assert_eq!(as_u8, as_i64);
}

#[test]
fn ignored_samples_count_neither_above_nor_below_the_line() {
    let logits = numbers(&[3, 4]);
    let target = Tensor::from_slice(&[1i32, -100, 2], [3]);
    let loss = CrossEntropyLoss::new().ignore_index(-100);
    let each = values(&loss.clone().reduction(Reduction::None).forward(&logits, &target));
    assert_eq!(each[1], 0.0);
    let mean = values(&loss.forward(&logits, &target))[0];
    assert!((mean - (each[0] + each[2]) / 2.0).abs() < 1e-6);
    let gradient = values(&grad(&loss.forward(&logits, &target), &[&logits])[0]);
    assert!(gradient[4..8].iter().all(|&g| g == 0.0) && gradient[..4].iter().all(|&g| g != 0.0));
}

#[test]
fn classes_may_stand_on_any_axis() {
    let logits = numbers(&[2, 5, 3]);
    let target = Tensor::from_slice(&[0i32, 1, 2, 3, 4, 0], [2, 3]);
    let on_axis =
        CrossEntropyLoss::new().class_axis(1).reduction(Reduction::None).forward(&logits, &target);
    let last = cross_entropy(&logits.transpose(1, 2), &target, Reduction::None);
    assert_eq!(values(&on_axis), values(&last));
}

#[test]
fn impossible_classes_do_not_spoil_the_loss() {
    let logits = Tensor::from_slice(&[0.0f32, f32::NEG_INFINITY, 0.0], [1, 3]);
    let loss = cross_entropy(&logits, &Tensor::from_slice(&[0i32], [1]), Reduction::Mean);
    assert_close(&values(&loss), &[2f64.ln()], 1e-6, 0.0, "loss");
}

#[test]
fn losses_name_the_shapes_that_do_not_fit() {
    let text =
        fault(&cross_entropy(&zeros(&[8, 10]), &Tensor::zeros(DType::I32, [7]), Reduction::Mean));
    assert!(text.contains("[8] samples in 10 classes") && text.contains("it is i32[7]"), "{text}");
    assert!(
        fault(&cross_entropy(&zeros(&[8, 10]), &zeros(&[8]), Reduction::Mean))
            .contains("integer indices")
    );
    let text = fault(&mse_loss(&zeros(&[8, 1]), &zeros(&[8]), Reduction::Mean));
    assert!(text.contains("f32[8, 1]") && text.contains("f32[8]"), "{text}");
    assert!(fault(&metrics::correct(&zeros(&[8, 10]), &zeros(&[8]))).contains("integer index"));
}

#[test]
fn accuracy_counts_what_is_right() {
    let logits = Tensor::from_slice(&[1.0f32, 2.0, f32::NAN, 0.0, 3.0, 1.0], [3, 2]);
    let right = metrics::correct(&logits, &Tensor::from_slice(&[1u8, 0, 1], [3]));
    assert_eq!(values(&right), [1.0, 0.0, 0.0]);
}

/// Compares the gradients of a small network with finite differences in f64.
#[test]
fn gradients_through_a_network_agree_with_finite_differences() {
    let weight =
        |shape: &[usize], i: usize| (numbers(shape) * (0.3 + i as f64 * 0.1)).to_dtype(DType::F64);
    let x = numbers(&[3, 2, 5, 5]).to_dtype(DType::F64);
    let target = Tensor::from_slice(&[0i32, 2, 1], [3]);
    let loss = |p: &[Tensor]| {
        let convolution =
            fulmen_tensor::Convolution::new(2).padding([(1, 1), (1, 1)]).stride([2, 2]);
        let bn = BatchNorm2d::new(4).affine(false);
        let h = bn.forward(&x.convolution(&p[0], &convolution));
        let h = activation::elu(&activation::gelu(&h), 1.0);
        let h = AvgPool2d::new(3)
            .stride(1)
            .padding(1)
            .count_include_pad(false)
            .forward(&h)
            .flatten(1, -1);
        let logits = activation::softplus(&h.matmul(&p[1]), 2.0, 20.0);
        CrossEntropyLoss::new().label_smoothing(0.1).forward(&logits, &target)
    };
    let parameters = [weight(&[4, 2, 3, 3], 0), weight(&[36, 3], 1)];
    let value = loss(&parameters);
    let gradients = grad(&value, &[&parameters[0], &parameters[1]]);
    for (i, gradient) in gradients.iter().enumerate() {
        let gradient = values(gradient);
        let shape = parameters[i].shape().clone();
        for element in [0, 7, 31, 50] {
            let mut offsets = vec![0.0f64; shape.num_elements()];
            offsets[element] = 1e-6;
            let nudge = Tensor::from_slice(&offsets, &shape);
            let moved = |sign: f64| {
                let mut p = parameters.clone();
                p[i] = &p[i] + &nudge * sign;
                values(&loss(&p))[0]
            };
            let slope = (moved(1.0) - moved(-1.0)) / 2e-6;
            assert_close(
                &[gradient[element]],
                &[slope],
                1e-5,
                1e-8,
                &format!("parameter {i}, element {element}"),
            );
        }
    }
}

#[test]
fn activations_have_finite_gradients_far_out() {
    let x = Tensor::from_slice(&[-1e4f32, -100.0, 0.0, 100.0, 1e4], [5]);
    for (name, y) in [
        ("elu", activation::elu(&x, 1.0)),
        ("softplus", activation::softplus(&x, 1.0, 20.0)),
        ("gelu", activation::gelu(&x)),
        ("silu", activation::silu(&x)),
        ("leaky_relu", activation::leaky_relu(&x, 0.01)),
    ] {
        let dx = values(&grad(&y.sum_all(), &[&x])[0]);
        assert!(dx.iter().all(|g| g.is_finite()), "{name}: {dx:?}");
        assert!((dx[4] - 1.0).abs() < 1e-6, "{name}: {dx:?}");
    }
}

#[test]
fn normalizations_refuse_what_does_not_fit() {
    let norm = LayerNorm::new([2, 4]);
    norm.initialize(0);
    let text = fault(&norm.forward(&zeros(&[8, 4])));
    assert!(
        text.starts_with("LayerNorm([2, 4]): the last axes of the input f32[8, 4] are not [2, 4]"),
        "{text}"
    );
    assert!(fault(&norm.forward(&zeros(&[4]))).contains("the last axes"));
    assert!(
        fault(&norm.forward(&Tensor::zeros(DType::I32, [2, 4]))).contains("not floating-point")
    );
    assert!(fault(&LayerNorm::new([]).forward(&zeros(&[4]))).contains("no axis"));

    let norm = BatchNorm1d::new(4);
    norm.initialize(0);
    let text = fault(&norm.forward(&zeros(&[2, 4, 5, 5])));
    assert!(
        text.starts_with("BatchNorm1d(4): ")
            && text.contains("is not [batch, 4] or [batch, 4, length]"),
        "{text}"
    );
    assert!(fault(&norm.forward(&zeros(&[1, 4]))).contains("at least 2 while training"));
    norm.eval();
    assert_eq!(values(&norm.forward(&zeros(&[1, 4]))), [0.0; 4]);
    let norm = BatchNorm1d::new(4).track_running_stats(false);
    norm.initialize(0);
    assert!(
        fault(&norm.forward(&zeros(&[1, 4])))
            .contains("has 1 value per channel; the variance of a batch needs at least 2")
    );
    norm.eval();
    assert!(
        fault(&norm.forward(&zeros(&[1, 4]))).contains("at least 2 without running statistics")
    );

    let norm = InstanceNorm1d::new(3);
    let text = fault(&norm.forward(&zeros(&[4, 8])));
    assert!(text.contains("the input f32[4, 8] has 4 channels on its axis 0, not 3"), "{text}");
    let text = fault(&norm.forward(&zeros(&[2, 4, 8])));
    assert!(text.contains("the input f32[2, 4, 8] has 4 channels on its axis 1, not 3"), "{text}");
    assert!(
        fault(&norm.forward(&zeros(&[3, 1])))
            .contains("the input f32[3, 1] has 1 value per channel")
    );
    assert!(
        fault(&norm.forward(&zeros(&[3])))
            .contains("the input f32[3] is not [batch, 3, length] or [3, length]")
    );
}

#[test]
fn adaptive_pooling_refuses_what_does_not_fit() {
    assert!(
        fault(&AdaptiveAvgPool2d::new(0).forward(&zeros(&[1, 1, 4, 4]))).contains("at least 1")
    );
    assert!(
        fault(&AdaptiveAvgPool2d::new(1).forward(&zeros(&[4, 4])))
            .contains("is not [batch, channels")
    );
    assert!(
        fault(&AdaptiveAvgPool2d::new(1).forward(&zeros(&[1, 1, 0, 4])))
            .contains("is not [batch, channels")
    );
    assert!(
        fault(&AdaptiveAvgPool2d::new(1).forward(&Tensor::zeros(DType::I32, [1, 4, 4])))
            .contains("floating")
    );
    assert_eq!(
        values(&AdaptiveAvgPool2d::new(1).forward(&Tensor::ones(DType::F32, [2, 3, 4]))),
        [1.0; 2]
    );
}

#[test]
fn attention_begins_as_pytorchs_does() {
    let layer = MultiheadAttention::new(32, 4);
    let weight = layer.in_proj_weight.as_ref().unwrap();
    let bound = weight.init().spread(&weight.ty().shape).unwrap();
    assert!((bound - (6.0f64 / (32.0 + 96.0)).sqrt()).abs() < 1e-12);
    layer.initialize(0);
    let out = values(&layer.out_proj.weight.get());
    let bound = 1.0 / 32f64.sqrt();
    assert!(out.iter().all(|w| w.abs() <= bound) && out.iter().any(|w| w.abs() > 0.9 * bound));
    for (name, parameter) in layer.parameters().iter().filter(|(name, _)| name.ends_with("bias")) {
        assert!(values(&parameter.get()).iter().all(|&b| b == 0.0), "{name}");
    }
    assert_eq!(MultiheadAttention::new(32, 4).bias(false).parameters().len(), 2);
}

#[test]
fn an_embedding_begins_normal_and_its_padding_with_zeros() {
    let embedding = Embedding::new(200, 50).padding_idx(3);
    embedding.initialize(1);
    let weight = values(&embedding.weight.get());
    assert_eq!(weight[150..200], [0.0; 50]);
    let variance = weight.iter().map(|w| w * w).sum::<f64>() / (199.0 * 50.0);
    assert!((variance - 1.0).abs() < 0.05, "{variance}");
    // The other rows are the same as without padding.
    let plain = Embedding::new(200, 50);
    plain.initialize(1);
    assert_eq!(values(&plain.weight.get())[200..], weight[200..]);

    let ids = Tensor::from_slice(&[3u8, 0, 3, 255], [2, 2]);
    let text = fault(&embedding.forward(&ids));
    let expected =
        "Embedding(200 x 50): an index is 255, but the table has 200 rows (row 1, position 1)";
    assert!(text.starts_with(expected), "{text}");
    let rows = values(&embedding.forward(on_the_device(&ids)));
    assert!(rows[..50].iter().all(|&x| x == 0.0) && rows[50..100] == weight[..50]);
    assert!(rows[150..].iter().all(|x| x.is_nan()), "an index outside");
}

#[test]
fn an_embedding_refuses_what_are_no_indices() {
    let embedding = Embedding::new(4, 2);
    embedding.initialize(0);
    let text = fault(&embedding.forward(&zeros(&[2])));
    assert!(text.starts_with("Embedding(4 x 2): the input f32[2] must be integers"), "{text}");
    let wrong = Embedding::new(4, 2).padding_idx(4);
    wrong.initialize(0);
    assert!(
        fault(&wrong.forward(&Tensor::zeros(DType::I32, [2])))
            .contains("padding_idx 4 is not a row of the table")
    );
    let empty = Embedding::new(0, 2);
    empty.initialize(0);
    assert!(
        fault(&empty.forward(&Tensor::zeros(DType::I32, [2]))).contains("no element along axis 0")
    );
}

#[test]
fn the_variance_of_a_batch_far_from_0_is_exact_for_any_running_mean() {
    let deviations: Vec<f32> = (0..64).map(|i| (i as f32 * 0.7).sin()).collect();
    let mean = deviations.iter().map(|v| f64::from(*v)).sum::<f64>() / 64.0;
    let var = deviations.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / 64.0;
    let expected: Vec<f64> =
        deviations.iter().map(|v| (f64::from(*v) - mean) / (var + 1e-5).sqrt()).collect();
    let x = Tensor::from_slice(&deviations, [64, 1, 1, 1]) + 4096.0;
    // The tolerance covers the rounding of the input to multiples of 2⁻¹¹.
    for near in [0.0, 4000.0, 4096.5, f32::NAN, f32::INFINITY] {
        let bn = BatchNorm2d::new(1).affine(false);
        bn.initialize(0);
        bn.buffers()[0].1.set(Tensor::full(DType::F32, [1], near.into()));
        let y = values(&bn.forward(&x));
        for (y, expected) in y.iter().zip(&expected) {
            assert!((y - expected).abs() <= 6e-4, "{near}: {y}, {expected}");
        }
    }
    let flat = BatchNorm1d::new(1).affine(false);
    let y = values(&flat.forward(&x.reshape([64, 1])));
    assert_close(&y, &expected, 0.0, 6e-4, "one dimension");
}

#[test]
fn a_long_index_is_not_taken_for_padding() {
    let bag = EmbeddingBag::new(4, 2).mode(BagMode::Sum).padding_idx(0);
    bag.weight.set(Tensor::ones(DType::F32, [4, 2]));
    let indices = Tensor::from_slice(&[1i64, 0, 1, 1 << 32], [2, 2]);
    let message = fault(&bag.forward(&indices));
    assert!(message.contains("an index is 4294967296, but the table has 4 rows"), "{message}");
    let actual = values(&bag.forward(&on_the_device(&indices)));
    assert!(actual[..2] == [1.0; 2] && actual[2..].iter().all(|x| x.is_nan()), "{actual:?}");
}
