//! The Kullback-Leibler divergence.

use fulmen_tensor::{AsTensor, Tensor};

use super::Reduction;
use super::check::pair;
use crate::library::NN;

/// `target·(log target − input)`, elementwise, for log-probabilities `input` and probabilities
/// `target` of the same shape.
///
/// The mean is over all elements, as PyTorch's is by default. The divergence of a sample is the sum
/// over its classes. With padding, `kl_div(…, Reduction::None).sum(-1)` gives one value for each
/// sample.
///
/// ```
/// use fulmen_nn::loss::{Reduction, kl_div};
/// use fulmen_tensor::Tensor;
///
/// let p = Tensor::from_slice(&[0.5f32, 0.5], [1, 2]);
/// let q = Tensor::from_slice(&[1.0f32, 0.0], [1, 2]);
/// let divergence = kl_div(&p.log(), &q, Reduction::None).sum(-1);
/// assert_eq!(divergence.eval()?.to_vec::<f32>()?, [2f32.ln()]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn kl_div(input: impl AsTensor, target: impl AsTensor, reduction: Reduction) -> Tensor {
    let input = input.as_tensor();
    let target = target.as_tensor();
    KlDivLoss::new().reduction(reduction).forward(input, target)
}

/// [`kl_div`] with settings, like PyTorch's `nn.KLDivLoss`.
///
/// ```
/// use fulmen_nn::loss::KlDivLoss;
/// use fulmen_tensor::{DType, Tensor};
///
/// let student = Tensor::zeros(DType::F32, [8, 10]);
/// let teacher = Tensor::zeros(DType::F32, [8, 10]);
/// let distillation = KlDivLoss::new().batchmean(true).log_target(true);
/// let loss = distillation.forward(&student.log_softmax(-1), &teacher.log_softmax(-1));
/// assert_eq!(loss.eval()?.to_vec::<f32>()?, [0.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct KlDivLoss {
    reduction: Reduction,
    batchmean: bool,
    log_target: bool,
}

impl KlDivLoss {
    /// The mean over all elements, for a target of probabilities.
    pub fn new() -> KlDivLoss {
        KlDivLoss { reduction: Reduction::Mean, batchmean: false, log_target: false }
    }

    /// How the elements are reduced.
    pub fn reduction(mut self, reduction: Reduction) -> KlDivLoss {
        self.reduction = reduction;
        self.batchmean = false;
        self
    }

    /// Whether to divide the sum by the size of the first axis, which gives the mathematical
    /// divergence (PyTorch's `reduction="batchmean"`).
    pub fn batchmean(mut self, batchmean: bool) -> KlDivLoss {
        self.batchmean = batchmean;
        self
    }

    /// Whether the target is log-probabilities.
    pub fn log_target(mut self, log_target: bool) -> KlDivLoss {
        self.log_target = log_target;
        self
    }

    /// The divergence. Poisoned if the input is not floating-point, if the shapes differ, or if a
    /// batch mean of scalars is requested.
    #[track_caller]
    pub fn forward(&self, input: impl AsTensor, target: impl AsTensor) -> Tensor {
        NN.record("kl_div", || {
            let input = input.as_tensor();
            let target = target.as_tensor();
            let (input, target) = pair(input, target)?;
            if self.batchmean && input.rank() == 0 {
                return Err(
                    "batchmean divides by the size of the first axis, and scalars have none".into(),
                );
            }
            let losses = if self.log_target {
                target.exp() * (&target - &input)
            } else {
                // 0·log 0 is 0, and so is its gradient.
                let is_zero = target.eq(0.0);
                let log = is_zero.select(&target.ones_like(), &target).log();
                &target * log - &target * &input
            };
            if self.batchmean {
                return Ok(losses.sum_all() / input.size(0) as f64);
            }
            Ok(self.reduction.apply(&losses))
        })
    }
}

impl Default for KlDivLoss {
    fn default() -> KlDivLoss {
        KlDivLoss::new()
    }
}
