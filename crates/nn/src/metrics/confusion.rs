//! [`ConfusionMatrix`]: how often each class was predicted as each class.

use fulmen_tensor::{AsTensor, DType, Tensor};

use super::average::{ratio, unknown};
use super::labels::{Task, count_all};
use super::{Metric, MetricState, Value};

/// The divisor of the counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Normalize {
    /// No normalization.
    #[default]
    None,
    /// How often the class of the row is the target.
    Target,
    /// How often the class of the column was predicted.
    Predicted,
    /// The number of samples.
    All,
}

/// How often the row's class was the target while the column's class was predicted: a
/// [`Value::Matrix`].
///
/// Its `classes²` counters are updated in every step. A sample without a prediction, because its
/// scores are NaN, is not counted. A target outside the classes makes the whole matrix NaN.
///
/// ```
/// use fulmen_nn::metrics::{ConfusionMatrix, Value};
/// use fulmen_tensor::Tensor;
/// let predicted = Tensor::from_slice(&[0i32, 1, 1], [3]);
/// let target = Tensor::from_slice(&[0i32, 1, 0], [3]);
/// let matrix = ConfusionMatrix::new(2).update(&predicted, &target).eval()?.compute();
/// assert_eq!(matrix, Value::Matrix(vec![vec![1.0, 1.0], vec![0.0, 1.0]]));
/// # Ok::<(), fulmen_nn::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct ConfusionMatrix {
    task: Task,
    threshold: f64,
    normalize: Normalize,
}

/// The largest batch, in samples, for which an f32 represents every count exactly.
const EXACT: usize = 1 << 24;

impl ConfusionMatrix {
    /// For this many classes.
    pub fn new(classes: usize) -> ConfusionMatrix {
        ConfusionMatrix {
            task: Task::Multiclass(classes),
            threshold: 0.5,
            normalize: Normalize::None,
        }
    }

    /// For binary classification: a score above 0.5 is positive. The first row and column are the
    /// negative class.
    pub fn binary() -> ConfusionMatrix {
        ConfusionMatrix { task: Task::Binary, threshold: 0.5, normalize: Normalize::None }
    }

    /// The threshold above which a score is positive.
    pub fn threshold(mut self, threshold: f64) -> ConfusionMatrix {
        self.threshold = threshold;
        self
    }

    /// The normalization of the counts; 0 where the divisor is 0.
    pub fn normalize(mut self, normalize: Normalize) -> ConfusionMatrix {
        self.normalize = normalize;
        self
    }

    /// The state of a batch: scores `[…, classes]` or predicted classes `[…]`, and the right
    /// classes `[…]`. For binary classification: scores or predictions, and targets of the same
    /// shape, 0 or 1.
    ///
    /// Poisoned if shapes or dtypes are invalid.
    #[track_caller]
    pub fn update(&self, input: impl AsTensor, target: impl AsTensor) -> MetricState {
        let input = input.as_tensor();
        let target = target.as_tensor();
        MetricState::record(*self, "ConfusionMatrix", || {
            let samples = self.task.samples(input, target, true)?;
            Ok((vec![input.clone(), target.clone()], samples))
        })
    }
}

impl Metric for ConfusionMatrix {
    fn statistics(&self, inputs: &[Tensor], mask: &Tensor) -> Vec<Tensor> {
        let [input, target] = inputs else { return Vec::new() };
        let decisions = self.task.decide("ConfusionMatrix", [input, target], mask, self.threshold);
        let in_columns = |yes: &Tensor| match self.task {
            Task::Binary => Tensor::concatenate(&[&yes.not(), yes], -1),
            _ => yes.clone(),
        };
        let columns = self.task.mask(mask);
        let predicted = in_columns(&decisions.predicted);
        let target = in_columns(&decisions.target).and(&columns);
        let samples: Vec<isize> = (0..mask.rank() as isize).collect();
        let counts = if mask.shape().iter().product::<usize>() <= EXACT {
            // Products of ones and zeros are exact in any precision, and so is their sum in f32.
            let [target, predicted] = [target, predicted].map(|x| x.to_dtype(DType::F32));
            target.dot_general(&predicted, ([], []), (&samples, &samples)).to_dtype(DType::I32)
        } else {
            let classes = target.size(-1);
            let index = |one_hot: &Tensor| {
                let iota = Tensor::iota(DType::I32, one_hot.shape(), -1);
                let class = one_hot.select(&iota, &iota.zeros_like()).sum(-1);
                let count = one_hot.to_dtype(DType::I32).sum(-1);
                (class, count)
            };
            let (row, is_row) = index(&target);
            let (column, is_column) = index(&predicted);
            let zeros = Tensor::zeros(DType::I32, [classes * classes]);
            zeros
                .index_add(0, &(row * classes as f64 + column), &(is_row * is_column))
                .reshape([classes, classes])
        };
        let outside = decisions.outside.and(if decisions.outside.rank() == mask.rank() {
            mask
        } else {
            &columns
        });
        vec![counts, count_all(mask), count_all(&outside)]
    }

    fn compute(&self, sums: &[Vec<f64>]) -> Value {
        let [counts, samples, outside] = sums else { return Value::Scalar(f64::NAN) };
        let classes = self.task.classes().max(if self.task == Task::Binary { 2 } else { 1 });
        if classes.checked_mul(classes) != Some(counts.len()) {
            return Value::Scalar(f64::NAN);
        }
        let rows: Vec<&[f64]> = counts.chunks(classes).collect();
        let total: f64 = counts.iter().sum();
        let targets: Vec<f64> = rows.iter().map(|row| row.iter().sum()).collect();
        let mut predicted = vec![0.0; classes];
        for row in &rows {
            predicted.iter_mut().zip(*row).for_each(|(sum, n)| *sum += n);
        }
        let divisor = |row: usize, column: usize| match self.normalize {
            Normalize::None => 1.0,
            Normalize::Target => targets[row],
            Normalize::Predicted => predicted[column],
            Normalize::All => total,
        };
        let row = |(i, row): (usize, &&[f64])| {
            row.iter().enumerate().map(|(j, &n)| ratio(n, divisor(i, j))).collect()
        };
        let value = Value::Matrix(rows.iter().enumerate().map(row).collect());
        let unsound = outside.first() != Some(&0.0) || samples.first() == Some(&0.0);
        if unsound { unknown(value) } else { value }
    }
}
