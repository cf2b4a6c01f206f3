//! [`BatchNorm2d`] and [`BatchNorm1d`]: normalization by the statistics of a batch.

use std::fmt;
use std::ops::RangeInclusive;

use fulmen_tensor::{DType, Tensor};

use crate::precision::precision;
use crate::{Buffer, Forward, Init, Module, Parameter, TrainingMode};

/// What is kept of all batches so far.
#[derive(Clone, Debug, Module)]
struct Running {
    #[module(rename = "running_mean")]
    mean: Buffer,
    #[module(rename = "running_var")]
    var: Buffer,
    num_batches_tracked: Buffer,
}

impl Running {
    #[track_caller]
    fn new(features: usize) -> Running {
        Running {
            mean: Buffer::new(Tensor::zeros(DType::F32, [features])),
            var: Buffer::new(Tensor::ones(DType::F32, [features])),
            num_batches_tracked: Buffer::new(Tensor::zeros(DType::I64, [])),
        }
    }

    /// Moves the running statistics towards those of a batch with `count` values a channel.
    #[track_caller]
    fn track(&self, mean: &Tensor, var: &Tensor, count: usize, momentum: f64) {
        let unbiased = var * (count as f64 / (count as f64 - 1.0));
        for (buffer, new) in [(&self.mean, mean), (&self.var, &unbiased)] {
            let ty = buffer.ty();
            // In the precision of the batch's statistics, also where the running ones are shorter.
            let new = new.detach().reshape(&ty.shape);
            let old = buffer.get().to_dtype(new.dtype());
            buffer.set((old * (1.0 - momentum) + new * momentum).to_dtype(ty.dtype));
        }
        self.num_batches_tracked.set(self.num_batches_tracked.get() + 1.0);
    }
}

/// The layer's settings as the arithmetic sees them, whatever the number of axes.
struct Norm<'a> {
    weight: Option<&'a Parameter>,
    bias: Option<&'a Parameter>,
    running: Option<&'a Running>,
    features: usize,
    eps: f64,
    momentum: f64,
    training: bool,
    /// The numbers of axes that an input may have, and how they are called.
    ranks: RangeInclusive<usize>,
    layout: &'static str,
    /// Whether the input is so large that reading it twice costs time.
    one_pass: bool,
}

impl Norm<'_> {
    /// Why this input or these settings cannot be, if they cannot.
    fn misfit(&self, x: &Tensor) -> Option<String> {
        let (ty, features) = (x.ty(), self.features);
        if !self.ranks.contains(&x.rank()) {
            return Some(format!("the input {ty} is not {}", self.layout.replace('C', &features.to_string())));
        }
        if x.size(1) != features {
            return Some(format!("the input {ty} has {} channels on its axis 1, not {features}", x.size(1)));
        }
        if !ty.dtype.is_float() {
            return Some(format!("the input {ty} is not floating-point; convert it with to_dtype()"));
        }
        if self.running.is_some() && self.training && count(x) < 2 {
            return Some(format!(
                "the input {ty} has {} value a channel; the variance of a batch needs at least 2 while training",
                count(x)
            ));
        }
        None
    }

    #[track_caller]
    fn apply(&self, x: &Tensor) -> Tensor {
        let dtype = precision(x.dtype());
        let wide = x.to_dtype(dtype);
        let mut shape = vec![1; x.rank()];
        shape[1] = self.features;
        let axes: Vec<isize> = (0..x.rank() as isize).filter(|&axis| axis != 1).collect();
        let channels = |t: &Tensor| t.to_dtype(dtype).reshape(&*shape);
        let (mean, var) = match self.running {
            Some(running) if !self.training => (channels(&running.mean.get()), channels(&running.var.get())),
            Some(running) => {
                let (mean, var) = match self.one_pass {
                    true => in_one_pass(&wide, &axes, &channels(&running.mean.get())),
                    false => (wide.mean(&axes, true), wide.var(&axes, true)),
                };
                running.track(&mean, &var, count(x), self.momentum);
                (mean, var)
            }
            None => (wide.mean(&axes, true), wide.var(&axes, true)),
        };
        let mut scale = (var + self.eps).rsqrt();
        if let Some(weight) = self.weight {
            scale = scale * channels(&weight.get());
        }
        let mut y = (wide - mean) * scale;
        if let Some(bias) = self.bias {
            y = y + channels(&bias.get());
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
    let mean = shifted.mean(axes, true);
    let square = (&shifted * &shifted).mean(axes, true);
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
            momentum: f64,
            mode: TrainingMode,
        }

        impl $name {
            /// `eps` 1e-5, `momentum` 0.1, with weight and bias, with running statistics.
            #[track_caller]
            pub fn new(features: usize) -> $name {
                let mode = TrainingMode::new();
                let layer = $name { weight: None, bias: None, running: None, features, eps: 1e-5, momentum: 0.1, mode };
                layer.affine(true).track_running_stats(true)
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
                self.weight = affine.then(|| Parameter::new([self.features], Init::ONES));
                self.bias = affine.then(|| Parameter::new([self.features], Init::ZEROS));
                self
            }

            /// With or without running statistics; without, those of the batch are used in evaluation too.
            #[track_caller]
            pub fn track_running_stats(mut self, track: bool) -> $name {
                self.running = track.then(|| Running::new(self.features));
                self
            }

            /// The normalized input.
            #[track_caller]
            pub fn forward(&self, x: &Tensor) -> Tensor {
                if x.fault().is_some() {
                    return x.clone();
                }
                let norm = Norm {
                    weight: self.weight.as_ref(),
                    bias: self.bias.as_ref(),
                    running: self.running.as_ref(),
                    features: self.features,
                    eps: self.eps,
                    momentum: self.momentum,
                    training: self.mode.is_training(),
                    ranks: $ranks,
                    layout: $layout,
                    one_pass: $one_pass,
                };
                match norm.misfit(x) {
                    Some(message) => Tensor::poison(&self.to_string(), message),
                    None => norm.apply(x),
                }
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
    /// however many devices it lies. The statistics of bf16 and f16 are computed in f32; the result has the input's
    /// dtype.
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
