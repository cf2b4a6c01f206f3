//! [`InstanceNorm1d`], [`InstanceNorm2d`] and [`InstanceNorm3d`]: normalization of each channel of
//! each sample.

use std::fmt;

use fulmen_durable::messages::quantity;
use fulmen_tensor::{AsTensor, Tensor};

use super::normalize::{affine, channel_shape, check_float};
use super::running_stats::RunningStats;
use super::spatial::{axis_names, with_batch_axis};
use crate::library::NN;
use crate::precision::precision;
use crate::{Init, Module, Parameter, TrainingMode};

/// Normalizes each channel of each sample over `N` axes. Use it as [`InstanceNorm1d`],
/// [`InstanceNorm2d`], [`InstanceNorm3d`].
#[derive(Clone, Debug, Module)]
#[must_use]
pub struct InstanceNorm<const N: usize> {
    /// `[channels]`; initially ones.
    pub weight: Option<Parameter>,
    /// `[channels]`; initially zeros.
    pub bias: Option<Parameter>,
    #[module(flatten)]
    running: Option<RunningStats>,
    features: usize,
    eps: f64,
    momentum: f64,
    mode: TrainingMode,
}

/// Normalizes each channel of each image of `[batch, channels, height, width]`, or of one image
/// `[channels, height, width]`, by its own mean and variance: `(x − mean)/√(var + eps)`, optionally
/// times weight plus bias. Like PyTorch's `nn.InstanceNorm2d`.
///
/// If running statistics are tracked, training mode updates them with the means over a batch, and
/// evaluation mode uses them. As in PyTorch, `num_batches_tracked` stays 0. The statistics are
/// computed in f32; the result has the input's dtype.
///
/// ```
/// use fulmen_nn::InstanceNorm2d;
/// use fulmen_tensor::Tensor;
///
/// let norm = InstanceNorm2d::new(2);
/// let y = norm.forward(&Tensor::from_slice(&[1.0f32, 3.0, 70.0, 50.0], [1, 2, 1, 2])).eval()?.to_vec::<f32>()?;
/// assert!(y.iter().zip([-1.0, 1.0, 1.0, -1.0]).all(|(y, expected)| (y - expected).abs() < 1e-4));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
pub type InstanceNorm2d = InstanceNorm<2>;

/// Normalizes each channel of each sample of `[batch, channels, length]`, or of one sample
/// `[channels, length]`, in the same way as [`InstanceNorm2d`]. Like PyTorch's `nn.InstanceNorm1d`.
pub type InstanceNorm1d = InstanceNorm<1>;

/// Normalizes each channel of each sample of `[batch, channels, depth, height, width]`, or of one
/// sample without the batch axis, in the same way as [`InstanceNorm2d`]. Like PyTorch's
/// `nn.InstanceNorm3d`.
pub type InstanceNorm3d = InstanceNorm<3>;

impl<const N: usize> InstanceNorm<N> {
    /// `eps` 1e-5, `momentum` 0.1, without weight and bias, without running statistics.
    pub fn new(features: usize) -> InstanceNorm<N> {
        let eps = 1e-5;
        let momentum = 0.1;
        let mode = TrainingMode::new();
        InstanceNorm { weight: None, bias: None, running: None, features, eps, momentum, mode }
    }

    /// The constant added to the variance.
    pub fn eps(mut self, eps: f64) -> InstanceNorm<N> {
        self.eps = eps;
        self
    }

    /// The weight of the newest batch in the running statistics.
    pub fn momentum(mut self, momentum: f64) -> InstanceNorm<N> {
        self.momentum = momentum;
        self
    }

    /// With or without weight and bias.
    pub fn affine(mut self, affine: bool) -> InstanceNorm<N> {
        self.weight = affine.then(|| Parameter::new([self.features], Init::ones()));
        self.bias = affine.then(|| Parameter::new([self.features], Init::zeros()));
        self
    }

    /// With or without running statistics, which evaluation mode uses.
    #[track_caller]
    pub fn track_running_stats(mut self, track: bool) -> InstanceNorm<N> {
        let _scope = NN.open();
        self.running = track.then(|| RunningStats::new(self.features));
        self
    }

    /// Rejects inputs that cannot be normalized. `by_input` means that the input's own statistics
    /// are used.
    fn check(&self, x: &Tensor, by_input: bool) -> Result<(), String> {
        let ty = x.ty();
        let c = self.features;
        let Some(axis) = x.rank().checked_sub(N + 1).filter(|&axis| axis < 2) else {
            let axes = axis_names(N);
            return Err(format!("the input {ty} is not [batch, {c}, {axes}] or [{c}, {axes}]"));
        };
        let actual = x.shape()[axis];
        if actual != c {
            return Err(format!(
                "the input {ty} has {} on its axis {axis}, not {c}",
                quantity(actual, "channel")
            ));
        }
        check_float(x)?;
        let count: usize = x.shape()[axis + 1..].iter().product();
        if by_input && count < 2 {
            return Err(format!(
                "the input {ty} has {count} value per channel and sample; a variance needs at least 2"
            ));
        }
        Ok(())
    }

    /// Normalizes the input.
    ///
    /// Poisoned if the input has other axes or channels, is not floating-point, or has a single
    /// value in each channel where its own statistics are used.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record(self, || {
            let x = x.as_tensor().live()?;
            let training = self.mode.is_training();
            self.check(x, training || self.running.is_none())?;
            Ok(with_batch_axis::<N>(x, |x| self.normalized(x, training)))
        })
    }

    fn normalized(&self, x: &Tensor, training: bool) -> Tensor {
        let wide = x.to_dtype(precision(x.dtype()));
        let shape = channel_shape(x.rank(), self.features);
        let axes: Vec<isize> = (2..x.rank() as isize).collect();
        let (mean, var) = match &self.running {
            Some(running) if !training => running.statistics(wide.dtype(), &shape),
            _ => (wide.mean_keepdim(&axes), wide.var_keepdim(&axes)),
        };
        if let Some(running) = self.running.as_ref().filter(|_| training) {
            let count = x.shape()[2..].iter().product();
            running.track(&mean.mean_keepdim(0), &var.mean_keepdim(0), count, Some(self.momentum));
        }
        let y = (wide - mean) * (var + self.eps).rsqrt();
        affine(y, self.weight.as_ref(), self.bias.as_ref(), &shape).to_dtype(x.dtype())
    }
}

impl<const N: usize> fmt::Display for InstanceNorm<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InstanceNorm{N}d({})", self.features)
    }
}
