//! [`BatchNorm1d`], [`BatchNorm2d`] and [`BatchNorm3d`]: normalization by the statistics of a
//! batch. [`ConditionalBatchNorm2d`](crate::ConditionalBatchNorm2d) has weight and bias by class.

use std::fmt;

use fulmen_tensor::{AsTensor, Tensor, cond, custom_gradient};

use super::normalize::{channel_shape, check_channels, check_float};
use super::running_stats::RunningStats;
use super::spatial::axis_names;
use crate::library::NN;
use crate::precision::precision;
use crate::{Init, Module, Parameter, TrainingMode};

/// The layer's settings for any number of axes.
pub(super) struct Norm<'a> {
    pub(super) running: Option<&'a RunningStats>,
    pub(super) features: usize,
    pub(super) eps: f64,
    pub(super) momentum: Option<f64>,
    pub(super) training: bool,
    /// The number of axes after the channels. With one such axis, the input may also be without it.
    pub(super) spatial: usize,
}

impl Norm<'_> {
    pub(super) fn check(&self, x: &Tensor) -> Result<(), String> {
        let ty = x.ty();
        let c = self.features;
        if x.rank() != self.spatial + 2 && (self.spatial, x.rank()) != (1, 2) {
            return Err(match self.spatial {
                1 => format!("the input {ty} is not [batch, {c}] or [batch, {c}, length]"),
                n => format!("the input {ty} is not [batch, {c}, {}]", axis_names(n)),
            });
        }
        check_channels(x, c)?;
        check_float(x)?;
        if (self.training || self.running.is_none()) && count(x) < 2 {
            let mode = if self.training { "while training" } else { "without running statistics" };
            return Err(format!(
                "the input {ty} has {} value per channel; the variance of a batch needs at least 2 {mode}",
                count(x)
            ));
        }
        Ok(())
    }

    /// `(x − mean)/√(var + eps)·weight + bias`; weight and bias broadcast to the input.
    pub(super) fn apply(
        &self,
        x: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
    ) -> Tensor {
        let dtype = precision(x.dtype());
        let wide = x.to_dtype(dtype);
        let shape = channel_shape(x.rank(), self.features);
        let axes: Vec<isize> = (0..x.rank() as isize).filter(|&axis| axis != 1).collect();
        let (mean, var) = match self.running {
            Some(running) if !self.training => running.statistics(dtype, &shape),
            Some(running) => {
                let shift = running.statistics(dtype, &shape).0;
                let (mean, var) = batch_moments(x, &axes, &shift, self.eps);
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

/// If the mean is more standard deviations than this away from the running mean, one pass is not
/// exact enough.
const FAR: f64 = 4.0;

/// Mean and variance along `axes`. One pass over distances to the running mean `shift` is enough if
/// `shift` is close to the mean. Computing the mean first would read a large input twice, and
/// devices would communicate twice. In the first steps, or after a change of the data, `shift` may
/// be far from the mean. The difference of two large squares would then lose digits, and a branch
/// makes a second pass around the mean.
fn batch_moments(x: &Tensor, axes: &[isize], shift: &Tensor, eps: f64) -> (Tensor, Tensor) {
    let wide = x.to_dtype(shift.dtype());
    let count = count(x) as f64;
    let every: Vec<isize> = (0..x.rank() as isize).collect();
    // Infinite or NaN running statistics must not affect the statistics of a finite batch.
    let shift = shift.is_finite().select(shift, &shift.zeros_like()).detach();
    // The branch reads the input in its own dtype: a wide copy of it would need memory.
    let inputs = (&wide, x.detach(), &shift);
    custom_gradient(
        inputs,
        |(wide, x, shift)| {
            let (mean, var) = moments_around(&wide, axes, &shift);
            let distance = &mean - &shift;
            let far = (&distance * &distance).gt((&var + eps) * (FAR * FAR));
            cond(
                far.any(&every),
                (&x, &mean),
                |(x, mean)| moments_around(&x.to_dtype(mean.dtype()), axes, &mean),
                |_| (mean.clone(), var.clone()),
            )
        },
        move |(wide, x, shift), (mean, _), (of_mean, of_var)| {
            let distance = wide - mean;
            let of_wide = (of_mean + distance * of_var * 2.0) / count;
            (of_wide, x.zeros_like(), shift.zeros_like())
        },
    )
}

/// Mean and variance along `axes` in one pass over the distances to `shift`.
fn moments_around(x: &Tensor, axes: &[isize], shift: &Tensor) -> (Tensor, Tensor) {
    let shifted = x - shift;
    let mean = shifted.mean_keepdim(axes);
    let square = (&shifted * &shifted).mean_keepdim(axes);
    // Rounding may give a negative number.
    let var = (square - &mean * &mean).maximum(0.0);
    (mean + shift, var)
}

/// The number of values in each channel.
fn count(x: &Tensor) -> usize {
    x.shape().iter().enumerate().filter(|(axis, _)| *axis != 1).map(|(_, size)| size).product()
}

/// Normalizes each channel over `N` axes by the statistics of a batch. Use it as [`BatchNorm1d`],
/// [`BatchNorm2d`], [`BatchNorm3d`].
#[derive(Clone, Debug, Module)]
#[must_use]
pub struct BatchNorm<const N: usize> {
    /// `[channels]`; initially ones.
    pub weight: Option<Parameter>,
    /// `[channels]`; initially zeros.
    pub bias: Option<Parameter>,
    #[module(flatten)]
    running: Option<RunningStats>,
    features: usize,
    eps: f64,
    momentum: Option<f64>,
    mode: TrainingMode,
}

/// Normalizes each channel of images `[batch, channels, height, width]`:
/// `(x − mean)/√(var + eps)·weight + bias`. Like PyTorch's `nn.BatchNorm2d`.
///
/// In training mode, mean and variance are those of the batch, and the running statistics move
/// towards them by `momentum`; the running variance is unbiased. In evaluation mode, the running
/// statistics are used. The batch is the global batch, over all devices, as in PyTorch's
/// `SyncBatchNorm`; samples that pad the batch count as well. For bf16 and f16 the statistics are
/// computed in f32; the result has the input's dtype.
///
/// The statistics of a batch are computed in one pass, from distances to the running mean. If the
/// mean is far from the running mean, as it may be in the first steps, a second pass around the
/// mean makes them exact.
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
pub type BatchNorm2d = BatchNorm<2>;

/// Normalizes each channel of `[batch, channels, depth, height, width]` in the same way as
/// [`BatchNorm2d`]. Like PyTorch's `nn.BatchNorm3d`.
///
/// ```
/// use fulmen_nn::{BatchNorm3d, Module};
/// use fulmen_tensor::{DType, Tensor};
///
/// let bn = BatchNorm3d::new(4);
/// bn.initialize(0);
/// assert_eq!(bn.forward(&Tensor::zeros(DType::F32, [2, 4, 3, 5, 5])).ty().to_string(), "f32[2, 4, 3, 5, 5]");
/// ```
pub type BatchNorm3d = BatchNorm<3>;

/// Normalizes each channel of `[batch, channels]` or `[batch, channels, length]` in the same way as
/// [`BatchNorm2d`]. Like PyTorch's `nn.BatchNorm1d`.
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
pub type BatchNorm1d = BatchNorm<1>;

impl<const N: usize> BatchNorm<N> {
    /// `eps` 1e-5, `momentum` 0.1, with weight and bias, with running statistics.
    #[track_caller]
    pub fn new(features: usize) -> BatchNorm<N> {
        let eps = 1e-5;
        let momentum = Some(0.1);
        let mode = TrainingMode::new();
        let layer =
            BatchNorm { weight: None, bias: None, running: None, features, eps, momentum, mode };
        layer.affine(true).track_running_stats(true)
    }

    /// The constant added to the variance.
    pub fn eps(mut self, eps: f64) -> BatchNorm<N> {
        self.eps = eps;
        self
    }

    /// The weight of the newest batch in the running statistics; with `None` they are the means
    /// over all batches.
    pub fn momentum(mut self, momentum: impl Into<Option<f64>>) -> BatchNorm<N> {
        self.momentum = momentum.into();
        self
    }

    /// With or without weight and bias.
    pub fn affine(mut self, affine: bool) -> BatchNorm<N> {
        self.weight = affine.then(|| Parameter::new([self.features], Init::ones()));
        self.bias = affine.then(|| Parameter::new([self.features], Init::zeros()));
        self
    }

    /// Sets whether to keep running statistics. Without them, evaluation uses the statistics of the
    /// batch too.
    #[track_caller]
    pub fn track_running_stats(mut self, track: bool) -> BatchNorm<N> {
        let _scope = NN.open();
        self.running = track.then(|| RunningStats::new(self.features));
        self
    }

    /// Normalizes the input.
    ///
    /// Poisoned if the input has other axes or channels, is not floating-point, or has a single
    /// value in each channel where the statistics of the batch are needed.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record(self, || {
            let x = x.as_tensor().live()?;
            let norm = Norm {
                running: self.running.as_ref(),
                features: self.features,
                eps: self.eps,
                momentum: self.momentum,
                training: self.mode.is_training(),
                spatial: N,
            };
            norm.check(x)?;
            let shape = channel_shape(x.rank(), self.features);
            let [weight, bias] =
                [&self.weight, &self.bias].map(|p| p.as_ref().map(|p| p.get().reshape(&*shape)));
            Ok(norm.apply(x, weight.as_ref(), bias.as_ref()))
        })
    }
}

impl<const N: usize> fmt::Display for BatchNorm<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BatchNorm{N}d({})", self.features)
    }
}
