//! [`BatchNorm1d`], [`BatchNorm2d`] and [`BatchNorm3d`]: normalization by the statistics of a batch. With weight and
//! bias by class, it is [`ConditionalBatchNorm2d`](crate::ConditionalBatchNorm2d).

use std::fmt;
use std::ops::RangeInclusive;

use fulmen_tensor::{AsTensor, Tensor};

use super::normalize::{beside_channels, not_float, other_channels};
use super::running::Running;
use crate::precision::precision;
use crate::{Forward, Init, Module, Parameter, TrainingMode};

/// The layer's settings as the arithmetic sees them, whatever the number of axes.
pub(super) struct Norm<'a> {
    pub(super) running: Option<&'a Running>,
    pub(super) features: usize,
    pub(super) eps: f64,
    pub(super) momentum: Option<f64>,
    pub(super) training: bool,
    /// The numbers of axes that an input may have, and how they are called.
    pub(super) ranks: RangeInclusive<usize>,
    pub(super) layout: &'static str,
    /// Whether the input is so large that reading it twice costs time.
    pub(super) one_pass: bool,
}

impl Norm<'_> {
    /// Why this input or these settings cannot be, if they cannot.
    pub(super) fn misfit(&self, x: &Tensor) -> Option<String> {
        let ty = x.ty();
        if !self.ranks.contains(&x.rank()) {
            return Some(format!("the input {ty} is not {}", self.layout.replace('C', &self.features.to_string())));
        }
        if let Some(message) = other_channels(x, self.features).or_else(|| not_float(x)) {
            return Some(message);
        }
        if (self.training || self.running.is_none()) && count(x) < 2 {
            let when = if self.training { "while training" } else { "without running statistics" };
            return Some(format!(
                "the input {ty} has {} value a channel; the variance of a batch needs at least 2 {when}",
                count(x)
            ));
        }
        None
    }

    /// `(x − mean)/√(var + eps)·weight + bias`; weight and bias broadcast to the input.
    #[track_caller]
    pub(super) fn apply(&self, x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>) -> Tensor {
        let dtype = precision(x.dtype());
        let wide = x.to_dtype(dtype);
        let shape = beside_channels(x.rank(), self.features);
        let axes: Vec<isize> = (0..x.rank() as isize).filter(|&axis| axis != 1).collect();
        let (mean, var) = match self.running {
            Some(running) if !self.training => (
                running.mean.get().to_dtype(dtype).reshape(&*shape),
                running.var.get().to_dtype(dtype).reshape(&*shape),
            ),
            Some(running) => {
                let (mean, var) = match self.one_pass {
                    true => in_one_pass(&wide, &axes, &running.mean.get().to_dtype(dtype).reshape(&*shape)),
                    false => (wide.mean_keepdim(&axes), wide.var_keepdim(&axes)),
                };
                running.count_batch();
                running.track(&mean, &var, count(x), self.momentum);
                (mean, var)
            }
            None => (wide.mean_keepdim(&axes), wide.var_keepdim(&axes)),
        };
        let mut scale = (var + self.eps).rsqrt();
        if let Some(weight) = weight {
            scale = scale * weight.to_dtype(dtype);
        }
        let mut y = (wide - mean) * scale;
        if let Some(bias) = bias {
            y = y + bias.to_dtype(dtype);
        }
        y.to_dtype(x.dtype())
    }
}

/// Mean and variance along `axes`. One pass: for the mean first and then the squares of what is left, a large input is
/// read twice, and devices meet twice. The shift by `near`, some number not far from the mean, cancels out; it keeps what
/// the difference of two large squares would lose.
#[track_caller]
fn in_one_pass(x: &Tensor, axes: &[isize], near: &Tensor) -> (Tensor, Tensor) {
    // Running statistics that are no longer finite must not spoil those of a batch that is.
    let near = near.is_finite().select(near, &near.zeros_like()).detach();
    let shifted = x - &near;
    let mean = shifted.mean_keepdim(axes);
    let square = (&shifted * &shifted).mean_keepdim(axes);
    // Rounding may leave less than nothing.
    let var = (square - &mean * &mean).maximum(0.0);
    (mean + near, var)
}

/// Values a channel.
fn count(x: &Tensor) -> usize {
    x.shape().iter().enumerate().filter(|(axis, _)| *axis != 1).map(|(_, size)| size).product()
}

macro_rules! batch_norm {
    ($(#[$doc:meta])* $name:ident, $ranks:expr, $layout:literal, $one_pass:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        pub struct $name {
            /// `[channels]`; ones at first.
            pub weight: Option<Parameter>,
            /// `[channels]`; zeros at first.
            pub bias: Option<Parameter>,
            #[module(flatten)]
            running: Option<Running>,
            features: usize,
            eps: f64,
            momentum: Option<f64>,
            mode: TrainingMode,
        }

        impl $name {
            /// `eps` 1e-5, `momentum` 0.1, with weight and bias, with running statistics.
            #[track_caller]
            pub fn new(features: usize) -> $name {
                let mode = TrainingMode::new();
                let (eps, momentum) = (1e-5, Some(0.1));
                let layer = $name { weight: None, bias: None, running: None, features, eps, momentum, mode };
                layer.affine(true).track_running_stats(true)
            }

            /// What is added to the variance.
            pub fn eps(mut self, eps: f64) -> $name {
                self.eps = eps;
                self
            }

            /// The share of the newest batch in the running statistics; with `None` they are the means over all
            /// batches.
            pub fn momentum(mut self, momentum: impl Into<Option<f64>>) -> $name {
                self.momentum = momentum.into();
                self
            }

            /// With or without weight and bias.
            #[track_caller]
            pub fn affine(mut self, affine: bool) -> $name {
                self.weight = affine.then(|| Parameter::new([self.features], Init::ones()));
                self.bias = affine.then(|| Parameter::new([self.features], Init::zeros()));
                self
            }

            /// With or without running statistics; without, those of the batch are used in evaluation too.
            #[track_caller]
            pub fn track_running_stats(mut self, track: bool) -> $name {
                self.running = track.then(|| Running::new(self.features));
                self
            }

            /// The normalized input.
            ///
            /// Poisoned for an input with other axes or channels, one that is not floating-point, and one with a single
            /// value a channel where the statistics are the batch's.
            #[track_caller]
            pub fn forward(&self, x: impl AsTensor) -> Tensor {
                let x = x.as_tensor();
                if x.fault().is_some() {
                    return x.clone();
                }
                let norm = Norm {
                    running: self.running.as_ref(),
                    features: self.features,
                    eps: self.eps,
                    momentum: self.momentum,
                    training: self.mode.is_training(),
                    ranks: $ranks,
                    layout: $layout,
                    one_pass: $one_pass,
                };
                if let Some(message) = norm.misfit(x) {
                    return Tensor::poison(&self.to_string(), message);
                }
                let shape = beside_channels(x.rank(), self.features);
                // No closure, which would be the caller of what it records.
                let mut affine = [None, None];
                for (place, parameter) in affine.iter_mut().zip([&self.weight, &self.bias]) {
                    if let Some(parameter) = parameter {
                        *place = Some(parameter.get().reshape(&*shape));
                    }
                }
                norm.apply(x, affine[0].as_ref(), affine[1].as_ref())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.features)
            }
        }

        impl Forward for $name {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Tensor {
                $name::forward(self, x)
            }
        }
    };
}

batch_norm! {
    /// Normalizes each channel of images `[batch, channels, height, width]`: `(x − mean)/√(var + eps)·weight + bias`.
    /// As PyTorch's `nn.BatchNorm2d`.
    ///
    /// While training, mean and variance are those of the batch, and the running ones move towards them by `momentum`;
    /// the running variance is the unbiased one. Otherwise the running ones are used. The batch is the global one, on
    /// however many devices it lies, as with PyTorch's `SyncBatchNorm`; samples that only fill it up count in its
    /// statistics as all others do. The statistics of bf16 and f16 are computed in f32; the result has the input's dtype.
    ///
    /// The statistics of a batch take one pass over it, as sums of distances from the running mean. A mean that is
    /// thousands of deviations away from that costs digits of the variance until the running mean has come near;
    /// [`BatchNorm1d`], whose inputs may be raw measurements, takes two passes.
    ///
    /// ```
    /// use fulmen_nn::{BatchNorm2d, Module};
    /// use fulmen_tensor::{DType, Tensor};
    ///
    /// let bn = BatchNorm2d::new(1);
    /// bn.initialize(0);
    /// let x = Tensor::from_slice(&[1.0f32, 3.0], [2, 1, 1, 1]);
    /// let y = bn.forward(&x).eval()?.to_vec::<f32>()?;
    /// assert!((y[0] + 1.0).abs() < 1e-4 && (y[1] - 1.0).abs() < 1e-4);
    ///
    /// let buffers = bn.buffers();
    /// assert_eq!(buffers[0].0, "running_mean");
    /// assert_eq!(buffers[0].1.get().eval()?.to_vec::<f32>()?, [0.2]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    BatchNorm2d, 4..=4, "[batch, C, height, width]", true
}

batch_norm! {
    /// Normalizes each channel of `[batch, channels, depth, height, width]`, as [`BatchNorm2d`] those of images. As
    /// PyTorch's `nn.BatchNorm3d`.
    ///
    /// ```
    /// use fulmen_nn::{BatchNorm3d, Module};
    /// use fulmen_tensor::{DType, Tensor};
    ///
    /// let bn = BatchNorm3d::new(4);
    /// bn.initialize(0);
    /// assert_eq!(bn.forward(&Tensor::zeros(DType::F32, [2, 4, 3, 5, 5])).ty().to_string(), "f32[2, 4, 3, 5, 5]");
    /// ```
    BatchNorm3d, 5..=5, "[batch, C, depth, height, width]", true
}

batch_norm! {
    /// Normalizes each channel of `[batch, channels]` or `[batch, channels, length]`, as [`BatchNorm2d`] those of
    /// images. As PyTorch's `nn.BatchNorm1d`.
    ///
    /// ```
    /// use fulmen_nn::{BatchNorm1d, Module};
    /// use fulmen_tensor::Tensor;
    ///
    /// let bn = BatchNorm1d::new(2);
    /// bn.initialize(0);
    /// let y = bn.forward(&Tensor::from_slice(&[1.0f32, 10.0, 3.0, 30.0], [2, 2])).eval()?.to_vec::<f32>()?;
    /// assert!(y.iter().zip([-1.0, -1.0, 1.0, 1.0]).all(|(y, expected)| (y - expected).abs() < 1e-4));
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    BatchNorm1d, 2..=3, "[batch, C] or [batch, C, length]", false
}
