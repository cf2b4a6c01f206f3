//! What metrics do at their limits: masks, NaN, targets outside the classes, half precision, and
//! tensors that do not fit. Their values against scikit-learn are in `reference_metrics.rs`.

use std::sync::Arc;

use crate::common::{assert_close, on_the_device, values};
use fulmen_nn::metrics::{
    Accuracy, Auroc, Average, AveragePrecision, Bleu, ConfusionMatrix, F1, Mean, MeanAbsoluteError,
    MeanSquaredError, Metric, MetricState, Normalize, Perplexity, Precision, R2Score, Recall, Sums,
    Value,
};
use fulmen_tensor::{DType, Tensor, autocast};

fn f32s(elements: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(elements, shape)
}

fn i32s(elements: &[i32]) -> Tensor {
    Tensor::from_slice(elements, [elements.len()])
}

#[track_caller]
fn value(statistics: &MetricState) -> Value {
    match statistics.eval() {
        Ok(sums) => sums.compute(),
        Err(error) => panic!("{error}"),
    }
}

#[track_caller]
fn scalar(statistics: &MetricState) -> f64 {
    match value(statistics) {
        Value::Scalar(value) => value,
        other => panic!("{other:?} is not a single number"),
    }
}

#[test]
fn what_is_masked_does_not_count_whatever_it_is() {
    let logits = f32s(&[0.0, 1.0, f32::NAN, f32::NAN, 1.0, 0.0], &[3, 2]);
    let target = i32s(&[1, 7, 0]);
    let mask = Tensor::from_slice(&[true, false, true], [3]);
    assert_eq!(scalar(&Accuracy::new(2).update(&logits, &target).masked(&mask)), 1.0);
    assert_eq!(scalar(&F1::new(2).update(&logits, &target).masked(&mask)), 1.0);
    let matrix = value(&ConfusionMatrix::new(2).update(&logits, &target).masked(&mask));
    assert_eq!(matrix, Value::Matrix(vec![vec![1.0, 0.0], vec![0.0, 1.0]]));
    assert!(scalar(&Perplexity::new().update(&logits, &target).masked(&mask)).is_finite());
    let scores = f32s(&[0.9, f32::NAN, 0.1], &[3]);
    let yes = i32s(&[1, 9, 0]);
    assert_eq!(scalar(&Auroc::binary().update(&scores, &yes).masked(&mask)), 1.0);
    assert_eq!(scalar(&AveragePrecision::binary().update(&scores, &yes).masked(&mask)), 1.0);
    assert_eq!(scalar(&R2Score::new().update(&scores, &scores).masked(&mask)), 1.0);
    // Several masks combine, of numbers or booleans, over the first axes or all of them.
    let x = f32s(&[1.0, 2.0, 4.0, 8.0], &[2, 2]);
    let mean = Mean::new()
        .update(&x)
        .masked(&f32s(&[1.0, 0.0], &[2]))
        .masked(&i32s(&[1, 0, 1, 1]).reshape([2, 2]));
    assert_eq!(scalar(&mean), 1.0);
    assert!(scalar(&mean.masked(&i32s(&[0, 1]))).is_nan(), "of nothing");
}

#[test]
fn a_target_that_is_no_class_is_nan_and_scores_of_nan_are_wrong() {
    let logits = f32s(&[0.0, 1.0, 1.0, 0.0], &[2, 2]);
    for wrong in [2, -1] {
        let known = i32s(&[1, wrong]);
        let text = Accuracy::new(2).update(&logits, &known).eval().unwrap_err().to_string();
        let expected = format!("Accuracy: a target is {wrong}, but there are 2 classes (row 1)");
        assert!(text.starts_with(&expected) && text.contains("metrics.rs:"), "{text}");
        let target = on_the_device(&known);
        assert!(scalar(&Accuracy::new(2).update(&logits, &target)).is_nan());
        assert!(scalar(&Auroc::new(2).update(&logits.softmax(-1), &target)).is_nan());
        assert!(scalar(&Perplexity::new().update(&logits, &target)).is_nan());
        assert!(
            value(&ConfusionMatrix::new(2).update(&logits, &target))
                .elements()
                .iter()
                .all(|n| n.is_nan())
        );
        let per_class = F1::new(2).average(Average::None).update(&logits, &target);
        assert!(value(&per_class).elements().iter().all(|n| n.is_nan()));
        assert!(scalar(&Recall::binary().update(&f32s(&[0.1, 0.9], &[2]), &target)).is_nan());
    }
    // Indices that would wrap to a class if converted to i32 or i64.
    let far = on_the_device(&Tensor::from_slice(&[1u64, (1 << 63) + 1], [2]));
    assert!(scalar(&Accuracy::new(2).update(&logits, &far)).is_nan());
    let nan = f32s(&[f32::NAN, 1.0, 1.0, 0.0], &[2, 2]);
    for k in [1, 2] {
        assert_eq!(scalar(&Accuracy::new(2).top_k(k).update(&nan, &i32s(&[1, 0]))), 0.5, "{k}");
    }
    // Scores outside 0 to 1 are not accepted as probabilities.
    for scores in [[0.5, 3.0], [0.5, -0.5], [0.5, f32::NAN]] {
        assert!(
            scalar(&Auroc::binary().update(&f32s(&scores, &[2]), &i32s(&[0, 1]))).is_nan(),
            "{scores:?}"
        );
    }
    assert!(
        scalar(&Auroc::binary().update(&f32s(&[0.5, 0.6], &[2]), &i32s(&[1, 1]))).is_nan(),
        "no negative"
    );
}

/// XLA rounds these logits differently in different loops, so that a class was before itself. It
/// does so only with all optimizations, which tests set at the start of their process.
#[test]
fn a_class_is_among_the_largest_although_its_logit_is_computed_again() {
    const OPTIMIZED: &str = "FULMEN_TEST_PROGRAMS_OPTIMIZED";
    if std::env::var_os(OPTIMIZED).is_some() {
        return compare_ranks_of_normalized_logits();
    }
    let name = "metrics::a_class_is_among_the_largest_although_its_logit_is_computed_again";
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(OPTIMIZED, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
}

fn compare_ranks_of_normalized_logits() {
    for (batch, k) in [(13, 3), (40, 2), (40, 3)] {
        let dims = [batch, 3, 5];
        let columns = 15;
        let numbers: Vec<f32> =
            (0..batch * columns).map(|i| ((i * 7) as f32 * 0.618).sin()).collect();
        let x = f32s(&numbers, &dims);
        let y = (&x - x.mean_keepdim(-1)) / (x.var_keepdim(-1) + 0.1).sqrt();
        let logits = y.reshape([batch, columns]);
        // The class of each row with the `k`-th largest logit.
        let mut target = Vec::new();
        for row in values(&logits).chunks(columns) {
            let mut classes: Vec<usize> = (0..columns).collect();
            classes.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
            target.push(classes[k - 1] as i32);
        }
        let accuracy = Accuracy::new(columns).top_k(k).update(&logits, &i32s(&target));
        assert_eq!(scalar(&accuracy), 1.0, "{batch} rows, the {k} largest");
    }
}

#[test]
fn the_first_of_equal_scores_is_the_largest() {
    let logits = Tensor::zeros(DType::F32, [3, 3]);
    for (k, expected) in [(1, 1.0 / 3.0), (2, 2.0 / 3.0), (3, 1.0)] {
        let actual = scalar(&Accuracy::new(3).top_k(k).update(&logits, &i32s(&[0, 1, 2])));
        assert_close(&[actual], &[expected], 1e-15, 0.0, "top k");
    }
}

#[test]
fn binning_costs_at_most_half_the_pairs_that_share_a_bin() {
    let n = 400;
    let scores: Vec<f32> = (0..n).map(|i| ((i * 7919 % 997) as f32 + 0.5) / 997.0).collect();
    let yes: Vec<i32> =
        (0..n).map(|i| ((i * 31 % 17) * 58 > (i * 7919 % 997)) as i32 ^ 1).collect();
    let mut won = 0.0;
    let mut pairs = 0.0;
    for i in (0..n).filter(|&i| yes[i] == 1) {
        for j in (0..n).filter(|&j| yes[j] == 0) {
            pairs += 1.0;
            won += if scores[i] > scores[j] {
                1.0
            } else if scores[i] == scores[j] {
                0.5
            } else {
                0.0
            };
        }
    }
    let mut last = f64::INFINITY;
    for thresholds in [10, 100, 1000] {
        let statistics =
            Auroc::binary().thresholds(thresholds).update(&f32s(&scores, &[n]), &i32s(&yes));
        let error = (scalar(&statistics) - won / pairs).abs();
        assert!(error <= 0.5 / (thresholds - 1) as f64 && error <= last, "{thresholds}: {error}");
        last = error;
    }
}

#[test]
fn counts_are_exact_in_half_precision_and_under_autocast() {
    // bf16 cannot count beyond 256.
    let n = 1000;
    let classes: Vec<i32> = (0..n).map(|i| i % 2).collect();
    let target = i32s(&classes);
    let half = i32s(&classes).one_hot(2).to_dtype(DType::Bf16);
    let statistics = autocast(Some(DType::Bf16), || {
        [
            ConfusionMatrix::new(2).update(&half, &target),
            Accuracy::new(2).update(&half, &target),
            Mean::new().update(&half),
        ]
    });
    assert_eq!(value(&statistics[0]).elements(), [500.0, 0.0, 0.0, 500.0]);
    assert_eq!(scalar(&statistics[1]), 1.0);
    assert_eq!(scalar(&statistics[2]), 0.5);
    let tensors = autocast(Some(DType::Bf16), || statistics[0].tensors());
    assert_eq!(values(&tensors[0]), [500.0, 0.0, 0.0, 500.0]);
    assert!(tensors.iter().all(|tensor| tensor.dtype() == DType::I32));
    let error = MeanSquaredError::new().update(&half, &half.ones_like());
    assert_eq!(scalar(&error), 0.5);
    assert_eq!(error.tensors()[0].dtype(), DType::F32);
}

#[test]
fn samples_may_be_none_and_may_have_several_axes() {
    let empty = Accuracy::new(3)
        .update(&Tensor::zeros(DType::F32, [0, 3]), &Tensor::zeros(DType::I32, [0]));
    assert!(scalar(&empty).is_nan());
    let logits = f32s(&[0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0], &[2, 2, 2]);
    let target = i32s(&[1, 0, 1, 1]).reshape([2, 2]);
    assert_eq!(scalar(&Accuracy::new(2).update(&logits, &target)), 0.75);
    assert_eq!(scalar(&Accuracy::new(2).update(&logits, &target).masked(&i32s(&[1, 0]))), 1.0);
    let one = Precision::binary().update(&Tensor::scalar(0.7f32), &Tensor::scalar(true));
    assert_eq!(scalar(&one), 1.0);
}

#[test]
fn sums_of_other_metrics_are_not_added() {
    let logits = f32s(&[0.0, 1.0], &[1, 2]);
    let target = i32s(&[1]);
    let sums =
        |metric: F1| metric.update(&logits, &target).eval().unwrap_or_else(|e| panic!("{e}"));
    let mut f1 = sums(F1::new(2));
    assert!(f1.merge(&sums(F1::new(2))).is_ok());
    let error = f1.merge(&sums(F1::new(2).average(Average::Micro)));
    let text = error.err().map(|e| e.to_string()).unwrap_or_default();
    assert!(text.contains("cannot add the sums of") && text.contains("metrics.rs:"), "{text}");
    assert_eq!(f1.compute(), Value::Scalar(1.0), "nothing was added");
}

#[test]
fn what_does_not_fit_is_refused_with_shapes_and_line() {
    let x = Tensor::zeros(DType::F32, [4, 3]);
    let y = Tensor::zeros(DType::I32, [4]);
    let check = |state: MetricState, expected: &str| {
        let text = state.fault().map(|fault| fault.to_string()).unwrap_or_default();
        assert!(
            text.contains(expected) && text.contains("metrics.rs:"),
            "{text:?} does not say {expected:?}"
        );
        assert!(state.eval().is_err());
    };
    check(
        F1::new(4).update(&x, &y),
        "F1: needs scores [.., 4] and the integer index of each right class [..], got f32[4, 3] and i32[4]",
    );
    check(Accuracy::new(3).update(&x, &x), "Accuracy: needs scores");
    check(
        Accuracy::new(3).top_k(4).update(&x, &y),
        "top_k must be from 1 to the number of classes, with more than one class; it is 4",
    );
    check(Accuracy::new(3).top_k(0).update(&x, &y), "it is 0");
    check(Accuracy::new(3).top_k(2).update(&y, &y), "Accuracy: needs scores");
    check(
        Accuracy::new(0).update(&Tensor::zeros(DType::F32, [4, 0]), &y),
        "Accuracy: needs scores",
    );
    check(
        Precision::binary().update(&x, &y),
        "Precision: needs scores and targets that are 0 or 1, of one shape",
    );
    check(
        Recall::multilabel(2).update(&x, &x.ne(0.0)),
        "Recall: needs scores and targets that are 0 or 1, of one shape [.., 2]",
    );
    check(ConfusionMatrix::new(2).update(&x, &y), "ConfusionMatrix: needs");
    check(
        Auroc::new(3).thresholds(1).update(&x, &y),
        "Auroc: a curve needs at least 2 thresholds, not 1",
    );
    check(
        Auroc::new(3).thresholds(usize::MAX).update(&x, &y),
        "Auroc: a curve needs at most 65536 thresholds, not 184",
    );
    check(Auroc::new(3).update(&y, &y), "Auroc: needs scores");
    check(AveragePrecision::binary().update(&x, &y), "AveragePrecision: needs");
    check(Mean::new().update(&y), "Mean: needs floating-point numbers, got i32[4]");
    check(
        MeanSquaredError::new().update(&x, &y),
        "MeanSquaredError: needs floating-point predictions and targets of their shape",
    );
    check(MeanAbsoluteError::new().update(&y, &y), "MeanAbsoluteError: needs");
    check(
        R2Score::new().update(&x.reshape([2, 2, 3]), &x.reshape([2, 2, 3])),
        "R2Score: needs predictions [samples]",
    );
    check(Perplexity::new().update(&x, &x), "Perplexity: needs integer token ids");
    check(
        Perplexity::new().ignore_index(0).update(&x, &Tensor::zeros(DType::I32, [3])),
        "cross_entropy: the logits f32[4, 3]",
    );
    check(
        F1::new(3).update(&x, &y).masked(&Tensor::ones(DType::Bool, [3])),
        "masked: the mask bool[3] does not have the first axes of the samples [4]",
    );
    check(Mean::new().update(&(x + f32s(&[1.0, 2.0], &[2]))), "add");
}

#[test]
fn targets_that_are_all_equal_have_no_spread_that_rounding_made() {
    let score = |x: &[f32], y: &[f32]| {
        scalar(&R2Score::new().update(&f32s(x, &[x.len()]), &f32s(y, &[y.len()])))
    };
    assert_eq!(score(&[0.7, 0.7, 0.8], &[0.7; 3]), 0.0);
    assert_eq!(score(&[0.7; 3], &[0.7; 3]), 1.0);
    assert_eq!(score(&[1.0; 5000], &[1e4 / 3.0; 5000]), 0.0);
    // A small spread is preserved, although sums of squares in f32 would lose it.
    let near = score(&[1000.0, 1000.25, 1000.5, 1000.5], &[1000.0, 1000.25, 1000.5, 1000.75]);
    assert!((near - (1.0 - 0.0625 / 0.3125)).abs() < 1e-6, "{near}");
    assert!(score(&[0.0, 1.0], &[f32::NAN, 1.0]).is_nan());
    // The same in batches.
    let batch = R2Score::new().update(&f32s(&[0.5; 7], &[7]), &f32s(&[0.1; 7], &[7]));
    let mut sums = batch.eval().unwrap();
    for _ in 0..5 {
        sums.merge(&batch.eval().unwrap()).unwrap();
    }
    assert_eq!(sums.compute(), Value::Scalar(0.0));
}

#[test]
fn sums_that_are_no_sums_of_the_metric_are_nan() {
    let x = f32s(&[0.1, 0.9, 0.8, 0.2], &[2, 2]);
    let y = i32s(&[1, 0]);
    let pair = f32s(&[1.0, 2.0], &[2]);
    let metric = |statistics: MetricState| statistics.metric().clone();
    let metrics: Vec<Arc<dyn Metric>> = vec![
        metric(Auroc::new(2).update(&x, &y)),
        metric(Auroc::new(2).thresholds(usize::MAX).update(&x, &y)),
        metric(Auroc::new(0).thresholds(usize::MAX).update(&x, &y)),
        metric(F1::new(2).update(&x, &y)),
        metric(ConfusionMatrix::new(2).update(&x, &y)),
        metric(ConfusionMatrix::new(2).normalize(Normalize::Predicted).update(&x, &y)),
        metric(R2Score::new().update(&pair, &pair)),
        metric(Mean::new().update(&pair)),
        metric(Perplexity::new().update(&x, &y)),
    ];
    for metric in metrics {
        // The right number of tensors with too few, too many or ragged elements, and other numbers
        // of tensors.
        let ragged = |n: usize| (0..n).map(|i| vec![1.0; i % 3]).collect::<Vec<_>>();
        for n in 0..8 {
            // A mean needs two tensors, and the coefficient of determination six.
            let fits = n == 2 || n == 6;
            for sums in [vec![Vec::new(); n], vec![vec![1.0; 3]; n], ragged(n)] {
                if let Value::Scalar(value) = Sums::new(metric.clone(), sums).compute() {
                    assert!(value.is_nan() || fits, "{metric:?} of {n}: {value}");
                }
            }
        }
    }
}

#[test]
fn weighted_by_labels_that_are_never_the_target_is_0() {
    let x = f32s(&[0.1, 0.9, 0.8, 0.2], &[2, 2]);
    let y = i32s(&[0; 4]).reshape([2, 2]);
    let score = |average| scalar(&Precision::multilabel(2).average(average).update(&x, &y));
    assert_eq!([score(Average::Weighted), score(Average::Macro)], [0.0, 0.0]);
    assert!(scalar(&Auroc::multilabel(2).average(Average::Weighted).update(&x, &y)).is_nan());
}

#[test]
fn a_confusion_matrix_is_divided_by_its_rows_columns_or_all() {
    let predicted = i32s(&[0, 1, 1, 1]);
    let target = i32s(&[0, 1, 0, 0]);
    let matrix = |axis| {
        value(&ConfusionMatrix::new(3).normalize(axis).update(&predicted, &target)).elements()
    };
    let third = 1.0 / 3.0;
    assert_eq!(matrix(Normalize::Target), [third, 2.0 / 3.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(matrix(Normalize::Predicted), [1.0, 2.0 / 3.0, 0.0, 0.0, third, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(matrix(Normalize::All), [0.25, 0.5, 0.0, 0.0, 0.25, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn n_grams_may_be_longer_than_any_text() {
    let text = ["a", "b", "c"];
    let bleu = |n, smooth| {
        let mut bleu = Bleu::new().n_gram(n).smooth(smooth);
        bleu.update(&text, &[text]);
        let mut all = Bleu::new().n_gram(n).smooth(smooth);
        all.merge(&bleu);
        assert_eq!(all, bleu);
        all.compute()
    };
    assert_eq!([bleu(3, false), bleu(4, false), bleu(usize::MAX, false)], [1.0, 0.0, 0.0]);
    assert_eq!([bleu(4, true), bleu(usize::MAX, true)], [1.0, 1.0]);
    assert_eq!(Bleu::new().n_gram(usize::MAX).smooth(true).compute(), 0.0);
}
