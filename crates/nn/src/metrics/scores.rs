//! Scores of decisions: accuracy, precision, recall, F1 and the Jaccard index, from how often each
//! class was the target, was predicted, and was both. Out of scope: metrics over all thresholds
//! (`curve`).

use fulmen_tensor::{DType, Refusal, Tensor};

use super::average::{average, ratio, unknown};
use super::labels::{Decisions, Task, by_task, count, count_all};
use super::{Average, Metric, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Score {
    Accuracy,
    Precision,
    Recall,
    F1,
    Jaccard,
}

impl Score {
    /// The name of the metric.
    fn metric(self) -> &'static str {
        match self {
            Score::Accuracy => "Accuracy",
            Score::Precision => "Precision",
            Score::Recall => "Recall",
            Score::F1 => "F1",
            Score::Jaccard => "JaccardIndex",
        }
    }
}

/// The settings of all these metrics.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Scores {
    score: Score,
    task: Task,
    average: Average,
    threshold: f64,
    top_k: usize,
}

impl Scores {
    fn new(score: Score, task: Task, average: Average) -> Scores {
        Scores { score, task, average, threshold: 0.5, top_k: 1 }
    }

    fn samples(self, input: &Tensor, target: &Tensor) -> Result<Vec<usize>, Refusal> {
        let samples = self.task.samples(input, target, self.top_k == 1)?;
        let max = if let Task::Multiclass(classes) = self.task { classes } else { 1 };
        if !(1..=max).contains(&self.top_k) {
            let k = self.top_k;
            return Err(format!(
                "top_k must be from 1 to the number of classes, with more than one class; it is {k}"
            )
            .into());
        }
        Ok(samples)
    }

    /// The target's class if it is among the `top_k` largest logits; among equal logits, the first
    /// counts as larger.
    fn among_the_largest(&self, logits: &Tensor, target: &Tensor) -> Tensor {
        let index = Tensor::iota(DType::I32, logits.shape(), -1);
        let its =
            target.select(logits, &logits.zeros_like()).sum_keepdim(-1).to_dtype(logits.dtype());
        let its_index = target.select(&index, &index.zeros_like()).sum_keepdim(-1);
        let before = logits.gt(&its).or(logits.eq(&its).and(index.lt(&its_index)));
        // No class is before itself: XLA may compute its logit again and round it differently.
        let before = before.and(index.ne(&its_index));
        let rank = before.to_dtype(DType::I32).sum_keepdim(-1);
        let largest = logits.max_keepdim(-1);
        target.and(rank.lt(self.top_k as f64)).and(largest.eq(&largest))
    }
}

impl Metric for Scores {
    fn statistics(&self, inputs: &[Tensor], mask: &Tensor) -> Vec<Tensor> {
        let [input, target] = inputs else { return Vec::new() };
        let Decisions { mut predicted, target, outside } =
            self.task.decide(self.score.metric(), [input, target], mask, self.threshold);
        if self.top_k > 1 {
            predicted = self.among_the_largest(input, &target);
        }
        let columns = self.task.mask(mask);
        let predicted = predicted.and(&columns);
        let target = target.and(&columns);
        let outside = outside.and(if outside.rank() == mask.rank() { mask } else { &columns });
        vec![
            count(&predicted.and(&target)),
            count(&predicted),
            count(&target),
            count_all(mask),
            count_all(&outside),
        ]
    }

    fn compute(&self, sums: &[Vec<f64>]) -> Value {
        let [hits, predicted, support, samples, outside] = sums else {
            return Value::Scalar(f64::NAN);
        };
        let (Some(&samples), Some(&outside)) = (samples.first(), outside.first()) else {
            return Value::Scalar(f64::NAN);
        };
        let classes = self.task.classes();
        if [hits, predicted, support].iter().any(|counts| counts.len() != classes) {
            return Value::Scalar(f64::NAN);
        }
        let one_of_many = matches!(self.task, Task::Multiclass(_));
        let score = |hits: f64, predicted: f64, support: f64, samples: f64| match self.score {
            Score::Accuracy if one_of_many => ratio(hits, support),
            Score::Accuracy => ratio(samples - predicted - support + 2.0 * hits, samples),
            Score::Precision => ratio(hits, predicted),
            Score::Recall => ratio(hits, support),
            Score::F1 => ratio(2.0 * hits, predicted + support),
            Score::Jaccard => ratio(hits, predicted + support - hits),
        };
        let value = if self.average == Average::Micro || self.task == Task::Binary {
            let all = |counts: &[f64]| counts.iter().sum::<f64>();
            Value::Scalar(score(all(hits), all(predicted), all(support), samples * classes as f64))
        } else {
            let scores =
                (0..classes).map(|k| score(hits[k], predicted[k], support[k], samples)).collect();
            let counts = |k: usize| match self.score {
                _ if !one_of_many => true,
                Score::Accuracy => support[k] > 0.0,
                _ => support[k] + predicted[k] > 0.0,
            };
            match average(self.average, scores, support, counts) {
                // No label was ever the target: 0, as in torchmetrics.
                Value::Scalar(_)
                    if self.average == Average::Weighted && support.iter().all(|&n| n == 0.0) =>
                {
                    Value::Scalar(0.0)
                }
                value => value,
            }
        };
        if samples == 0.0 || outside > 0.0 { unknown(value) } else { value }
    }
}

macro_rules! metrics {
    ($($(#[$doc:meta])* $name:ident $score:ident $average:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// The value is NaN if a target is outside the classes, or if there are no samples.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[must_use]
        pub struct $name(Scores);

        by_task! {
            $name, $average, |task| Scores::new(Score::$score, task, Average::$average);
            /// The state of a batch: scores `[…, classes]` (logits or probabilities) or predicted
            /// classes, integers `[…]`, and the right classes, integers `[…]`. For binary
            /// classification: scores or predictions, and targets of the same shape, 0 or 1; for
            /// several labels, both `[…, labels]`.
            ///
            /// Poisoned if shapes or dtypes are invalid.
        }

        impl $name {
            /// The threshold above which a score is positive. The default 0.5 is for probabilities;
            /// use 0 for logits. A NaN score is negative.
            pub fn threshold(mut self, threshold: f64) -> $name {
                self.0.threshold = threshold;
                self
            }
        }
    )*};
}

metrics! {
    /// The share of samples whose prediction is right. Averaged over classes, it is the mean of
    /// each class's share (scikit-learn's balanced accuracy).
    ///
    /// ```
    /// use fulmen_nn::metrics::Accuracy;
    /// use fulmen_tensor::Tensor;
    /// let logits = Tensor::from_slice(&[0.1f32, 0.9, 0.5, 0.8, 0.2, 0.3], [2, 3]);
    /// let target = Tensor::from_slice(&[1i32, 2], [2]);
    /// assert_eq!(Accuracy::new(3).update(&logits, &target).eval()?.compute().scalar(), Some(0.5));
    /// assert_eq!(Accuracy::new(3).top_k(2).update(&logits, &target).eval()?.compute().scalar(), Some(1.0));
    /// # Ok::<(), fulmen_nn::Error>(())
    /// ```
    Accuracy Accuracy Micro;
    /// The share of predictions of a class that are right; 0 if there are none.
    ///
    /// ```
    /// use fulmen_nn::metrics::Precision;
    /// use fulmen_tensor::Tensor;
    /// let p = Tensor::from_slice(&[0.9f32, 0.8, 0.1], [3]);
    /// let y = Tensor::from_slice(&[1i32, 0, 1], [3]);
    /// assert_eq!(Precision::binary().update(&p, &y).eval()?.compute().scalar(), Some(0.5));
    /// # Ok::<(), fulmen_nn::Error>(())
    /// ```
    Precision Precision Macro;
    /// The share of targets of a class that are predicted; 0 if there are none.
    ///
    /// ```
    /// use fulmen_nn::metrics::Recall;
    /// use fulmen_tensor::Tensor;
    /// let logits = Tensor::from_slice(&[3.0f32, 1.0, -2.0], [3]);
    /// let y = Tensor::from_slice(&[1i32, 1, 1], [3]);
    /// assert_eq!(Recall::binary().threshold(0.0).update(&logits, &y).eval()?.compute().scalar(), Some(2.0 / 3.0));
    /// # Ok::<(), fulmen_nn::Error>(())
    /// ```
    Recall Recall Macro;
    /// The harmonic mean of precision and recall. A macro average ignores classes that are neither
    /// targets nor predicted.
    ///
    /// ```
    /// use fulmen_nn::metrics::{Average, F1, Value};
    /// use fulmen_tensor::Tensor;
    /// let predicted = Tensor::from_slice(&[0i32, 1, 1], [3]);
    /// let target = Tensor::from_slice(&[0i32, 1, 0], [3]);
    /// let by_class = F1::new(2).average(Average::None).update(&predicted, &target).eval()?.compute();
    /// assert_eq!(by_class, Value::Vector(vec![2.0 / 3.0, 2.0 / 3.0]));
    /// # Ok::<(), fulmen_nn::Error>(())
    /// ```
    F1 F1 Macro;
    /// The share of samples with a class as target or prediction for which it is both: intersection
    /// over union.
    ///
    /// ```
    /// use fulmen_nn::metrics::JaccardIndex;
    /// use fulmen_tensor::Tensor;
    /// let predicted = Tensor::from_slice(&[1i32, 1, 0], [3]);
    /// let target = Tensor::from_slice(&[1i32, 0, 1], [3]);
    /// assert_eq!(JaccardIndex::binary().update(&predicted, &target).eval()?.compute().scalar(), Some(1.0 / 3.0));
    /// # Ok::<(), fulmen_nn::Error>(())
    /// ```
    JaccardIndex Jaccard Macro;
}

impl Accuracy {
    /// Counts a sample as right if its class is among the `k` largest scores; among equal scores,
    /// the first counts as larger.
    pub fn top_k(mut self, k: usize) -> Accuracy {
        self.0.top_k = k;
        self
    }
}
