//! [`Perplexity`] of a language model.

use fulmen_tensor::internal::{IndexRule, check_masked_indices};
use fulmen_tensor::{AsTensor, DType, Tensor};

use super::labels::count_all;
use super::mean::{mean, sum};
use super::{Metric, MetricState, Value};
use crate::library::NN;
use crate::loss::{Reduction, cross_entropy};

/// `exp` of the mean cross-entropy of all tokens, which is not the mean of the batches'
/// perplexities.
///
/// An unmasked token outside `0..classes` makes it NaN.
///
/// ```
/// use fulmen_nn::metrics::Perplexity;
/// use fulmen_tensor::{DType, Tensor};
/// let tokens = Tensor::from_slice(&[4i32, 2, -100, 1, 3, -100], [2, 3]);
/// let logits = Tensor::zeros(DType::F32, [2, 3, 5]);
/// let value = Perplexity::new().ignore_index(-100).update(&logits, &tokens).eval()?.compute().scalar();
/// assert!((value.unwrap_or(0.0) - 5.0).abs() < 1e-5);
/// # Ok::<(), fulmen_nn::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[must_use]
pub struct Perplexity {
    ignore_index: Option<i64>,
}

impl Perplexity {
    /// Over all tokens.
    pub fn new() -> Perplexity {
        Perplexity::default()
    }

    /// Ignores tokens with this id.
    pub fn ignore_index(mut self, token: i64) -> Perplexity {
        self.ignore_index = Some(token);
        self
    }

    /// The state of a batch: logits `[…, classes]` and the right tokens, integers `[…]`. Poisoned
    /// if shapes or dtypes are invalid.
    #[track_caller]
    pub fn update(&self, logits: impl AsTensor, target: impl AsTensor) -> MetricState {
        let _scope = NN.open();
        let logits = logits.as_tensor();
        let target = target.as_tensor();
        let statistics = MetricState::record(*self, "Perplexity", || {
            if !target.live()?.dtype().is_integer() {
                return Err(format!("needs integer token ids, got {}", target.ty()).into());
            }
            // The tokens themselves are checked with their mask.
            cross_entropy(logits, target.zeros_like(), Reduction::None).live()?;
            Ok((vec![logits.clone(), target.clone()], target.shape().to_vec()))
        });
        match self.ignore_index {
            Some(token) if statistics.fault().is_none() => {
                statistics.masked(&target.to_dtype(DType::I64).ne(Tensor::scalar(token)))
            }
            _ => statistics,
        }
    }
}

impl Metric for Perplexity {
    fn statistics(&self, inputs: &[Tensor], mask: &Tensor) -> Vec<Tensor> {
        let [logits, target] = inputs else { return Vec::new() };
        let losses = NN.record("Perplexity", || {
            let classes = logits.size(-1);
            let reason = format!("there are {classes} classes");
            let rule = IndexRule::below("Perplexity", "a token", classes, reason);
            let target = check_masked_indices(target, mask, rule)?;
            Ok(cross_entropy(logits, &target, Reduction::None))
        });
        vec![sum(&losses, mask), count_all(mask)]
    }

    fn compute(&self, sums: &[Vec<f64>]) -> Value {
        Value::Scalar(mean(sums).exp())
    }
}
