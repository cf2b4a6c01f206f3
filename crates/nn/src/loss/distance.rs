//! Elementwise distances between prediction and target: squared, absolute, and combinations of
//! both.

use fulmen_tensor::{AsTensor, Tensor};

use super::Reduction;
use super::check::{at_least_zero, pair};
use crate::library::NN;

/// `(prediction − target)²`. 16-bit floats are computed in f32.
///
/// Poisoned if the shapes differ. Broadcasting would repeat one of them, which is rarely intended.
///
/// ```
/// use fulmen_nn::loss::{Reduction, mse_loss};
/// use fulmen_tensor::{DType, Tensor};
/// let loss = mse_loss(&Tensor::from_slice(&[1.0f32, 5.0], [2]), &Tensor::zeros(DType::F32, [2]), Reduction::Mean);
/// assert_eq!(loss.eval()?.to_vec::<f32>()?, [13.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn mse_loss(prediction: impl AsTensor, target: impl AsTensor, reduction: Reduction) -> Tensor {
    NN.record("mse_loss", || {
        let (prediction, target) = pair(prediction.as_tensor(), target.as_tensor())?;
        let difference = prediction - target;
        Ok(reduction.apply(&(&difference * &difference)))
    })
}

/// `|prediction − target|`, poisoned like [`mse_loss`].
///
/// ```
/// use fulmen_nn::loss::{Reduction, l1_loss};
/// use fulmen_tensor::{DType, Tensor};
/// let loss = l1_loss(&Tensor::from_slice(&[1.0f32, -5.0], [2]), &Tensor::zeros(DType::F32, [2]), Reduction::Mean);
/// assert_eq!(loss.eval()?.to_vec::<f32>()?, [3.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn l1_loss(prediction: impl AsTensor, target: impl AsTensor, reduction: Reduction) -> Tensor {
    NN.record("l1_loss", || {
        let (prediction, target) = pair(prediction.as_tensor(), target.as_tensor())?;
        Ok(reduction.apply(&(prediction - target).abs()))
    })
}

/// `½d²` if `|d| ≤ delta`, else `delta·(|d| − ½delta)`, for `d = prediction − target`; PyTorch's
/// `delta` is 1.
///
/// Poisoned like [`mse_loss`], and if `delta` is not above 0.
///
/// ```
/// use fulmen_nn::loss::{Reduction, huber_loss};
/// use fulmen_tensor::{DType, Tensor};
/// let loss = huber_loss(&Tensor::from_slice(&[1.0f32, 5.0], [2]), &Tensor::zeros(DType::F32, [2]), 2.0, Reduction::None);
/// assert_eq!(loss.eval()?.to_vec::<f32>()?, [0.5, 8.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn huber_loss(
    prediction: impl AsTensor,
    target: impl AsTensor,
    delta: f64,
    reduction: Reduction,
) -> Tensor {
    NN.record("huber_loss", || {
        let prediction = prediction.as_tensor();
        let target = target.as_tensor();
        let (prediction, target) = pair(prediction, target)?;
        if delta.is_nan() || delta <= 0.0 || delta.is_infinite() {
            return Err(format!("delta must be above 0, but it is {delta}").into());
        }
        Ok(reduction.apply(&huber(&(prediction - target), delta)))
    })
}

/// `½d²/beta` if `|d| < beta`, else `|d| − ½beta`, for `d = prediction − target`; PyTorch's `beta`
/// is 1. With a `beta` of 0 it equals [`l1_loss`].
///
/// Poisoned like [`mse_loss`], and if `beta` is negative.
///
/// ```
/// use fulmen_nn::loss::{Reduction, smooth_l1_loss};
/// use fulmen_tensor::{DType, Tensor};
/// let x = Tensor::from_slice(&[1.0f32, 5.0], [2]);
/// let loss = smooth_l1_loss(&x, &Tensor::zeros(DType::F32, [2]), 2.0, Reduction::None);
/// assert_eq!(loss.eval()?.to_vec::<f32>()?, [0.25, 4.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn smooth_l1_loss(
    prediction: impl AsTensor,
    target: impl AsTensor,
    beta: f64,
    reduction: Reduction,
) -> Tensor {
    NN.record("smooth_l1_loss", || {
        let prediction = prediction.as_tensor();
        let target = target.as_tensor();
        let (prediction, target) = pair(prediction, target)?;
        at_least_zero("beta", beta)?;
        let difference = prediction - target;
        Ok(reduction.apply(&if beta == 0.0 {
            difference.abs()
        } else {
            huber(&difference, beta) / beta
        }))
    })
}

/// `c·(d − ½c)`, where `c` is `d` clamped to ±delta: both branches in one formula, with gradient
/// `c`.
fn huber(d: &Tensor, delta: f64) -> Tensor {
    let c = d.maximum(-delta).minimum(delta);
    &c * (d - &c * 0.5)
}

/// The settings of a loss of two tensors with one parameter.
macro_rules! losses {
    ($($(#[$doc:meta])* $name:ident $function:ident $setting:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[must_use]
        pub struct $name {
            reduction: Reduction,
            $setting: f64,
        }

        impl $name {
            #[doc = concat!("The mean, with a `", stringify!($setting), "` of 1.")]
            pub fn new() -> $name {
                $name { reduction: Reduction::Mean, $setting: 1.0 }
            }

            /// How the losses are reduced.
            pub fn reduction(mut self, reduction: Reduction) -> $name {
                self.reduction = reduction;
                self
            }

            /// Where the parabola meets the straight lines.
            pub fn $setting(mut self, $setting: f64) -> $name {
                self.$setting = $setting;
                self
            }

            #[doc = concat!("[`", stringify!($function), "`] with these settings.")]
            #[track_caller]
            pub fn forward(&self, prediction: impl AsTensor, target: impl AsTensor) -> Tensor {
                let prediction = prediction.as_tensor();
                let target = target.as_tensor();
                $function(prediction, target, self.$setting, self.reduction)
            }
        }

        impl Default for $name {
            fn default() -> $name {
                $name::new()
            }
        }
    )*};
}

losses! {
    /// [`huber_loss`] with settings, like PyTorch's `nn.HuberLoss`.
    HuberLoss huber_loss delta;
    /// [`smooth_l1_loss`] with settings, like PyTorch's `nn.SmoothL1Loss`.
    SmoothL1Loss smooth_l1_loss beta;
}
