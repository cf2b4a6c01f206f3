//! The activations as layers, for [`Sequential`](crate::Sequential). Their formulas stand with the functions in
//! [`activation`](crate::activation).

use fulmen_tensor::Tensor;

use crate::activation::{self, GeluKind};
use crate::{Forward, Module};

/// A layer without state whose `forward` is one expression.
macro_rules! layers {
    ($($name:ident, |$layer:ident, $x:ident| $result:expr;)*) => {$(
        impl $name {
            /// The function of each element.
            #[track_caller]
            pub fn forward(&self, $x: &Tensor) -> Tensor {
                let $layer = self;
                let _ = $layer;
                $result
            }
        }
        impl Forward for $name {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Tensor {
                $name::forward(self, x)
            }
        }
    )*};
}

/// [`activation::relu`].
#[derive(Clone, Copy, Debug, Default, Module)]
pub struct Relu;

/// [`activation::sigmoid`].
#[derive(Clone, Copy, Debug, Default, Module)]
pub struct Sigmoid;

/// [`activation::tanh`].
#[derive(Clone, Copy, Debug, Default, Module)]
pub struct Tanh;

/// [`activation::silu`].
#[derive(Clone, Copy, Debug, Default, Module)]
pub struct Silu;

/// [`activation::gelu`], or with [`GeluKind::Tanh`] [`activation::gelu_tanh`].
#[derive(Clone, Copy, Debug, Default, Module)]
pub struct Gelu(pub GeluKind);

/// [`activation::leaky_relu`] with this slope below 0; 0.01 by default.
#[derive(Clone, Copy, Debug, Module)]
pub struct LeakyRelu(pub f64);

impl Default for LeakyRelu {
    fn default() -> LeakyRelu {
        LeakyRelu(0.01)
    }
}

/// [`activation::elu`] with this `alpha`; 1 by default.
#[derive(Clone, Copy, Debug, Module)]
pub struct Elu(pub f64);

impl Default for Elu {
    fn default() -> Elu {
        Elu(1.0)
    }
}

/// [`activation::softplus`] with `beta` and `threshold`; 1 and 20 by default.
#[derive(Clone, Copy, Debug, Module)]
pub struct Softplus {
    /// How sharp the bend is.
    pub beta: f64,
    /// Where `beta·x` is above this, the result is `x`.
    pub threshold: f64,
}

impl Default for Softplus {
    fn default() -> Softplus {
        Softplus { beta: 1.0, threshold: 20.0 }
    }
}

layers! {
    Relu, |layer, x| activation::relu(x);
    Sigmoid, |layer, x| activation::sigmoid(x);
    Tanh, |layer, x| activation::tanh(x);
    Silu, |layer, x| activation::silu(x);
    Gelu, |layer, x| match layer.0 {
        GeluKind::Exact => activation::gelu(x),
        GeluKind::Tanh => activation::gelu_tanh(x),
    };
    LeakyRelu, |layer, x| activation::leaky_relu(x, layer.0);
    Elu, |layer, x| activation::elu(x, layer.0);
    Softplus, |layer, x| activation::softplus(x, layer.beta, layer.threshold);
}
