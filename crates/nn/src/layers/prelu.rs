//! [`Prelu`] and [`Rrelu`]: rectifiers with a learned or random slope below 0.

use std::fmt;

use fulmen_durable::messages::quantity;
use fulmen_tensor::{AsTensor, Tensor, random};

use crate::library::NN;
use crate::{Init, Module, Parameter, RandomStream, TrainingMode, activation};

/// `x` above 0, `weight·x` elsewhere, with one slope for all or one for each channel of axis 1.
/// Like PyTorch's `nn.PReLU`.
///
/// ```
/// use fulmen_nn::{Module, Prelu};
/// use fulmen_tensor::Tensor;
///
/// let prelu = Prelu::new();
/// prelu.initialize(0);
/// let y = prelu.forward(&Tensor::from_slice(&[-4.0f32, 2.0], [2]));
/// assert_eq!(y.eval()?.to_vec::<f32>()?, [-1.0, 2.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
#[must_use]
pub struct Prelu {
    /// `[channels]`; initially ¼.
    pub weight: Parameter,
    channels: usize,
    slope: f64,
}

impl Prelu {
    /// One slope for all elements, ¼ at first.
    pub fn new() -> Prelu {
        let channels = 1;
        let slope = 0.25;
        Prelu { weight: Parameter::new([channels], Init::constant(slope)), channels, slope }
    }

    /// The number of slopes: one for each channel of axis 1, or 1 (the default) for all.
    pub fn num_parameters(mut self, channels: usize) -> Prelu {
        let slope = self.slope;
        self.channels = channels;
        self.init(slope)
    }

    /// The initial value of the slopes.
    pub fn init(mut self, slope: f64) -> Prelu {
        self.slope = slope;
        self.weight = Parameter::new([self.channels], Init::constant(slope));
        self
    }

    /// Applies the rectifier.
    ///
    /// The result is poisoned if there are several slopes and axis 1 of `x` has a different number
    /// of channels.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record(self, || {
            let x = x.as_tensor().live()?;
            let channels = if x.rank() > 1 { x.size(1) } else { 1 };
            if self.channels != 1 && channels != self.channels {
                let message = format!(
                    "the input {} has {}, expected {}",
                    x.ty(),
                    quantity(channels, "channel"),
                    self.channels
                );
                return Err(message.into());
            }
            let mut shape = vec![1; x.rank()];
            if self.channels != 1 {
                shape[1] = self.channels;
            }
            let slope = self.weight.get().reshape(shape).to_dtype(x.dtype());
            Ok(x.gt(0.0).select(x, &(x * slope)))
        })
    }
}

impl Default for Prelu {
    fn default() -> Prelu {
        Prelu::new()
    }
}

impl fmt::Display for Prelu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prelu({})", self.channels)
    }
}

/// `x` above 0, `a·x` elsewhere. In training mode, each element draws its own `a` between `lower`
/// and `upper`; in evaluation mode, `a` is their mean. Like PyTorch's `nn.RReLU`.
///
/// ```
/// use fulmen_nn::{Module, Rrelu};
/// use fulmen_tensor::Tensor;
///
/// let rrelu = Rrelu::new().lower(0.1).upper(0.3);
/// rrelu.eval();
/// let y = rrelu.forward(&Tensor::from_slice(&[-1.0f32, 2.0], [2]));
/// assert_eq!(y.eval()?.to_vec::<f32>()?, [-0.2, 2.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
#[must_use]
pub struct Rrelu {
    lower: f64,
    upper: f64,
    mode: TrainingMode,
    random: RandomStream,
}

impl Rrelu {
    /// Slopes from ⅛ to ⅓.
    pub fn new() -> Rrelu {
        Rrelu {
            lower: 1.0 / 8.0,
            upper: 1.0 / 3.0,
            mode: TrainingMode::new(),
            random: RandomStream::new(),
        }
    }

    /// The smallest slope; ⅛ by default.
    pub fn lower(mut self, lower: f64) -> Rrelu {
        self.lower = lower;
        self
    }

    /// The largest slope; ⅓ by default.
    pub fn upper(mut self, upper: f64) -> Rrelu {
        self.upper = upper;
        self
    }

    /// Applies the rectifier.
    ///
    /// Poisoned if `lower` is above `upper`, if one of them is not finite, or if there is no random
    /// key in training mode. If the two are equal, nothing is drawn.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record("Rrelu", || {
            let x = x.as_tensor().live()?;
            let lower = self.lower;
            let upper = self.upper;
            if !(lower.is_finite() && upper.is_finite() && lower <= upper) {
                let message = format!(
                    "no slope lies between {lower} and {upper}; pass a finite lower <= upper"
                );
                return Err(message.into());
            }
            if !self.mode.is_training() || lower == upper {
                return Ok(activation::leaky_relu(x, lower / 2.0 + upper / 2.0));
            }
            let slope =
                random::uniform(&self.random.next_key(), x.dtype(), x.shape(), lower, upper);
            Ok(x.gt(0.0).select(x, &(x * slope)))
        })
    }
}

impl Default for Rrelu {
    fn default() -> Rrelu {
        Rrelu::new()
    }
}
