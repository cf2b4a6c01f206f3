//! [`InceptionScore`] of generated images.

use fulmen_tensor::{AsTensor, DType, Tensor};

use super::{Metric, MetricState, Value};

/// The Inception Score of images from a classifier's logits: the exponential of the mean
/// Kullback-Leibler divergence of each image's class probabilities from their mean over all images.
/// Salimans et al. 2016, "Improved Techniques for Training GANs", whose classifier is TensorFlow's
/// Inception-v3.
///
/// It is computed within each split of the images. The value is the mean over the splits, or with
/// [`deviation`](InceptionScore::deviation) their standard deviation. Papers use ten splits of 5,000
/// images.
///
/// ```
/// use fulmen_nn::metrics::InceptionScore;
/// use fulmen_tensor::Tensor;
/// let sure = Tensor::from_slice(&[99.0f32, 0.0, 0.0, 99.0], [2, 2]); // two images, two classes
/// let split = Tensor::from_slice(&[0i32, 0], [2]);
/// let score = InceptionScore::new(1).update(&sure, &split).eval()?.compute().scalar();
/// assert!((score.unwrap_or(0.0) - 2.0).abs() < 1e-5);
/// # Ok::<(), fulmen_nn::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct InceptionScore {
    splits: usize,
    deviation: bool,
}

impl InceptionScore {
    /// Over this many splits.
    pub fn new(splits: usize) -> InceptionScore {
        InceptionScore { splits, deviation: false }
    }

    /// Whether the value is the standard deviation over the splits instead of their mean.
    pub fn deviation(mut self, deviation: bool) -> InceptionScore {
        self.deviation = deviation;
        self
    }

    /// The state of a batch: logits `[images, classes]` and the split of each image, integers
    /// `[images]` from 0. The value is NaN if a split has no images. Images of other splits do not
    /// count. Poisoned if shapes or dtypes are invalid.
    #[track_caller]
    pub fn update(&self, logits: impl AsTensor, split: impl AsTensor) -> MetricState {
        let logits = logits.as_tensor();
        let split = split.as_tensor();
        MetricState::record(*self, "InceptionScore", || {
            let logits = logits.live()?;
            let split = split.live()?;
            let is_valid = logits.dtype().is_float()
                && logits.rank() == 2
                && split.dtype().is_integer()
                && split.shape()[..] == logits.shape()[..1];
            if !is_valid {
                let message = format!(
                    "needs floating-point logits [images, classes] and the splits of the images, integers [images], got \
                     {} and {}",
                    logits.ty(),
                    split.ty()
                );
                return Err(message.into());
            }
            Ok((vec![logits.clone(), split.clone()], split.shape().to_vec()))
        })
    }
}

impl Metric for InceptionScore {
    fn statistics(&self, inputs: &[Tensor], mask: &Tensor) -> Vec<Tensor> {
        let [logits, split] = inputs else { return Vec::new() };
        let splits = Tensor::arange(DType::I32, self.splits);
        let in_split = split.to_dtype(DType::I32).unsqueeze(1).eq(splits.unsqueeze(0));
        let in_split = in_split.and(mask.unsqueeze(1)); // [images, splits]
        let counts = in_split.to_dtype(DType::I32).sum(0);
        let log_p = logits.to_dtype(DType::F32).log_softmax(-1);
        let p = log_p.exp();
        let terms = p.gt(0.0).select(&p * &log_p, p.zeros_like()).sum(-1);
        let in_split = in_split.unsqueeze(2); // [images, splits, 1]
        let sum = |x: &Tensor| {
            let x = x.unsqueeze(1).broadcast_to([x.size(0), self.splits, x.size(1)]);
            in_split.broadcast_to(x.shape()).select(&x, x.zeros_like()).sum(0)
        };
        vec![counts, sum(&terms.unsqueeze(1)), sum(&p)]
    }

    fn compute(&self, sums: &[Vec<f64>]) -> Value {
        let [counts, terms, p] = sums else { return Value::Scalar(f64::NAN) };
        let classes = p.len() / self.splits.max(1);
        let scores: Vec<f64> = counts
            .iter()
            .zip(terms)
            .zip(p.chunks(classes.max(1)))
            .map(|((count, term), p)| {
                let means = p.iter().map(|p| p / count).filter(|mean| *mean != 0.0);
                let of_mean: f64 = means.map(|mean| mean * mean.ln()).sum();
                (term / count - of_mean).exp()
            })
            .collect();
        let n = scores.len() as f64;
        let mean = scores.iter().sum::<f64>() / n;
        if !self.deviation {
            return Value::Scalar(mean);
        }
        let variance = scores.iter().map(|score| (score - mean) * (score - mean)).sum::<f64>() / n;
        Value::Scalar(variance.sqrt())
    }
}
