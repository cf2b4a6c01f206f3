//! [`BatchNorm2d`]: normalization by the statistics of a batch.

use std::fmt;

use fulmen_tensor::{DType, Tensor};

use crate::{Buffer, Forward, Init, Module, Parameter, TrainingMode};

/// Normalizes each channel of images `[batch, channels, height, width]`: `(x − mean)/√(var + eps)·weight + bias`. As
/// PyTorch's `nn.BatchNorm2d`.
///
/// While training, mean and variance are those of the batch, and the running ones move towards them by `momentum`;
/// the running variance is the unbiased one. Otherwise the running ones are used. The batch is the global one, on
/// however many devices it lies. The statistics of bf16 and f16 are computed in f32.
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
#[derive(Clone, Debug, Module)]
pub struct BatchNorm2d {
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

/// What is kept of all batches so far.
#[derive(Clone, Debug, Module)]
struct Running {
    #[module(rename = "running_mean")]
    mean: Buffer,
    #[module(rename = "running_var")]
    var: Buffer,
    num_batches_tracked: Buffer,
}

impl BatchNorm2d {
    /// `eps` 1e-5, `momentum` 0.1, with weight and bias, with running statistics.
    #[track_caller]
    pub fn new(features: usize) -> BatchNorm2d {
        let layer = BatchNorm2d {
            weight: None,
            bias: None,
            running: None,
            features,
            eps: 1e-5,
            momentum: 0.1,
            mode: TrainingMode::new(),
        };
        layer.affine(true).track_running_stats(true)
    }

    /// What is added to the variance.
    pub fn eps(mut self, eps: f64) -> BatchNorm2d {
        self.eps = eps;
        self
    }

    /// The share of the newest batch in the running statistics.
    pub fn momentum(mut self, momentum: f64) -> BatchNorm2d {
        self.momentum = momentum;
        self
    }

    /// With or without weight and bias.
    #[track_caller]
    pub fn affine(mut self, affine: bool) -> BatchNorm2d {
        self.weight = affine.then(|| Parameter::new([self.features], Init::ONES));
        self.bias = affine.then(|| Parameter::new([self.features], Init::ZEROS));
        self
    }

    /// With or without running statistics; without, those of the batch are used in evaluation too.
    #[track_caller]
    pub fn track_running_stats(mut self, track: bool) -> BatchNorm2d {
        self.running = track.then(|| Running {
            mean: Buffer::new(Tensor::zeros(DType::F32, [self.features])),
            var: Buffer::new(Tensor::ones(DType::F32, [self.features])),
            num_batches_tracked: Buffer::new(Tensor::zeros(DType::I64, [])),
        });
        self
    }

    /// Why this input or these settings cannot be, if they cannot.
    fn misfit(&self, x: &Tensor, batch_statistics: bool) -> Option<String> {
        let (ty, features) = (x.ty(), self.features);
        if x.rank() != 4 {
            return Some(format!("the input {ty} is not [batch, {features}, height, width]"));
        }
        if x.size(1) != features {
            return Some(format!("the input {ty} has {} channels on its axis 1, not {features}", x.size(1)));
        }
        if !ty.dtype.is_float() {
            return Some(format!("the input {ty} is not floating-point; convert it with to_dtype()"));
        }
        if batch_statistics && self.mode.is_training() && count(x) < 2 {
            return Some(format!(
                "the input {ty} has {} value a channel; the variance of a batch needs at least 2 while training",
                count(x)
            ));
        }
        None
    }

    /// The normalized images.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        if x.fault().is_some() {
            return x.clone();
        }
        let batch_statistics = self.mode.is_training() || self.running.is_none();
        if let Some(message) = self.misfit(x, batch_statistics) {
            return Tensor::poison(&self.to_string(), message);
        }
        let dtype = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let wide = x.to_dtype(dtype);
        let channels = |t: &Tensor| t.to_dtype(dtype).reshape([1, self.features, 1, 1]);
        let (mean, var) = match &self.running {
            Some(running) if !batch_statistics => (channels(&running.mean.get()), channels(&running.var.get())),
            running => {
                let mean = wide.mean(&[0, 2, 3], true);
                let centred = &wide - &mean;
                let var = (&centred * &centred).mean(&[0, 2, 3], true);
                if let (Some(running), true) = (running, self.mode.is_training()) {
                    self.track(running, &mean, &var, count(x));
                }
                (mean, var)
            }
        };
        let mut scale = (var + self.eps).rsqrt();
        if let Some(weight) = &self.weight {
            scale = scale * channels(&weight.get());
        }
        let mut y = (wide - mean) * scale;
        if let Some(bias) = &self.bias {
            y = y + channels(&bias.get());
        }
        y.to_dtype(x.dtype())
    }

    /// Moves the running statistics towards those of a batch with `count` values a channel.
    #[track_caller]
    fn track(&self, running: &Running, mean: &Tensor, var: &Tensor, count: usize) {
        let unbiased = var * (count as f64 / (count as f64 - 1.0));
        for (buffer, new) in [(&running.mean, mean), (&running.var, &unbiased)] {
            let old = buffer.get();
            let new = new.detach().reshape([self.features]).to_dtype(old.dtype());
            buffer.set(old * (1.0 - self.momentum) + new * self.momentum);
        }
        running.num_batches_tracked.set(running.num_batches_tracked.get() + 1.0);
    }
}

/// Values a channel.
fn count(x: &Tensor) -> usize {
    x.size(0) * x.size(2) * x.size(3)
}

impl fmt::Display for BatchNorm2d {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BatchNorm2d({})", self.features)
    }
}

impl Forward for BatchNorm2d {
    fn forward(&self, x: &Tensor) -> Tensor {
        BatchNorm2d::forward(self, x)
    }
}
