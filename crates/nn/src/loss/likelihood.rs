//! Negative log-likelihoods of numbers under a normal and a Poisson distribution. For classes, see
//! `cross_entropy`.

use std::f64::consts::PI;

use fulmen_tensor::{AsTensor, Tensor};

use super::Reduction;
use super::check::pair;
use crate::library::{NN, live};
use crate::precision::{precision, wide};

/// `½(log σ² + (prediction − target)²/σ²)` for a normal distribution with mean `prediction` and
/// variance `variance`, clamped to at least 1e-6.
///
/// The variance has the prediction's shape or one value for the whole last axis: size 1 there, or
/// no such axis. A negative variance gives NaN.
///
/// ```
/// use fulmen_nn::loss::{Reduction, gaussian_nll_loss};
/// use fulmen_tensor::{DType, Tensor};
/// let x = Tensor::from_slice(&[0.0f32, 2.0], [2]);
/// let one = Tensor::ones(DType::F32, [2]);
/// let losses = gaussian_nll_loss(&x, &x.zeros_like(), &one, Reduction::None);
/// assert_eq!(losses.eval()?.to_vec::<f32>()?, [0.0, 2.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn gaussian_nll_loss(
    prediction: impl AsTensor,
    target: impl AsTensor,
    variance: impl AsTensor,
    reduction: Reduction,
) -> Tensor {
    let prediction = prediction.as_tensor();
    let target = target.as_tensor();
    let variance = variance.as_tensor();
    GaussianNllLoss::new().reduction(reduction).forward(prediction, target, variance)
}

/// [`gaussian_nll_loss`] with settings, like PyTorch's `nn.GaussianNLLLoss`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct GaussianNllLoss {
    reduction: Reduction,
    full: bool,
    eps: f64,
}

impl GaussianNllLoss {
    /// The mean, without the constant, with variances of at least 1e-6.
    pub fn new() -> GaussianNllLoss {
        GaussianNllLoss { reduction: Reduction::Mean, full: false, eps: 1e-6 }
    }

    /// How the losses are reduced.
    pub fn reduction(mut self, reduction: Reduction) -> GaussianNllLoss {
        self.reduction = reduction;
        self
    }

    /// Whether to add the constant `½log 2π`.
    pub fn full(mut self, full: bool) -> GaussianNllLoss {
        self.full = full;
        self
    }

    /// The lower bound of the variance. As in PyTorch, the gradient ignores it.
    pub fn eps(mut self, eps: f64) -> GaussianNllLoss {
        self.eps = eps;
        self
    }

    /// The loss. Poisoned if the shapes of prediction and target differ, or the variance does not
    /// fit them.
    #[track_caller]
    pub fn forward(
        &self,
        prediction: impl AsTensor,
        target: impl AsTensor,
        variance: impl AsTensor,
    ) -> Tensor {
        NN.record("gaussian_nll_loss", || {
            let prediction = prediction.as_tensor();
            let target = target.as_tensor();
            let variance = variance.as_tensor();
            live(&[prediction, target, variance])?;
            let (prediction, target) = pair(prediction, target)?;
            if self.eps.is_nan() || self.eps <= 0.0 {
                return Err(format!("eps must be above 0, but it is {}", self.eps).into());
            }
            let dims = prediction.shape().dims();
            let variance_dims = variance.shape().dims();
            let mut keepdim_dims = dims.to_vec();
            if let Some(last) = keepdim_dims.last_mut() {
                *last = 1;
            }
            let without_last =
                dims.len() == variance_dims.len() + 1 && dims.starts_with(variance_dims);
            if !variance.dtype().is_float()
                || !(variance_dims == dims || variance_dims == keepdim_dims || without_last)
            {
                let message = format!(
                    "the variance must be floating-point numbers of the prediction's shape, \
                     or one for its last axis; the prediction is {}, the variance {}",
                    prediction.ty(),
                    variance.ty()
                );
                return Err(message.into());
            }
            let mut variance = variance.to_dtype(precision(prediction.dtype()));
            if without_last {
                variance = variance.reshape(keepdim_dims);
            }
            // The amount added to reach eps is a constant for the gradient.
            let raised = &variance + (variance.maximum(self.eps) - &variance).detach();
            let nan = Tensor::full(variance.dtype(), [], f64::NAN);
            let valid_variance = variance.lt(0.0).select(&nan, &raised);
            let difference = prediction - target;
            let mut losses =
                (valid_variance.log() + &difference * &difference / valid_variance) * 0.5;
            if self.full {
                losses = losses + 0.5 * (2.0 * PI).ln();
            }
            Ok(self.reduction.apply(&losses))
        })
    }
}

impl Default for GaussianNllLoss {
    fn default() -> GaussianNllLoss {
        GaussianNllLoss::new()
    }
}

/// `exp(input) − target·input`, for the logarithm of a Poisson rate and a count.
///
/// ```
/// use fulmen_nn::loss::{Reduction, poisson_nll_loss};
/// use fulmen_tensor::{DType, Tensor};
/// let loss = poisson_nll_loss(&Tensor::zeros(DType::F32, [4]), &Tensor::ones(DType::I32, [4]), Reduction::Sum);
/// assert_eq!(loss.eval()?.to_vec::<f32>()?, [4.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn poisson_nll_loss(
    input: impl AsTensor,
    target: impl AsTensor,
    reduction: Reduction,
) -> Tensor {
    let input = input.as_tensor();
    let target = target.as_tensor();
    PoissonNllLoss::new().reduction(reduction).forward(input, target)
}

/// [`poisson_nll_loss`] with settings, like PyTorch's `nn.PoissonNLLLoss`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct PoissonNllLoss {
    reduction: Reduction,
    log_input: bool,
    full: bool,
    eps: f64,
}

impl PoissonNllLoss {
    /// The mean, for logarithms of rates, without Stirling's term.
    pub fn new() -> PoissonNllLoss {
        PoissonNllLoss { reduction: Reduction::Mean, log_input: true, full: false, eps: 1e-8 }
    }

    /// How the losses are reduced.
    pub fn reduction(mut self, reduction: Reduction) -> PoissonNllLoss {
        self.reduction = reduction;
        self
    }

    /// Whether the input is the logarithm of the rate; if not, the loss is `input −
    /// target·log(input + eps)`.
    pub fn log_input(mut self, log_input: bool) -> PoissonNllLoss {
        self.log_input = log_input;
        self
    }

    /// Whether to add Stirling's approximation of `log target!` where the target is above 1.
    pub fn full(mut self, full: bool) -> PoissonNllLoss {
        self.full = full;
        self
    }

    /// The constant that keeps the logarithm of a rate of 0 finite.
    pub fn eps(mut self, eps: f64) -> PoissonNllLoss {
        self.eps = eps;
        self
    }

    /// The loss. Poisoned if the shapes of input and target differ.
    #[track_caller]
    pub fn forward(&self, input: impl AsTensor, target: impl AsTensor) -> Tensor {
        NN.record("poisson_nll_loss", || {
            let input = input.as_tensor();
            let target = target.as_tensor();
            let (input, target) = pair(input, target)?;
            let mut losses = if self.log_input {
                input.exp() - &target * &input
            } else {
                &input - &target * (&input + self.eps).log()
            };
            if self.full {
                let large = target.gt(1.0);
                let t = wide(&large.select(&target, &target.ones_like()));
                let stirling = &t * t.log() - &t + (&t * (2.0 * PI)).log() * 0.5;
                losses = losses + large.select(&stirling, &stirling.zeros_like());
            }
            Ok(self.reduction.apply(&losses))
        })
    }
}

impl Default for PoissonNllLoss {
    fn default() -> PoissonNllLoss {
        PoissonNllLoss::new()
    }
}
