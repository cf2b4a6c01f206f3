//! Binary classification: cross-entropy of probabilities and of logits, and the focal loss.

use fulmen_tensor::{AsTensor, Refusal, Tensor};

use super::Reduction;
use super::check::{pair, weight};
use crate::activation::log_sigmoid;
use crate::library::NN;

/// `−(target·log p + (1 − target)·log(1 − p))`, elementwise, for probabilities and targets between
/// 0 and 1 of the same shape. Logarithms are clamped to at least −100. For logits,
/// [`binary_cross_entropy_with_logits`] is more exact.
///
/// A probability outside 0 to 1 gives NaN.
///
/// ```
/// use fulmen_nn::loss::{Reduction, binary_cross_entropy};
/// use fulmen_tensor::Tensor;
/// let p = Tensor::from_slice(&[0.5f32, 1.0, 0.0], [3]);
/// let target = Tensor::from_slice(&[1.0f32, 1.0, 1.0], [3]);
/// let losses = binary_cross_entropy(&p, &target, Reduction::None);
/// assert_eq!(losses.eval()?.to_vec::<f32>()?, [2f32.ln(), 0.0, 100.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn binary_cross_entropy(
    p: impl AsTensor,
    target: impl AsTensor,
    reduction: Reduction,
) -> Tensor {
    let p = p.as_tensor();
    let target = target.as_tensor();
    BceLoss::new().reduction(reduction).forward(p, target)
}

/// [`binary_cross_entropy`] with settings, like PyTorch's `nn.BCELoss`.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct BceLoss {
    reduction: Reduction,
    weight: Option<Tensor>,
}

impl BceLoss {
    /// The mean, without weights.
    pub fn new() -> BceLoss {
        BceLoss::default()
    }

    /// How the losses are reduced.
    pub fn reduction(mut self, reduction: Reduction) -> BceLoss {
        self.reduction = reduction;
        self
    }

    /// The weight of the losses; it broadcasts to them.
    pub fn weight(mut self, weight: impl AsTensor) -> BceLoss {
        self.weight = Some(weight.as_tensor().clone());
        self
    }

    /// The loss. Poisoned if the shapes differ, if the probabilities are not floating-point, or if
    /// the weight does not fit.
    #[track_caller]
    pub fn forward(&self, p: impl AsTensor, target: impl AsTensor) -> Tensor {
        NN.record("binary_cross_entropy", || {
            let p = p.as_tensor();
            let target = target.as_tensor();
            let (p, target) = pair(p, target)?;
            // If p is 0 or 1, the derivative of the logarithm is infinite. There, the loss is
            // continued by a straight line with PyTorch's slope.
            let flat = (&p * (-&p + 1.0)).lt(1e-12);
            let inner = flat.select(&Tensor::full(p.dtype(), [], 0.5), &p);
            let value = p.detach();
            let log_p = flat.select(&value.log().maximum(-100.0), &inner.log());
            let log_q = flat.select(&(-&value).log1p().maximum(-100.0), &(-inner).log1p());
            let slope = ((&value - &target) / 1e-12).detach();
            let line = flat.select(&((&p - &value) * slope), &p.zeros_like());
            let losses = line - (&target * log_p + (-&target + 1.0) * log_q);
            finish(self.reduction, losses, self.weight.as_ref())
        })
    }
}

/// [`binary_cross_entropy`] of `sigmoid(logits)`, in a formula that is exact for large logits too.
///
/// ```
/// use fulmen_nn::loss::{Reduction, binary_cross_entropy_with_logits};
/// use fulmen_tensor::Tensor;
/// let logits = Tensor::from_slice(&[0.0f32, -500.0], [2]);
/// let target = Tensor::from_slice(&[true, true], [2]);
/// let losses = binary_cross_entropy_with_logits(&logits, &target, Reduction::None);
/// assert_eq!(losses.eval()?.to_vec::<f32>()?, [2f32.ln(), 500.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn binary_cross_entropy_with_logits(
    logits: impl AsTensor,
    target: impl AsTensor,
    reduction: Reduction,
) -> Tensor {
    let logits = logits.as_tensor();
    let target = target.as_tensor();
    BceWithLogitsLoss::new().reduction(reduction).forward(logits, target)
}

/// [`binary_cross_entropy_with_logits`] with settings, like PyTorch's `nn.BCEWithLogitsLoss`.
///
/// ```
/// use fulmen_nn::loss::{BceWithLogitsLoss, Reduction};
/// use fulmen_tensor::{DType, Tensor};
///
/// // Five labels; the last one is rare.
/// let loss = BceWithLogitsLoss::new().pos_weight(&Tensor::from_slice(&[1.0f32, 1.0, 1.0, 1.0, 20.0], [5]));
/// let losses = loss.reduction(Reduction::None).forward(&Tensor::zeros(DType::F32, [8, 5]), &Tensor::ones(DType::I32, [8, 5]));
/// assert!((losses.sum_all().eval()?.to_vec::<f32>()?[0] - 8.0 * 24.0 * 2f32.ln()).abs() < 1e-3);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct BceWithLogitsLoss {
    reduction: Reduction,
    weight: Option<Tensor>,
    pos_weight: Option<Tensor>,
}

impl BceWithLogitsLoss {
    /// The mean, without weights.
    pub fn new() -> BceWithLogitsLoss {
        BceWithLogitsLoss::default()
    }

    /// How the losses are reduced.
    pub fn reduction(mut self, reduction: Reduction) -> BceWithLogitsLoss {
        self.reduction = reduction;
        self
    }

    /// The weight of the losses; it broadcasts to them.
    pub fn weight(mut self, weight: impl AsTensor) -> BceWithLogitsLoss {
        self.weight = Some(weight.as_tensor().clone());
        self
    }

    /// The weight of positive targets; it broadcasts to the losses.
    pub fn pos_weight(mut self, weight: impl AsTensor) -> BceWithLogitsLoss {
        self.pos_weight = Some(weight.as_tensor().clone());
        self
    }

    /// The loss. Poisoned if the shapes differ, if the logits are not floating-point, or if weights
    /// do not fit.
    #[track_caller]
    pub fn forward(&self, logits: impl AsTensor, target: impl AsTensor) -> Tensor {
        NN.record("binary_cross_entropy_with_logits", || {
            let logits = logits.as_tensor();
            let target = target.as_tensor();
            let (x, target) = pair(logits, target)?;
            let mut no = minus_log_sigmoid(&x);
            if let Some(positive) = &self.pos_weight {
                let positive = weight("weight of positives", positive, &x, x.dtype())?;
                no = no * ((positive - 1.0) * &target + 1.0);
            }
            finish(self.reduction, (-target + 1.0) * x + no, self.weight.as_ref())
        })
    }
}

/// `−log sigmoid(x) = log(1 + e⁻ˣ)`, elementwise.
pub(super) fn minus_log_sigmoid(x: &Tensor) -> Tensor {
    -log_sigmoid(x)
}

/// Applies the weights and the reduction.
fn finish(
    reduction: Reduction,
    losses: Tensor,
    factor: Option<&Tensor>,
) -> Result<Tensor, Refusal> {
    let Some(factor) = factor else { return Ok(reduction.apply(&losses)) };
    let factor = weight("weight", factor, &losses, losses.dtype())?;
    Ok(reduction.apply(&(losses * factor)))
}

/// `−αₜ(1 − pₜ)^γ·log pₜ`, where `pₜ` is the probability that `sigmoid(logits)` gives to the target
/// and `αₜ` is `alpha` for positive and `1 − alpha` for negative targets: torchvision's
/// `sigmoid_focal_loss`, whose α is 0.25 and γ is 2.
///
/// Poisoned like [`binary_cross_entropy_with_logits`].
///
/// ```
/// use fulmen_nn::loss::{Reduction, sigmoid_focal_loss};
/// use fulmen_tensor::Tensor;
/// let logits = Tensor::from_slice(&[0.0f32], [1]);
/// let target = Tensor::from_slice(&[1.0f32], [1]);
/// let loss = sigmoid_focal_loss(&logits, &target, Reduction::Sum).eval()?.to_vec::<f32>()?;
/// assert!((loss[0] - 0.25 * 0.25 * 2f32.ln()).abs() < 1e-6);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn sigmoid_focal_loss(
    logits: impl AsTensor,
    target: impl AsTensor,
    reduction: Reduction,
) -> Tensor {
    let logits = logits.as_tensor();
    let target = target.as_tensor();
    SigmoidFocalLoss::new().reduction(reduction).forward(logits, target)
}

/// [`sigmoid_focal_loss`] with settings.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct SigmoidFocalLoss {
    reduction: Reduction,
    alpha: Option<f64>,
    gamma: f64,
}

impl SigmoidFocalLoss {
    /// The mean (torchvision does not reduce by default), with α = 0.25 and γ = 2.
    pub fn new() -> SigmoidFocalLoss {
        SigmoidFocalLoss { reduction: Reduction::Mean, alpha: Some(0.25), gamma: 2.0 }
    }

    /// How the losses are reduced.
    pub fn reduction(mut self, reduction: Reduction) -> SigmoidFocalLoss {
        self.reduction = reduction;
        self
    }

    /// The weight of positive targets, between 0 and 1; `None` for no weights.
    pub fn alpha(mut self, alpha: impl Into<Option<f64>>) -> SigmoidFocalLoss {
        self.alpha = alpha.into();
        self
    }

    /// The focusing parameter: larger values reduce the weight of well-classified samples.
    pub fn gamma(mut self, gamma: f64) -> SigmoidFocalLoss {
        self.gamma = gamma;
        self
    }

    /// The loss. Poisoned like [`binary_cross_entropy_with_logits`], and if α is not between 0 and
    /// 1 or γ is negative.
    #[track_caller]
    pub fn forward(&self, logits: impl AsTensor, target: impl AsTensor) -> Tensor {
        NN.record("sigmoid_focal_loss", || {
            let logits = logits.as_tensor();
            let target = target.as_tensor();
            let (x, target) = pair(logits, target)?;
            if self.gamma.is_nan()
                || self.gamma < 0.0
                || !self.alpha.is_none_or(|alpha| (0.0..=1.0).contains(&alpha))
            {
                let message = format!(
                    "alpha must be between 0 and 1 and gamma at least 0, not {:?} and {}",
                    self.alpha, self.gamma
                );
                return Err(message.into());
            }
            let mut losses = (-&target + 1.0) * &x + minus_log_sigmoid(&x);
            let p = x.sigmoid();
            // The probability of the wrong class.
            let wrong = &p + &target - &p * &target * 2.0;
            if self.gamma != 0.0 {
                losses = losses * wrong.pow(self.gamma);
            }
            if let Some(alpha) = self.alpha {
                losses = losses * (&target * (2.0 * alpha - 1.0) + (1.0 - alpha));
            }
            Ok(self.reduction.apply(&losses))
        })
    }
}

impl Default for SigmoidFocalLoss {
    fn default() -> SigmoidFocalLoss {
        SigmoidFocalLoss::new()
    }
}
