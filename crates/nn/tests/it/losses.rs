//! What losses do at their limits: half precision, masks, and tensors that do not fit. Their values
//! against PyTorch are in `reference_losses.rs`.

use crate::common::{assert_close, fault, on_the_device, values};
use fulmen_nn::activation::{log_sigmoid, mish, softplus};
use fulmen_nn::loss::*;
use fulmen_nn::{Linear, Module};
use fulmen_tensor::{DType, Runtime, Tensor, grad};

fn f32s(elements: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(elements, shape)
}

/// A loss as a function of one tensor.
type Loss<'a> = dyn Fn(&Tensor) -> Tensor + 'a;

#[test]
fn second_derivatives_of_losses_at_0_are_those_of_the_sigmoid() {
    // Losses made of −log σ(x). Its second derivative is σ(x)·(1 − σ(x)), which is ¼ at 0.
    let target = f32s(&[0.0, 1.0, 0.25], &[3]);
    let yes = target.ones_like();
    let losses: Vec<(&str, Box<Loss<'_>>, f64)> = vec![
        ("bce", Box::new(|x| binary_cross_entropy_with_logits(x, &target, Reduction::Sum)), 0.25),
        (
            "focal",
            Box::new(|x| {
                SigmoidFocalLoss::new()
                    .alpha(None)
                    .gamma(0.0)
                    .reduction(Reduction::Sum)
                    .forward(x, &yes)
            }),
            0.25,
        ),
        ("softplus", Box::new(|x| softplus(x, 1.0, 20.0).sum_all()), 0.25),
        ("log sigmoid", Box::new(|x| -log_sigmoid(x).sum_all()), 0.25),
        ("mish", Box::new(|x| mish(x).sum_all()), 0.64),
    ];
    for (name, loss, expected) in losses {
        let x = f32s(&[0.0; 3], &[3]);
        let slope = grad(&loss(&x), &[&x]).remove(0);
        let curvature = grad(&slope.sum_all(), &[&x]).remove(0);
        assert_close(&values(&curvature), &[expected; 3], 1e-6, 0.0, name);
    }
}

#[test]
fn half_precision_is_computed_with_as_f32() {
    // 300 losses of about 100: f16 cannot hold their sum, and bf16 cannot count beyond 256.
    let x = Tensor::full(DType::F32, [300, 2], 10.0);
    let zero = x.zeros_like();
    let index = Tensor::zeros(DType::I32, [300]);
    let losses: Vec<(&str, Box<Loss<'_>>)> = vec![
        ("mse", Box::new(|x| mse_loss(x, &zero, Reduction::Sum))),
        ("l1", Box::new(|x| l1_loss(x, &zero, Reduction::Sum))),
        ("huber", Box::new(|x| huber_loss(x, &zero, 1.0, Reduction::Sum))),
        ("smooth l1", Box::new(|x| smooth_l1_loss(x, &zero, 1.0, Reduction::Sum))),
        ("cross entropy", Box::new(|x| cross_entropy(x, &index, Reduction::Sum))),
        ("nll", Box::new(|x| nll_loss(&-x, &index, Reduction::Sum))),
        (
            "bce with logits",
            Box::new(|x| binary_cross_entropy_with_logits(x, &zero, Reduction::Sum)),
        ),
        ("focal", Box::new(|x| sigmoid_focal_loss(x, &zero, Reduction::Sum))),
        ("bce", Box::new(|x| binary_cross_entropy(&(x * 0.0625), &zero, Reduction::Sum))),
        ("kl", Box::new(|x| kl_div(&-x, &(&zero + 0.5), Reduction::Sum))),
        ("gaussian", Box::new(|x| gaussian_nll_loss(x, &zero, &(&zero + 1.0), Reduction::Sum))),
        ("poisson", Box::new(|x| poisson_nll_loss(x, &zero, Reduction::Sum))),
        (
            "hinge embedding",
            Box::new(|x| hinge_embedding_loss(x, &x.ones_like(), 1.0, Reduction::Sum)),
        ),
        ("ranking", Box::new(|x| margin_ranking_loss(&-x, x, &x.ones_like(), 0.0, Reduction::Sum))),
        ("triplet", Box::new(|x| triplet_margin_loss(x, &-x, x, 1.0, Reduction::Sum))),
        (
            "cosine",
            Box::new(|x| {
                cosine_embedding_loss(x, &-x, &Tensor::ones(DType::I32, [300]), 0.0, Reduction::Sum)
            }),
        ),
        ("gan", Box::new(|x| GanLoss::NonSaturating.discriminator(&-x, x, Reduction::Sum))),
        ("masked", Box::new(|x| masked_mean(x, &Tensor::ones(DType::Bool, [300])))),
    ];
    let mut names = Vec::new();
    let mut all = Vec::new();
    for (name, loss) in &losses {
        let whole = loss(&x);
        for half in [DType::Bf16, DType::F16] {
            let value = loss(&x.to_dtype(half));
            assert_eq!(value.dtype(), DType::F32, "{name}");
            let gradient = grad(&value, &[&x])[0].clone();
            assert_eq!(gradient.dtype(), DType::F32, "{name}");
            all.push(value - &whole);
            names.push(name);
        }
        assert_eq!(loss(&x.to_dtype(DType::F64)).dtype(), DType::F64, "{name}");
        all.push(whole);
        names.push(name);
    }
    let values =
        Runtime::global().and_then(|r| r.eval_many(&all)).unwrap_or_else(|e| panic!("{e}"));
    let numbers: Vec<f64> = values.iter().map(|v| v.to_f64()[0]).collect();
    for (chunk, name) in numbers.chunks(3).zip(names.chunks(3)) {
        assert_eq!(chunk[..2], [0.0, 0.0], "{}", name[0]);
        assert!(chunk[2].is_finite() && chunk[2] != 0.0, "{}: {}", name[0], chunk[2]);
    }
}

#[test]
fn what_is_masked_adds_nothing_to_the_loss_or_its_gradient() {
    let logits = f32s(&[1.0, 2.0, 3.0, 0.5, f32::NAN, f32::INFINITY, 0.0, -1.0], &[2, 2, 2]);
    let target = Tensor::from_slice(&[0i32, 1, 0, 1], [2, 2]);
    let losses = cross_entropy(&logits, &target, Reduction::None);
    let mask = Tensor::from_slice(&[true, true, false, true], [2, 2]);
    let loss = masked_mean(&losses, &mask);
    let kept = f32s(&[1.0, 2.0, 3.0, 0.5, 0.0, -1.0], &[3, 2]);
    let expected = cross_entropy(&kept, &Tensor::from_slice(&[0i32, 1, 1], [3]), Reduction::Mean);
    assert_close(&values(&loss), &values(&expected), 1e-6, 0.0, "masked");

    // A mask of weights: the first row counts twice, the second not at all. The mask broadcasts
    // over the last axis.
    let x = f32s(&[1.0, 2.0, 3.0, 5.0], &[2, 2]);
    let weighted = masked_mean(&x, &f32s(&[2.0, 0.0], &[2]));
    assert_eq!(values(&weighted), [1.5]);
    assert_eq!(values(&grad(&weighted, &[&x])[0]), [0.5, 0.5, 0.0, 0.0]);
    let all_masked = masked_mean(&x, &Tensor::zeros(DType::Bool, [2]));
    assert_eq!(values(&all_masked), [0.0]);
    assert_eq!(values(&grad(&all_masked, &[&x])[0]), [0.0; 4]);
    assert_eq!(values(&masked_mean(&Tensor::scalar(3.0f32), &Tensor::scalar(true))), [3.0]);
    assert_eq!(
        values(&masked_mean(&Tensor::zeros(DType::F32, [0, 3]), &Tensor::zeros(DType::Bool, [0]))),
        [0.0]
    );
}

#[test]
fn probabilities_of_impossible_classes_do_not_spoil_the_loss() {
    let logits = f32s(&[0.0, f32::NEG_INFINITY, 0.0], &[1, 3]);
    let target = f32s(&[0.5, 0.0, 0.5], &[1, 3]);
    let loss = cross_entropy(&logits, &target, Reduction::Mean);
    assert_close(&values(&loss), &[2f64.ln()], 1e-6, 0.0, "loss");
    assert_close(&values(&grad(&loss, &[&logits])[0]), &[0.0; 3], 0.0, 1e-7, "gradient");
    let loss = cross_entropy(&logits, &f32s(&[0.0, 1.0, 0.0], &[1, 3]), Reduction::Mean);
    assert_eq!(values(&loss), [f64::INFINITY]);
}

#[test]
fn a_class_that_is_not_there_is_nan_in_every_loss_of_classes() {
    let x = f32s(&[0.0, -1.0, -2.0, -3.0], &[2, 2]).log_softmax(-1);
    let known = Tensor::from_slice(&[1i32, -1], [2]);
    let target = on_the_device(&known);
    let weight = f32s(&[1.0, 2.0], &[2]);
    for loss in ["nll_loss", "cross_entropy"] {
        let text = match loss {
            "nll_loss" => fault(&nll_loss(&x, &known, Reduction::None)),
            _ => fault(&cross_entropy(&x, &known, Reduction::Mean)),
        };
        let expected = format!("{loss}: a target is -1, but there are 2 classes (row 1)");
        assert!(text.starts_with(&expected) && text.contains("losses.rs:"), "{text}");
    }
    let ignored = CrossEntropyLoss::new().ignore_index(-1).forward(&x, &known);
    assert!(values(&ignored)[0].is_finite());
    for losses in [
        nll_loss(&x, &target, Reduction::None),
        NllLoss::new().weight(&weight).reduction(Reduction::None).forward(&x, &target),
        CrossEntropyLoss::new()
            .weight(&weight)
            .label_smoothing(0.1)
            .reduction(Reduction::None)
            .forward(&x, &target),
    ] {
        let actual = values(&losses);
        assert!(actual[0].is_finite() && actual[1].is_nan(), "{actual:?}");
    }
}

#[test]
fn a_negative_variance_and_a_probability_beyond_one_are_nan() {
    let x = f32s(&[0.5], &[1]);
    let one = f32s(&[1.0], &[1]);
    assert!(values(&gaussian_nll_loss(&x, &one, &f32s(&[-1.0], &[1]), Reduction::Sum))[0].is_nan());
    for p in [1.5, -0.5] {
        assert!(
            values(&binary_cross_entropy(&f32s(&[p], &[1]), &one, Reduction::Sum))[0].is_nan(),
            "{p}"
        );
    }
}

#[test]
fn what_does_not_fit_is_refused_with_shapes_and_line() {
    let x = Tensor::zeros(DType::F32, [4, 3]);
    let y = Tensor::zeros(DType::F32, [4]);
    let int = Tensor::zeros(DType::I32, [4]);
    let mean = Reduction::Mean;
    let check = |output: &Tensor, expected: &str| {
        let text = fault(output);
        assert!(text.contains(expected) && text.contains("losses.rs:"), "{text}");
    };
    check(
        &mse_loss(&x, &y, mean),
        "mse_loss: the prediction is f32[4, 3], the target is f32[4]; make their shapes equal",
    );
    check(&l1_loss(&x, &y, mean), "l1_loss: the prediction");
    check(&huber_loss(&x, &x, 0.0, mean), "huber_loss: delta must be above 0, but it is 0");
    check(&smooth_l1_loss(&x, &x, -1.0, mean), "beta must be at least 0, but it is -1");
    check(
        &mse_loss(&int, &int, mean),
        "the prediction must be floating-point numbers, but it is i32[4]",
    );
    check(
        &binary_cross_entropy_with_logits(&y, &x, mean),
        "binary_cross_entropy_with_logits: the prediction is f32[4]",
    );
    let weighted = BceWithLogitsLoss::new().pos_weight(&y);
    check(
        &weighted.forward(&x, &x),
        "the weight of positives is f32[4], which does not broadcast to the losses, f32[4, 3]",
    );
    check(
        &BceLoss::new().weight(&y).forward(&x, &x),
        "the weight is f32[4], which does not broadcast",
    );
    check(
        &CrossEntropyLoss::new().weight(&y).forward(&x, &int),
        "the logits f32[4, 3] have 3 classes, but the weight is f32[4]",
    );
    check(
        &CrossEntropyLoss::new().ignore_index(1).forward(&x, &x),
        "ignore_index does not apply to targets that are prob",
    );
    check(
        &CrossEntropyLoss::new().forward(&x, &y),
        "or probabilities of the logits' shape, but it is f32[4]",
    );
    check(
        &nll_loss(&x, &x, mean),
        "nll_loss: the targets must be integer indices of the classes, but they are f32[4, 3]",
    );
    check(&kl_div(&x, &y, mean), "kl_div: the prediction is f32[4, 3]");
    check(
        &KlDivLoss::new().batchmean(true).forward(&Tensor::scalar(0f32), &Tensor::scalar(0f32)),
        "scalars have none",
    );
    check(
        &gaussian_nll_loss(&x, &x, &Tensor::zeros(DType::F32, [3]), mean),
        "the prediction is f32[4, 3], the variance f32[3]",
    );
    check(
        &triplet_margin_loss(&x, &x, &y, 1.0, mean),
        "the anchor is f32[4, 3], the positive is f32[4, 3], the negative is f32[4]",
    );
    check(&TripletMarginLoss::new().p(0.0).forward(&x, &x, &x), "p must be above 0, but it is 0");
    check(
        &margin_ranking_loss(&y, &y, &x, 0.0, mean),
        "the first is f32[4], the target is f32[4, 3]",
    );
    check(&hinge_embedding_loss(&x, &int, 1.0, mean), "hinge_embedding_loss");
    check(
        &cosine_embedding_loss(&x, &x, &x, 0.0, mean),
        "the target is f32[4, 3], the cosine of the vectors is f32[4]",
    );
    check(&cosine_similarity(&x, &x, 2, 1e-8), "cosine_similarity");
    check(&cosine_similarity(&x, &y, -1, 1e-8), "the first is f32[4, 3], the second is f32[4]");
    check(
        &GanLoss::Hinge.discriminator(&x, &y, Reduction::None),
        "the real is f32[4, 3], the generated is f32[4]",
    );
    check(
        &GanLoss::Hinge.generator(&int, mean),
        "the logits of generated samples must be floating-point numbers",
    );
    check(&SigmoidFocalLoss::new().alpha(2.0).forward(&x, &x), "alpha must be between 0 and 1");
    check(
        &masked_mean(&x, &Tensor::zeros(DType::Bool, [3])),
        "a mask of their first axes, got losses f32[4, 3] and a mask bool[3]",
    );
    check(&masked_mean(&y, &Tensor::zeros(DType::Bool, [4, 3])), "masked_mean");
}

#[test]
fn a_loss_may_be_a_field_of_a_module() {
    #[derive(Module)]
    struct Net {
        fc: Linear,
        criterion: CrossEntropyLoss,
        game: GanLoss,
    }
    let net =
        Net { fc: Linear::new(2, 3), criterion: CrossEntropyLoss::new(), game: GanLoss::default() };
    net.initialize(0);
    assert_eq!(net.parameters().len(), 2);
    let x = Tensor::zeros(DType::F32, [1, 2]);
    let y = Tensor::zeros(DType::I32, [1]);
    assert!(net.criterion.forward(&net.fc.forward(&x), &y).fault().is_none());
    assert!(net.game.generator(&x, Reduction::Mean).fault().is_none());
}

#[test]
fn a_sequence_with_what_is_no_label_or_no_length_is_nan_and_no_other() {
    let log_p = Tensor::zeros(DType::F32, [4, 6, 3]).log_softmax(-1);
    let ints = |values: &[i32]| Tensor::from_slice(values, [6]);
    let targets = Tensor::from_slice(&[1i32, 2, 1, 2, 1, 3, 1, -1, 1, 2, 1, 2], [6, 2]);
    // In turn: a valid sequence, too many steps, a class that does not exist, a negative one, too
    // many labels, a valid one.
    let loss = CtcLoss::new().reduction(Reduction::None);
    let steps = ints(&[4, 5, 4, 4, 4, 4]);
    let labels = ints(&[2, 2, 2, 2, 3, 1]);
    let text = fault(&loss.forward(&log_p, &targets, &steps, &labels));
    let expected = "ctc_loss: an input length is 5, but it must be from 0 to 4 (row 1)";
    assert!(text.starts_with(expected), "{text}");
    let steps = on_the_device(&steps);
    let labels = on_the_device(&labels);
    let losses = loss.forward(&log_p, &targets, &steps, &labels);
    let actual = values(&losses);
    let nan: Vec<bool> = actual.iter().map(|loss| loss.is_nan()).collect();
    assert_eq!(nan, [false, true, true, true, true, false], "{actual:?}");
    assert_eq!(
        CtcLoss::new()
            .forward(&log_p.to_dtype(DType::Bf16), &targets, &ints(&[4; 6]), &ints(&[1; 6]))
            .dtype(),
        DType::F32
    );
    let check = |output: &Tensor, expected: &str| {
        let text = fault(output);
        assert!(
            text.starts_with("ctc_loss: ")
                && text.contains(expected)
                && text.contains("losses.rs:"),
            "{text}"
        );
    };
    let lengths = ints(&[1; 6]);
    check(
        &loss.blank(3).forward(&log_p, &targets, &lengths, &lengths),
        "the blank is class 3, and there are 3 classes",
    );
    check(
        &loss.forward(&log_p, &lengths, &lengths, &lengths),
        "needs log-probabilities [time, batch, classes]",
    );
    check(
        &loss.forward(&log_p, &targets, &lengths, &targets),
        "lengths [batch] that are integers, got f32[4, 6, 3], i32[6, 2]",
    );
    check(
        &loss.forward(&log_p, &targets.to_dtype(DType::F32), &lengths, &lengths),
        "that are integers",
    );
    let empty = Tensor::zeros(DType::F32, [0, 1, 3]);
    let no_label = Tensor::zeros(DType::I32, [1, 0]);
    let zero = Tensor::zeros(DType::I32, [1]);
    // The blank is not a valid label, and lengths are checked before they are converted to i32.
    let long = |n: i64| Tensor::from_slice(&[4, n, 4], [3]);
    let log_p = log_p.narrow(1, 0, 3);
    let labels = Tensor::from_slice(&[1i32, 2, 1, 2, 1, 0], [3, 2]);
    let four = long(4);
    let two = Tensor::from_slice(&[2i64, 2, 2], [3]);
    let wrapped = long((1 << 32) + 4);
    let wrapped_label = Tensor::from_slice(&[2i64, 1 << 32, 1], [3]);
    for (lengths, label_lengths, expected) in [
        (&four, &two, [false, false, true]),
        (&wrapped, &two, [false, true, true]),
        (&four, &wrapped_label, [false, true, false]),
    ] {
        let lengths = on_the_device(lengths);
        let label_lengths = on_the_device(label_lengths);
        let actual = values(&loss.forward(&log_p, &labels, &lengths, &label_lengths));
        assert_eq!(
            actual.iter().map(|loss| loss.is_nan()).collect::<Vec<_>>(),
            expected,
            "{actual:?}"
        );
    }
    assert_eq!(values(&ctc_loss(&empty, &no_label, &zero, &zero, Reduction::None)), [0.0]);
}

#[test]
fn vectors_whose_squared_length_overflows_have_a_cosine_and_a_distance() {
    let unit = 2f32.powi(100);
    let a = f32s(&[3.0 * unit, 4.0 * unit], &[1, 2]);
    let b = f32s(&[4.0 * unit, 3.0 * unit], &[1, 2]);
    let cosine = cosine_similarity(&a, &b, -1, 1e-8);
    assert_close(&values(&cosine), &[24.0 / 25.0], 1e-6, 0.0, "cosine_similarity");
    let zero = a.zeros_like();
    let loss = triplet_margin_loss(&a, &zero, &zero, 0.0, Reduction::Sum)
        + triplet_margin_loss(&zero, &a, &zero, 0.0, Reduction::Sum);
    assert_close(&values(&loss), &[5.0 * f64::from(unit)], 1e-6, 0.0, "triplet_margin_loss");
}
