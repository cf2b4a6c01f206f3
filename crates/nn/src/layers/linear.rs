//! [`Linear`]: a matrix product and a bias.

use std::fmt;

use fulmen_durable::messages::quantity;
use fulmen_tensor::{AsTensor, Tensor};

use crate::init::{Fan, Nonlinearity};
use crate::library::NN;
use crate::{Init, Module, Parameter};

/// `y = x Wᵀ + b` over the last axis: `[…, in]` becomes `[…, out]`. Like PyTorch's `nn.Linear`.
///
/// Weight `[out, in]` and bias `[out]` both are initialized uniformly in `±1/√in`.
///
/// ```
/// use fulmen_nn::{Linear, Module};
/// use fulmen_tensor::{DType, Tensor};
///
/// let layer = Linear::new(784, 512);
/// layer.initialize(0);
/// let x = Tensor::zeros(DType::F32, [32, 100]);
/// assert_eq!(
///     layer.forward(&x).fault().unwrap().message(),
///     "the input f32[32, 100] has 100 features on its last axis, not 784"
/// );
/// ```
#[derive(Clone, Debug, Module)]
#[must_use]
pub struct Linear {
    /// `[out, in]`.
    pub weight: Parameter,
    /// `[out]`.
    pub bias: Option<Parameter>,
    in_features: usize,
    out_features: usize,
}

impl Linear {
    /// A layer with a bias.
    pub fn new(in_features: usize, out_features: usize) -> Linear {
        let init = Init::kaiming_uniform(Nonlinearity::LeakyRelu(5f64.sqrt()), Fan::In);
        let weight = Parameter::new([out_features, in_features], init);
        Linear { weight, bias: None, in_features, out_features }.bias(true)
    }

    /// With or without a bias.
    pub fn bias(mut self, bias: bool) -> Linear {
        self.bias = bias.then(|| Parameter::new([self.out_features], bias_init(self.in_features)));
        self
    }

    /// Names the axes of the weight and of the bias: that of the output features and that of the
    /// input features, as [`Parameter::with_axes`] does. Call it after [`bias`](Linear::bias), which
    /// makes a new bias.
    ///
    /// ```
    /// use fulmen_nn::Linear;
    ///
    /// let up = Linear::new(512, 2048).with_axes("mlp", "embed");
    /// assert_eq!(up.bias.unwrap().axes().unwrap(), [Some("mlp".to_owned())]);
    /// ```
    #[track_caller]
    pub fn with_axes<'a>(
        self,
        out_features: impl Into<Option<&'a str>>,
        in_features: impl Into<Option<&'a str>>,
    ) -> Linear {
        let out: Option<&str> = out_features.into();
        self.weight.with_axes([out, in_features.into()]);
        if let Some(bias) = &self.bias {
            bias.with_axes([out]);
        }
        self
    }

    /// The number of input features.
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// The number of output features.
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// Applies the product and the bias.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record(self, || {
            let x = x.as_tensor().live()?;
            let actual = x.size(-1);
            if x.rank() == 0 || actual != self.in_features {
                let message = match x.rank() {
                    0 => format!(
                        "the input {} is a scalar; the last axis must have {}",
                        x.ty(),
                        quantity(self.in_features, "feature")
                    ),
                    _ => {
                        format!(
                            "the input {} has {} on its last axis, not {}",
                            x.ty(),
                            quantity(actual, "feature"),
                            self.in_features
                        )
                    }
                };
                return Err(message.into());
            }
            let product = self.weight.project(x);
            Ok(match &self.bias {
                // Otherwise the bias would widen a 16-bit product under autocast to f32.
                Some(bias) => &product + bias.get().to_dtype(product.dtype()),
                None => product,
            })
        })
    }
}

/// PyTorch's rule for the bias of a layer with this many inputs: uniform in `±1/√fan_in`.
pub(super) fn bias_init(fan_in: usize) -> Init {
    let bound = if fan_in > 0 { 1.0 / (fan_in as f64).sqrt() } else { 0.0 };
    Init::uniform(-bound, bound)
}

impl fmt::Display for Linear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Linear({} -> {})", self.in_features, self.out_features)
    }
}
