//! Losses against PyTorch: values, and the gradients of predictions and targets.

use crate::common::reference::{Expected, cases, expect, flag, inputs, number, numbers, word};
use fulmen_nn::loss::{
    BceLoss, BceWithLogitsLoss, CosineEmbeddingLoss, CrossEntropyLoss, CtcLoss, DpoLoss,
    DpoLossType, GanLoss, GaussianNllLoss, HingeEmbeddingLoss, HuberLoss, KlDivLoss,
    MarginRankingLoss, NllLoss, PoissonNllLoss, Reduction, SequenceLogProbs, SigmoidFocalLoss,
    SmoothL1Loss, TripletMarginLoss, cosine_similarity, l1_loss, mse_loss,
};
use fulmen_tensor::Tensor;
use serde_json::Value;

fn reduction(attrs: &Value) -> Reduction {
    match word(&attrs["reduction"], "reduction") {
        "mean" => Reduction::Mean,
        "sum" => Reduction::Sum,
        "none" => Reduction::None,
        other => panic!("no reduction {other}"),
    }
}

/// An attribute that is a vector.
fn vector(value: &Value) -> Option<Tensor> {
    value.as_array().map(|list| {
        let numbers: Vec<f32> = numbers(value).into_iter().map(|v| v as f32).collect();
        Tensor::from_slice(&numbers, [list.len()])
    })
}

/// Compares all cases of a file with the results of `loss` for their operation, attributes and
/// inputs.
fn check(file: &str, loss: impl Fn(&str, &Value, &[Tensor]) -> Tensor) {
    let mut expected = Expected::within(1e-5, 2e-6);
    for case in cases(file) {
        let inputs = inputs(&case);
        let value = loss(word(&case["op"], "op"), &case["attrs"], &inputs);
        expect(&mut expected, &case, &inputs, &[], &value);
    }
    expected.check();
}

fn of_classes(op: &str, attrs: &Value, inputs: &[Tensor]) -> Tensor {
    let ignored = attrs["ignore_index"].as_i64();
    let weight = vector(&attrs["weight"]);
    match op {
        "cross_entropy" => {
            let mut loss = CrossEntropyLoss::new().class_axis(1).reduction(reduction(attrs));
            if let Some(share) = attrs["label_smoothing"].as_f64() {
                loss = loss.label_smoothing(share);
            }
            loss = ignored.into_iter().fold(loss, CrossEntropyLoss::ignore_index);
            weight.iter().fold(loss, CrossEntropyLoss::weight).forward(&inputs[0], &inputs[1])
        }
        "nll_loss" => {
            let loss = NllLoss::new().class_axis(1).reduction(reduction(attrs));
            let loss = ignored.into_iter().fold(loss, NllLoss::ignore_index);
            weight.iter().fold(loss, NllLoss::weight).forward(&inputs[0], &inputs[1])
        }
        "mse_loss" => mse_loss(&inputs[0], &inputs[1], reduction(attrs)),
        other => panic!("no loss {other}"),
    }
}

#[test]
fn losses_of_classes_are_pytorchs() {
    check("losses.json", of_classes);
    check("losses_classes.json", of_classes);
}

#[test]
fn losses_of_numbers_are_pytorchs() {
    check("losses_numbers.json", |op, attrs, inputs| {
        let x = &inputs[0];
        let t = &inputs[1];
        match op {
            "l1_loss" => l1_loss(x, t, reduction(attrs)),
            "huber_loss" => HuberLoss::new()
                .delta(number(&attrs["delta"]))
                .reduction(reduction(attrs))
                .forward(x, t),
            "smooth_l1_loss" => SmoothL1Loss::new()
                .beta(number(&attrs["beta"]))
                .reduction(reduction(attrs))
                .forward(x, t),
            "bce" => {
                let loss = BceLoss::new().reduction(reduction(attrs));
                vector(&attrs["weight"]).iter().fold(loss, BceLoss::weight).forward(x, t)
            }
            "bce_with_logits" => {
                let loss = BceWithLogitsLoss::new().reduction(reduction(attrs));
                let loss = vector(&attrs["weight"]).iter().fold(loss, BceWithLogitsLoss::weight);
                vector(&attrs["pos_weight"])
                    .iter()
                    .fold(loss, BceWithLogitsLoss::pos_weight)
                    .forward(x, t)
            }
            "focal" => SigmoidFocalLoss::new()
                .alpha(attrs["alpha"].as_f64())
                .gamma(number(&attrs["gamma"]))
                .reduction(reduction(attrs))
                .forward(x, t),
            "kl_div" => {
                let loss = KlDivLoss::new().log_target(flag(&attrs["log_target"]));
                let batchmean = attrs["reduction"] == "batchmean";
                let loss =
                    if batchmean { loss.batchmean(true) } else { loss.reduction(reduction(attrs)) };
                loss.forward(x, t)
            }
            "gaussian_nll_loss" => {
                let loss =
                    GaussianNllLoss::new().full(flag(&attrs["full"])).reduction(reduction(attrs));
                loss.forward(x, t, &inputs[2])
            }
            "poisson_nll_loss" => PoissonNllLoss::new()
                .log_input(flag(&attrs["log_input"]))
                .full(flag(&attrs["full"]))
                .reduction(reduction(attrs))
                .forward(x, t),
            other => panic!("no loss {other}"),
        }
    });
}

fn game(attrs: &Value) -> GanLoss {
    match word(&attrs["game"], "game") {
        "non_saturating" => GanLoss::NonSaturating,
        "hinge" => GanLoss::Hinge,
        "least_squares" => GanLoss::LeastSquares,
        "wasserstein" => GanLoss::Wasserstein,
        other => panic!("no game {other}"),
    }
}

#[test]
fn losses_of_vectors_and_gans_are_pytorchs() {
    check("losses_vectors.json", |op, attrs, inputs| {
        let margin = attrs["margin"].as_f64();
        match op {
            "hinge_embedding_loss" => {
                let loss = HingeEmbeddingLoss::new().reduction(reduction(attrs));
                margin
                    .into_iter()
                    .fold(loss, HingeEmbeddingLoss::margin)
                    .forward(&inputs[0], &inputs[1])
            }
            "margin_ranking_loss" => {
                let loss = MarginRankingLoss::new()
                    .reduction(reduction(attrs))
                    .margin(number(&attrs["margin"]));
                loss.forward(&inputs[0], &inputs[1], &inputs[2])
            }
            "triplet_margin_loss" => {
                let mut loss = TripletMarginLoss::new()
                    .reduction(reduction(attrs))
                    .swap(attrs["swap"] == true);
                loss = margin.into_iter().fold(loss, TripletMarginLoss::margin);
                loss = attrs["p"].as_f64().into_iter().fold(loss, TripletMarginLoss::p);
                loss = attrs["eps"].as_f64().into_iter().fold(loss, TripletMarginLoss::eps);
                loss.forward(&inputs[0], &inputs[1], &inputs[2])
            }
            "cosine_embedding_loss" => {
                let loss = CosineEmbeddingLoss::new()
                    .reduction(reduction(attrs))
                    .margin(number(&attrs["margin"]));
                loss.forward(&inputs[0], &inputs[1], &inputs[2])
            }
            "cosine_similarity" => {
                cosine_similarity(&inputs[0], &inputs[1], number(&attrs["axis"]) as isize, 1e-8)
            }
            "discriminator" => game(attrs).discriminator(&inputs[0], &inputs[1], reduction(attrs)),
            "generator" => game(attrs).generator(&inputs[0], reduction(attrs)),
            other => panic!("no loss {other}"),
        }
    });
}

#[test]
fn connectionist_temporal_classification_is_pytorchs() {
    check("ctc.json", |_, attrs, inputs| {
        let blank = number(&attrs["blank"]) as usize;
        let loss = CtcLoss::new()
            .blank(blank)
            .zero_infinity(flag(&attrs["zero_infinity"]))
            .reduction(reduction(attrs));
        loss.forward(&inputs[0].log_softmax(-1), &inputs[1], &inputs[2], &inputs[3])
    });
}

#[test]
fn losses_and_rewards_of_preferences_are_trls() {
    check("preference.json", |op, attrs, inputs| {
        let log_probs = |logits: &Tensor, labels: &Tensor| {
            let loss = CrossEntropyLoss::new().ignore_index(-100).reduction(Reduction::None);
            SequenceLogProbs::of_losses(loss.forward(logits, labels), labels, -100)
        };
        let loss_type = match word(&attrs["loss_type"], "loss_type") {
            "sigmoid" => DpoLossType::Sigmoid,
            "hinge" => DpoLossType::Hinge,
            "ipo" => DpoLossType::Ipo,
            other => panic!("no loss {other}"),
        };
        let loss = DpoLoss::new()
            .loss_type(loss_type)
            .beta(number(&attrs["beta"]))
            .label_smoothing(number(&attrs["label_smoothing"]))
            .reduction(reduction(attrs));
        let chosen = log_probs(&inputs[0], &inputs[2]);
        let rejected = log_probs(&inputs[1], &inputs[3]);
        let output = loss.forward(&chosen, &rejected, &inputs[4], &inputs[5]);
        match op {
            "dpo_loss" => output.loss,
            "rewards/chosen" => output.chosen_rewards,
            "rewards/rejected" => output.rejected_rewards,
            "rewards/margins" => output.margins(),
            "rewards/accuracies" => output.accuracies(),
            other => panic!("no operation {other}"),
        }
    });
}
