//! Metrics over all thresholds: the area under the ROC curve and average precision, from counts at
//! fixed thresholds.

use fulmen_tensor::{DType, Refusal, Tensor};

use super::average::{average, ratio, unknown};
use super::labels::{Task, by_task, columns, count, count_all};
use super::{Average, Metric, Value};
use crate::precision::wide;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Area {
    Roc,
    Precision,
}

/// f32 and f16 cannot distinguish more thresholds, and their counters would fill the memory.
const MAX_THRESHOLDS: usize = 1 << 16;

/// The settings of both metrics.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Curve {
    area: Area,
    task: Task,
    average: Average,
    thresholds: usize,
}

impl Curve {
    fn samples(self, input: &Tensor, target: &Tensor) -> Result<Vec<usize>, Refusal> {
        if self.thresholds < 2 || self.thresholds > MAX_THRESHOLDS {
            let bound = if self.thresholds < 2 { "at least 2" } else { "at most 65536" };
            return Err(format!("a curve needs {bound} thresholds, not {}", self.thresholds).into());
        }
        self.task.samples(input, target, false)
    }

    /// The points `(false positives, true positives)` from the highest threshold to the lowest.
    fn points(&self, class: usize, hits: &[f64], above: &[f64]) -> Vec<(f64, f64)> {
        let classes = self.task.classes();
        let indices = (0..self.thresholds).rev().map(|t| t * classes + class);
        [(0.0, 0.0)].into_iter().chain(indices.map(|i| (above[i] - hits[i], hits[i]))).collect()
    }

    /// The area of a class with this many positives and negatives, or NaN if it is undefined.
    fn area(&self, points: &[(f64, f64)], positives: f64, negatives: f64) -> f64 {
        let steps = points.windows(2).map(|pair| (pair[0], pair[1]));
        match self.area {
            _ if positives == 0.0 => f64::NAN,
            Area::Roc if negatives == 0.0 => f64::NAN,
            Area::Roc => {
                steps.map(|(a, b)| (b.0 - a.0) * (a.1 + b.1) / 2.0).sum::<f64>()
                    / (positives * negatives)
            }
            Area::Precision => {
                steps.map(|(a, b)| (b.1 - a.1) / positives * ratio(b.1, b.0 + b.1)).sum()
            }
        }
    }
}

impl Metric for Curve {
    fn statistics(&self, inputs: &[Tensor], mask: &Tensor) -> Vec<Tensor> {
        let [input, target] = inputs else { return Vec::new() };
        let metric = match self.area {
            Area::Roc => "Auroc",
            Area::Precision => "AveragePrecision",
        };
        let (target, outside) = self.task.target(metric, target, mask);
        let mask_columns = self.task.mask(mask);
        let target = target.and(&mask_columns);
        let scores = columns(self.task, &wide(input));
        // Rounding may push a probability slightly beyond 1; a logit is further off.
        let improbable = scores.ge(-1e-3).and(scores.le(1.0 + 1e-3)).not().and(&mask_columns);
        let outside = outside.and(if outside.rank() == mask.rank() { mask } else { &mask_columns });

        let last = (self.thresholds - 1) as f64;
        let numbers: Vec<f32> = (0..self.thresholds).map(|i| (i as f64 / last) as f32).collect();
        let thresholds =
            Tensor::from_slice(&numbers, [self.thresholds, 1]).to_dtype(scores.dtype());
        // [samples, 1, classes], compared with [thresholds, 1].
        let between = |x: &Tensor| {
            let mut dims = x.shape().to_vec();
            dims.insert(x.rank().saturating_sub(1), 1);
            x.reshape(dims)
        };
        // The lowest threshold counts everything, even a probability that rounding pushed below 0.
        let lowest = Tensor::iota(DType::I32, [self.thresholds, 1], 0).eq(0.0);
        let above = between(&scores).ge(&thresholds).or(lowest).and(between(&mask_columns));
        let samples: Vec<isize> = (0..mask.rank() as isize).collect();
        let count_above = |x: &Tensor| x.to_dtype(DType::I32).sum(&samples);
        vec![
            count_above(&above.and(between(&target))),
            count_above(&above),
            count(&target),
            count_all(mask),
            count_all(&outside) + count_all(&improbable),
        ]
    }

    fn compute(&self, sums: &[Vec<f64>]) -> Value {
        let [hits, above, positives, samples, outside] = sums else {
            return Value::Scalar(f64::NAN);
        };
        let (Some(&samples), Some(&outside)) = (samples.first(), outside.first()) else {
            return Value::Scalar(f64::NAN);
        };
        let classes = self.task.classes();
        let counters =
            self.thresholds.checked_mul(classes).filter(|_| self.thresholds <= MAX_THRESHOLDS);
        if counters != Some(hits.len()) || above.len() != hits.len() || positives.len() != classes {
            return Value::Scalar(f64::NAN);
        }
        let value = if self.average == Average::Micro || self.task == Task::Binary {
            // All classes together, as if each sample were a binary question for each class.
            let mut points = vec![(0.0, 0.0); self.thresholds + 1];
            for class in 0..classes {
                for (sum, point) in points.iter_mut().zip(self.points(class, hits, above)) {
                    *sum = (sum.0 + point.0, sum.1 + point.1);
                }
            }
            let positives: f64 = positives.iter().sum();
            Value::Scalar(self.area(&points, positives, samples * classes as f64 - positives))
        } else {
            let area = |k: usize| {
                self.area(&self.points(k, hits, above), positives[k], samples - positives[k])
            };
            let areas: Vec<f64> = (0..classes).map(area).collect();
            let defined: Vec<bool> = areas.iter().map(|area| !area.is_nan()).collect();
            average(self.average, areas, positives, |k| defined[k])
        };
        if samples == 0.0 || outside > 0.0 { unknown(value) } else { value }
    }
}

macro_rules! metrics {
    ($($(#[$doc:meta])* $name:ident $area:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// The scores are probabilities. They are compared with fixed thresholds, 200 by default,
        /// evenly spaced from 0 to 1 (torchmetrics' `thresholds`). This takes that many comparisons
        /// for each sample and class, and twice as many counters; scores are not stored. Scores
        /// between two thresholds are not distinguished: the value is that of scores rounded down
        /// to a threshold, and exact if all scores are thresholds. A positive and a negative in the
        /// same bin count as a tie, so the area is off by at most half the share of pairs in the
        /// same bin. That is about `1 / (2·thresholds)` for evenly spread scores, but large if all
        /// scores are close to 0 or 1.
        /// A score that is not a probability (a logit, or NaN), or a target outside the classes,
        /// makes the value NaN. A class without positives (or, for the ROC curve, without
        /// negatives) has no value and is left out of averages.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[must_use]
        pub struct $name(Curve);

        by_task! {
            $name, Macro, |task| Curve { area: Area::$area, task, average: Average::Macro, thresholds: 200 };
            /// The state of a batch: probabilities `[…, classes]` and the right classes, integers
            /// `[…]`. For binary classification: probabilities and targets of the same shape, 0 or
            /// 1; for several labels, both `[…, labels]`.
            ///
            /// Poisoned if shapes or dtypes are invalid.
        }

        impl $name {
            /// The number of thresholds, from 2 to 65536.
            pub fn thresholds(mut self, thresholds: usize) -> $name {
                self.0.thresholds = thresholds;
                self
            }
        }
    )*};
}

metrics! {
    /// The area under the ROC curve: the probability that a positive has a higher score than a
    /// negative, where a tie counts half.
    ///
    /// ```
    /// use fulmen_nn::metrics::Auroc;
    /// use fulmen_tensor::Tensor;
    /// let scores = Tensor::from_slice(&[0.1f32, 0.4, 0.35, 0.8], [4]);
    /// let target = Tensor::from_slice(&[0i32, 0, 1, 1], [4]);
    /// assert_eq!(Auroc::binary().update(&scores, &target).eval()?.compute().scalar(), Some(0.75));
    /// # Ok::<(), fulmen_nn::Error>(())
    /// ```
    Auroc Roc;
    /// Average precision, `Σ (Rₙ − Rₙ₋₁)·Pₙ` over falling thresholds, for precision `P` and recall
    /// `R`.
    ///
    /// ```
    /// use fulmen_nn::metrics::AveragePrecision;
    /// use fulmen_tensor::Tensor;
    /// let scores = Tensor::from_slice(&[0.1f32, 0.4, 0.35, 0.8], [4]);
    /// let target = Tensor::from_slice(&[0i32, 0, 1, 1], [4]);
    /// let value = AveragePrecision::binary().update(&scores, &target).eval()?.compute().scalar();
    /// assert!((value.unwrap_or(0.0) - (0.5 + 0.5 * 2.0 / 3.0)).abs() < 1e-12);
    /// # Ok::<(), fulmen_nn::Error>(())
    /// ```
    AveragePrecision Precision;
}
