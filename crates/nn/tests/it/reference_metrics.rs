//! Metrics against scikit-learn, BLEU against NLTK and sacrebleu, and error rates against jiwer: under a mask, in one batch
//! and in several.

use crate::common::assert_close;
use crate::common::reference::{cases, count, inputs, number, sizes, tensor, word};
use fulmen_nn::metrics::{
    Accuracy, Auroc, Average, AveragePrecision, Bleu, ConfusionMatrix, ErrorRate, F1,
    FrechetDistance, InceptionScore, JaccardIndex, Mean, MeanAbsoluteError, MeanSquaredError,
    MetricState, Normalize, Perplexity, Precision, R2Score, Recall, Sums, TokenBleu, Value,
};
use fulmen_tensor::{Runtime, Tensor};
use serde_json::Value as Json;

fn average(attrs: &Json) -> Average {
    match attrs["average"].as_str() {
        Some("micro") => Average::Micro,
        Some("macro") | None => Average::Macro,
        Some("weighted") => Average::Weighted,
        Some("none") => Average::None,
        Some(other) => panic!("no average {other}"),
    }
}

/// A multiclass, binary or multilabel metric with its settings.
macro_rules! decided {
    ($kind:ident, $attrs:ident) => {{
        let metric = match word(&$attrs["task"], "task") {
            "multiclass" => $kind::new(count(&$attrs["classes"])),
            "multilabel" => $kind::multilabel(count(&$attrs["classes"])),
            _ => $kind::binary(),
        };
        metric.average(average($attrs))
    }};
}

fn statistics(op: &str, attrs: &Json, inputs: &[Tensor]) -> MetricState {
    let threshold = attrs["threshold"].as_f64().unwrap_or(0.5);
    let target = inputs.last().cloned().unwrap_or_else(|| panic!("no target"));
    let x = &inputs[0];
    let t = &target;
    match op {
        "accuracy" => {
            let top_k = attrs["top_k"].as_u64().unwrap_or(1) as usize;
            decided!(Accuracy, attrs).threshold(threshold).top_k(top_k).update(x, t)
        }
        "precision" => decided!(Precision, attrs).threshold(threshold).update(x, t),
        "recall" => decided!(Recall, attrs).threshold(threshold).update(x, t),
        "f1" => decided!(F1, attrs).threshold(threshold).update(x, t),
        "jaccard" => decided!(JaccardIndex, attrs).threshold(threshold).update(x, t),
        "token_bleu" => TokenBleu::new([0]).smooth(attrs["smooth"] == true).update(x, t),
        "auroc" => decided!(Auroc, attrs).update(x, t),
        "average_precision" => decided!(AveragePrecision, attrs).update(x, t),
        "confusion" => {
            let matrix = match word(&attrs["task"], "task") {
                "multiclass" => ConfusionMatrix::new(count(&attrs["classes"])),
                _ => ConfusionMatrix::binary().threshold(threshold),
            };
            let normalize = match attrs["normalize"].as_str() {
                Some("target") => Normalize::Target,
                Some("predicted") => Normalize::Predicted,
                Some("all") => Normalize::All,
                _ => Normalize::None,
            };
            matrix.normalize(normalize).update(x, t)
        }
        "mean" => Mean::new().update(x),
        "mse" => MeanSquaredError::new().update(x, t),
        "rmse" => MeanSquaredError::new().squared(false).update(x, t),
        "mae" => MeanAbsoluteError::new().update(x, t),
        "r2" => R2Score::new().update(x, t),
        "frechet" => MetricState::new(FrechetDistance, &[x, t], &[x.size(0)]),
        "inception_score" => InceptionScore::new(count(&attrs["splits"]))
            .deviation(attrs["deviation"] == true)
            .update(x, t),
        "perplexity" => Perplexity::new().update(x, t),
        other => panic!("no metric {other}"),
    }
}

/// All numbers of a list of lists.
fn flat(value: &Json) -> Vec<f64> {
    match value.as_array() {
        Some(list) => list.iter().flat_map(flat).collect(),
        None => vec![number(value)],
    }
}

/// Computes many statistics in one program.
fn eval(all: &[&MetricState]) -> Vec<Sums> {
    let tensors: Vec<Vec<Tensor>> = all.iter().map(|statistics| statistics.tensors()).collect();
    let flat: Vec<&Tensor> = tensors.iter().flatten().collect();
    for (statistics, tensors) in all.iter().zip(&tensors) {
        assert!(tensors.iter().all(|t| t.fault().is_none()), "{statistics:?}");
    }
    let literals = Runtime::global()
        .and_then(|runtime| runtime.eval_many(&flat))
        .unwrap_or_else(|e| panic!("{e}"));
    let mut values = literals.iter().map(|value| value.to_f64());
    let sums = all.iter().zip(&tensors).map(|(statistics, tensors)| {
        Sums::new(statistics.metric().clone(), values.by_ref().take(tensors.len()).collect())
    });
    sums.collect()
}

#[test]
fn metrics_are_those_of_scikit_learn_in_one_batch_and_in_many() {
    let cases: Vec<Json> =
        cases("metrics.json").into_iter().filter(|case| case["op"] != "bleu").collect();
    assert!(cases.len() > 60, "{}", cases.len());
    let mut all = Vec::new();
    for case in &cases {
        let inputs = inputs(case);
        let mask = tensor(&case["mask"]);
        let whole = statistics(word(&case["op"], "op"), &case["attrs"], &inputs).masked(&mask);
        // The same in batches of 7; the last one is short.
        let rows = mask.size(0);
        let parts = (0..rows).step_by(7).map(|start| {
            let part = |t: &Tensor| t.narrow(0, start, 7.min(rows - start));
            let inputs: Vec<Tensor> = inputs.iter().map(part).collect();
            statistics(word(&case["op"], "op"), &case["attrs"], &inputs).masked(&part(&mask))
        });
        all.push(whole.clone());
        all.extend(parts);
    }
    let mut sums = eval(&all.iter().collect::<Vec<_>>()).into_iter();
    for case in &cases {
        let name = word(&case["name"], "name");
        let expected = flat(&case["value"]);
        let whole = sums.next().map(|sums| sums.compute());
        let mut merged = sums.next().unwrap_or_else(|| panic!("{name}"));
        for part in sums.by_ref().take(count(&case["mask"]["shape"][0]).div_ceil(7) - 1) {
            merged.merge(&part).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        // Counts are exact; sums are computed in f32.
        let summed =
            ["mean", "mse", "rmse", "mae", "r2", "frechet", "inception_score", "perplexity"]
                .contains(&word(&case["op"], "op"));
        let (relative, absolute) = if summed { (2e-6, 1e-7) } else { (1e-12, 1e-15) };
        for (value, mode) in [(whole, "whole"), (Some(merged.compute()), "merged")] {
            let value = value.unwrap_or(Value::Vector(Vec::new()));
            assert_close(
                &value.elements(),
                &expected,
                relative,
                absolute,
                &format!("{name}, {mode}"),
            );
            assert_eq!(matches!(value, Value::Matrix(_)), case["op"] == "confusion", "{name}");
        }
    }
}

#[test]
fn bleu_is_nltks_in_one_count_and_in_two() {
    let cases: Vec<Json> =
        cases("metrics.json").into_iter().filter(|case| case["op"] == "bleu").collect();
    assert_eq!(cases.len(), 3);
    for case in cases {
        let new = || {
            Bleu::new()
                .n_gram(count(&case["attrs"]["n_gram"]))
                .smooth(case["attrs"]["smooth"] == true)
        };
        let mut whole = new();
        let mut first = new();
        let mut second = new();
        let candidates = case["candidates"].as_array().into_iter().flatten().map(sizes);
        let references = case["references"].as_array().into_iter().flatten();
        for (i, (candidate, references)) in candidates.zip(references).enumerate() {
            let references: Vec<Vec<usize>> =
                references.as_array().into_iter().flatten().map(sizes).collect();
            whole.update(&candidate, &references);
            (if i < 3 { &mut first } else { &mut second }).update(&candidate, &references);
        }
        first.merge(&second);
        assert_eq!(whole, first);
        assert_close(
            &[whole.compute()],
            &[number(&case["value"])],
            1e-12,
            0.0,
            word(&case["name"], "name"),
        );
        assert!(whole.compute() > 0.1);
    }
    assert_eq!(Bleu::new().compute(), 0.0);
}

#[test]
fn error_rates_are_jiwers_in_one_count_and_in_two() {
    let cases = cases("error_rates.json");
    assert!(cases.len() > 30);
    for case in cases {
        let texts: Vec<[&str; 2]> = case["texts"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|pair| [0, 1].map(|i| pair[i].as_str().unwrap()))
            .collect();
        for (unit, new) in [
            ("words", ErrorRate::words as fn() -> ErrorRate),
            ("characters", ErrorRate::characters),
        ] {
            let mut whole = new();
            let mut first = new();
            let mut second = new();
            for (i, [prediction, reference]) in texts.iter().enumerate() {
                whole.update(prediction, reference);
                (if i < 3 { &mut first } else { &mut second }).update(prediction, reference);
            }
            first.merge(&second).unwrap();
            assert_eq!(whole, first);
            let expected = [number(&case[unit])];
            assert_close(&[whole.compute()], &expected, 1e-12, 0.0, &format!("{unit} {case}"));
        }
    }
}

#[test]
fn error_rates_of_nothing_and_of_two_units() {
    let mut words = ErrorRate::words();
    let mut characters = ErrorRate::characters();
    assert!(words.compute().is_nan());
    words.update("spoken", "  ");
    assert_eq!(words.compute(), f64::INFINITY);
    characters.update("a", "ab");
    let before = words.clone();
    let error = words.merge(&characters).unwrap_err().to_string();
    assert!(error.contains("cannot add counts of characters to those of words"), "{error}");
    assert!(error.contains("reference_metrics.rs"), "{error}");
    assert_eq!((words, characters.compute()), (before, 0.5));
}
