//! Classification tasks, and how they turn predictions and targets into booleans by class.

use fulmen_tensor::internal::{IndexRule, check_masked_indices};
use fulmen_tensor::{DType, Refusal, Tensor};

use crate::library::{NN, live};
use crate::precision::wide;

/// What to decide for a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Task {
    /// One of this many classes.
    Multiclass(usize),
    /// Positive or negative.
    Binary,
    /// Positive or negative for each of this many labels.
    Multilabel(usize),
}

/// Prediction and target as booleans `[samples, classes]`.
pub(super) struct Decisions {
    pub(super) predicted: Tensor,
    pub(super) target: Tensor,
    /// True for a sample whose target is outside the classes: booleans `[samples]` or `[samples,
    /// labels]`.
    pub(super) outside: Tensor,
}

impl Task {
    /// The number of columns that are counted.
    pub(super) fn classes(self) -> usize {
        match self {
            Task::Multiclass(classes) | Task::Multilabel(classes) => classes,
            Task::Binary => 1,
        }
    }

    /// The shape of the samples. Predictions may be scores or classes.
    pub(super) fn samples(
        self,
        input: &Tensor,
        target: &Tensor,
        classes: bool,
    ) -> Result<Vec<usize>, Refusal> {
        live(&[input, target])?;
        let i = input.ty();
        let t = target.ty();
        let whole = !t.dtype.is_float();
        let dims = t.shape.dims();
        let input_dims = i.shape.dims();
        let (expected, is_valid) = match self {
            Task::Multiclass(n) => {
                let scores = i.dtype.is_float() && input_dims.split_last() == Some((&n, dims));
                let expected =
                    format!("scores [.., {n}] and the integer index of each right class [..]");
                (
                    expected,
                    n > 0
                        && t.dtype.is_integer()
                        && (scores || classes && i.dtype.is_integer() && input_dims == dims),
                )
            }
            Task::Binary => {
                let expected = "scores and targets that are 0 or 1, of one shape".to_owned();
                (expected, whole && input_dims == dims && (i.dtype.is_float() || classes))
            }
            Task::Multilabel(n) => {
                let expected =
                    format!("scores and targets that are 0 or 1, of one shape [.., {n}]");
                (
                    expected,
                    whole
                        && input_dims == dims
                        && dims.last() == Some(&n)
                        && (i.dtype.is_float() || classes),
                )
            }
        };
        if !is_valid {
            return Err(format!("needs {expected}, got {i} and {t}").into());
        }
        Ok(match self {
            Task::Multilabel(_) => {
                dims.split_last().map_or(Vec::new(), |(_, samples)| samples.to_vec())
            }
            _ => dims.to_vec(),
        })
    }

    /// The target's classes, and which are outside. A target of a sample in `mask` that is outside
    /// is a mistake of `metric`.
    pub(super) fn target(self, metric: &str, target: &Tensor, mask: &Tensor) -> (Tensor, Tensor) {
        let target = &NN.record(metric, || self.checked(metric, target, mask));
        match self {
            Task::Multiclass(classes) => {
                let (one_hot, inside) = index(target, classes);
                (one_hot, inside.not())
            }
            _ => {
                let target = columns(self, &target.to_dtype(DType::I64));
                let yes = target.eq(1.0);
                let no = target.eq(0.0);
                let outside = yes.or(no).not();
                (yes, outside)
            }
        }
    }

    /// Checks the targets of the samples in `mask`.
    fn checked(self, metric: &str, target: &Tensor, mask: &Tensor) -> Result<Tensor, Refusal> {
        let (classes, reason) = match self {
            Task::Multiclass(classes) => (classes, format!("there are {classes} classes")),
            Task::Binary | Task::Multilabel(_) => (2, "it must be 0 or 1".to_owned()),
        };
        let rule = IndexRule::below(metric, "a target", classes, reason);
        let mask = match self {
            Task::Multilabel(_) => &self.mask(mask).broadcast_to(target.shape()),
            _ => mask,
        };
        check_masked_indices(target, mask, rule)
    }

    /// The decision by scores: the class with the largest score (the first of equal ones, none if
    /// one is NaN), or whether a score is above the threshold.
    pub(super) fn decide(
        self,
        metric: &str,
        [input, target]: [&Tensor; 2],
        mask: &Tensor,
        threshold: f64,
    ) -> Decisions {
        let (target, outside) = self.target(metric, target, mask);
        let predicted = match self {
            Task::Multiclass(classes) if input.dtype().is_float() => {
                let largest = input.max_keepdim(-1);
                input.argmax(-1).one_hot(classes).and(largest.eq(&largest))
            }
            Task::Multiclass(classes) => index(input, classes).0,
            _ if input.dtype().is_float() => columns(self, &wide(input).gt(threshold)),
            _ => columns(self, &input.to_dtype(DType::I64).eq(1.0)),
        };
        Decisions { predicted, target, outside }
    }

    /// The mask of samples, shaped to broadcast over classes.
    pub(super) fn mask(self, mask: &Tensor) -> Tensor {
        let mut dims = mask.shape().to_vec();
        dims.push(1);
        mask.reshape(dims)
    }
}

/// The class of each sample as booleans `[samples, classes]`, and whether it is valid.
fn index(classes_of: &Tensor, classes: usize) -> (Tensor, Tensor) {
    // In i64, no index wraps around to a different one.
    let index = classes_of.to_dtype(DType::I64);
    let inside = index.ge(0.0).and(index.lt(classes as f64));
    let safe = inside.select(&index, &(index.zeros_like() - 1.0)).to_dtype(DType::I32);
    (safe.one_hot(classes), inside)
}

/// A single column for a binary task.
pub(super) fn columns(task: Task, x: &Tensor) -> Tensor {
    match task {
        Task::Binary => {
            let mut dims = x.shape().to_vec();
            dims.push(1);
            x.reshape(dims)
        }
        _ => x.clone(),
    }
}

/// How often each column is true: i32 `[columns]`.
pub(super) fn count(mask: &Tensor) -> Tensor {
    let samples: Vec<isize> = (0..mask.rank().saturating_sub(1) as isize).collect();
    mask.to_dtype(DType::I32).sum(&samples)
}

/// How often it is true: an i32 scalar.
pub(super) fn count_all(mask: &Tensor) -> Tensor {
    mask.to_dtype(DType::I32).sum_all()
}

/// The constructors, `average` and `update` of a metric with a [`Task`]; the docs in braces are
/// those of `update`.
macro_rules! by_task {
    ($name:ident, $default:ident, |$task:ident| $settings:expr; $(#[$update:meta])*) => {
        impl $name {
            #[doc = concat!("For one class among this many; the average is [`Average::", stringify!($default), "`].")]
            pub fn new(classes: usize) -> $name {
                $name::with_task(Task::Multiclass(classes))
            }

            /// For binary classification.
            pub fn binary() -> $name {
                $name::with_task(Task::Binary)
            }

            /// For `labels` binary labels. A macro average is over all labels.
            pub fn multilabel(labels: usize) -> $name {
                $name::with_task(Task::Multilabel(labels))
            }

            fn with_task($task: Task) -> $name {
                $name($settings)
            }

            /// How the scores of classes are averaged. A binary task has no classes to average
            /// over.
            pub fn average(mut self, average: Average) -> $name {
                self.0.average = average;
                self
            }

            $(#[$update])*
            #[track_caller]
            pub fn update(
                &self,
                input: impl fulmen_tensor::AsTensor,
                target: impl fulmen_tensor::AsTensor,
            ) -> $crate::metrics::MetricState {
                let input = input.as_tensor();
                let target = target.as_tensor();
                $crate::metrics::MetricState::record(self.0, stringify!($name), || {
                    let samples = self.0.samples(input, target)?;
                    Ok((vec![input.clone(), target.clone()], samples))
                })
            }
        }
    };
}
pub(super) use by_task;
