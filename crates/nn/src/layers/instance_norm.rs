//! [`InstanceNorm1d`], [`InstanceNorm2d`] and [`InstanceNorm3d`]: normalization of each channel of each sample.

use std::fmt;

use fulmen_tensor::{AsTensor, Tensor};

use super::normalize::{affine, beside_channels, not_float};
use super::running::Running;
use crate::precision::precision;
use crate::{Forward, Init, Module, Parameter, TrainingMode};

/// Why this input cannot be, if it cannot; `spatial` is the number of axes behind the channels.
fn misfit(x: &Tensor, spatial: usize, features: usize, by_input: bool, layout: &str) -> Option<String> {
    let ty = x.ty();
    let Some(axis) = x.rank().checked_sub(spatial + 1).filter(|&axis| axis < 2) else {
        let layout = layout.replace('C', &features.to_string());
        return Some(format!("the input {ty} is not [batch, {layout}] or [{layout}]"));
    };
    if x.shape()[axis] != features {
        let found = x.shape()[axis];
        return Some(format!("the input {ty} has {found} channels on its axis {axis}, not {features}"));
    }
    if let Some(message) = not_float(x) {
        return Some(message);
    }
    let count: usize = x.shape()[axis + 1..].iter().product();
    (by_input && count < 2)
        .then(|| format!("the input {ty} has {count} value a channel of a sample; a variance needs at least 2"))
}

macro_rules! instance_norm {
    ($(#[$doc:meta])* $name:ident, $spatial:literal, $layout:literal) => {
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
            momentum: f64,
            mode: TrainingMode,
        }

        impl $name {
            /// `eps` 1e-5, without weight and bias, without running statistics; with these, `momentum` is 0.1.
            #[track_caller]
            pub fn new(features: usize) -> $name {
                let (eps, momentum, mode) = (1e-5, 0.1, TrainingMode::new());
                $name { weight: None, bias: None, running: None, features, eps, momentum, mode }
            }

            /// What is added to the variance.
            pub fn eps(mut self, eps: f64) -> $name {
                self.eps = eps;
                self
            }

            /// The share of the newest batch in the running statistics.
            pub fn momentum(mut self, momentum: f64) -> $name {
                self.momentum = momentum;
                self
            }

            /// With or without weight and bias.
            #[track_caller]
            pub fn affine(mut self, affine: bool) -> $name {
                self.weight = if affine { Some(Parameter::new([self.features], Init::ones())) } else { None };
                self.bias = if affine { Some(Parameter::new([self.features], Init::zeros())) } else { None };
                self
            }

            /// With or without running statistics, which are used in evaluation.
            #[track_caller]
            pub fn track_running_stats(mut self, track: bool) -> $name {
                self.running = if track { Some(Running::new(self.features)) } else { None };
                self
            }

            /// The normalized input.
            ///
            /// Poisoned for an input with other axes or channels, one that is not floating-point, and one with a single
            /// value a channel where its own statistics are used.
            #[track_caller]
            pub fn forward(&self, x: impl AsTensor) -> Tensor {
                let x = x.as_tensor();
                if x.fault().is_some() {
                    return x.clone();
                }
                let training = self.mode.is_training();
                let by_input = training || self.running.is_none();
                if let Some(message) = misfit(x, $spatial, self.features, by_input, $layout) {
                    return Tensor::poison(&self.to_string(), message);
                }
                if x.rank() == $spatial + 1 {
                    let y = self.forward(&x.unsqueeze(0));
                    return if y.fault().is_some() { y } else { y.squeeze(0) };
                }
                let wide = x.to_dtype(precision(x.dtype()));
                let beside = beside_channels(x.rank(), self.features);
                let axes: Vec<isize> = (2..x.rank() as isize).collect();
                let (mean, var) = match &self.running {
                    Some(running) if !training => (
                        running.mean.get().to_dtype(wide.dtype()).reshape(&*beside),
                        running.var.get().to_dtype(wide.dtype()).reshape(&*beside),
                    ),
                    _ => (wide.mean_keepdim(&axes), wide.var_keepdim(&axes)),
                };
                if let Some(running) = self.running.as_ref().filter(|_| training) {
                    let count = x.shape()[2..].iter().product();
                    running.track(&mean.mean_keepdim(&[0]), &var.mean_keepdim(&[0]), count, Some(self.momentum));
                }
                let y = (wide - mean) * (var + self.eps).rsqrt();
                affine(y, self.weight.as_ref(), self.bias.as_ref(), &beside).to_dtype(x.dtype())
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

instance_norm! {
    /// Normalizes each channel of each image of `[batch, channels, height, width]`, or of one image
    /// `[channels, height, width]`, by its own mean and variance: `(x − mean)/√(var + eps)`, if asked for times weight
    /// plus bias. As PyTorch's `nn.InstanceNorm2d`.
    ///
    /// With running statistics, the means over a batch move them while training, and they are used in evaluation. As in
    /// PyTorch, `num_batches_tracked` stays 0. The statistics are computed in f32 whatever the input's dtype, which is
    /// also the result's.
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
    InstanceNorm2d, 2, "C, height, width"
}

instance_norm! {
    /// Normalizes each channel of each sample of `[batch, channels, length]`, or of one sample `[channels, length]`, as
    /// [`InstanceNorm2d`] those of images. As PyTorch's `nn.InstanceNorm1d`.
    InstanceNorm1d, 1, "C, length"
}

instance_norm! {
    /// Normalizes each channel of each sample of `[batch, channels, depth, height, width]`, or of one sample without the
    /// batch axis, as [`InstanceNorm2d`] those of images. As PyTorch's `nn.InstanceNorm3d`.
    InstanceNorm3d, 3, "C, depth, height, width"
}
