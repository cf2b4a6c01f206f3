//! [`Activation`]: the functions between layers, by the names that configs of transformers give
//! them.

use fulmen_nn::activation;
use fulmen_tensor::Tensor;
use serde::{Deserialize, Serialize};

/// The values of `hidden_act` and similar settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Activation {
    /// `x·Φ(x)`.
    Gelu,
    /// `x·Φ(x)`, with `Φ` approximated by `tanh`; the same as [`Activation::GeluPytorchTanh`].
    GeluNew,
    /// `x·Φ(x)`, with `Φ` approximated by `tanh`.
    GeluPytorchTanh,
    /// `max(x, 0)`.
    Relu,
    /// `x·sigmoid(x)`.
    #[serde(alias = "swish")]
    Silu,
    /// The hyperbolic tangent.
    Tanh,
}

impl Activation {
    /// Whether both compute the same.
    pub(crate) fn is_same_as(self, other: Activation) -> bool {
        let tanh = [Activation::GeluNew, Activation::GeluPytorchTanh];
        self == other || (tanh.contains(&self) && tanh.contains(&other))
    }

    /// The function of each element.
    pub(crate) fn forward(self, x: &Tensor) -> Tensor {
        match self {
            Activation::Gelu => activation::gelu(x),
            Activation::GeluNew | Activation::GeluPytorchTanh => activation::gelu_tanh(x),
            Activation::Relu => activation::relu(x),
            Activation::Silu => activation::silu(x),
            Activation::Tanh => activation::tanh(x),
        }
    }
}
