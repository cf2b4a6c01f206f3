//! The activations as layers, for [`Sequential`](crate::Sequential): one row each. Their formulas stand with the
//! functions in [`activation`](crate::activation); those with parameters or random numbers have files of their own.

use fulmen_tensor::Tensor;

use crate::activation::{self, GeluKind};
use crate::{Forward, Module};

/// One row an activation: doc, name, its settings with PyTorch's defaults, and the function that takes the input and
/// the settings. No setting makes a unit struct, one in round brackets a tuple, several in braces fields.
macro_rules! layers {
    ($($(#[$doc:meta])* $name:ident $settings:tt => $function:path;)*) => {
        $(layers!(@row [$(#[$doc])*] $name $settings $function);)*
    };
    (@row [$(#[$doc:meta])*] $name:ident () $function:path) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Module)]
        pub struct $name;
        layers!(@forward $name, $function, |layer|);
    };
    (@row [$(#[$doc:meta])*] $name:ident ($type:ty = $default:expr) $function:path) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Module)]
        pub struct $name(pub $type);
        impl Default for $name {
            fn default() -> $name {
                $name($default)
            }
        }
        layers!(@forward $name, $function, |layer| layer.0);
    };
    (@row [$(#[$doc:meta])*] $name:ident {$($(#[$of:meta])* $field:ident: $type:ty = $default:expr,)*} $function:path) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Module)]
        pub struct $name {
            $($(#[$of])* pub $field: $type,)*
        }
        impl Default for $name {
            fn default() -> $name {
                $name { $($field: $default,)* }
            }
        }
        layers!(@forward $name, $function, |layer| $(layer.$field),*);
    };
    (@forward $name:ident, $function:path, |$layer:ident| $($setting:expr),*) => {
        impl $name {
            /// The function of the input.
            #[track_caller]
            pub fn forward(&self, x: &Tensor) -> Tensor {
                let $layer = self;
                let _ = $layer;
                $function(x, $($setting),*)
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

layers! {
    /// [`activation::relu`].
    Relu () => activation::relu;

    /// [`activation::relu6`].
    Relu6 () => activation::relu6;

    /// [`activation::sigmoid`].
    Sigmoid () => activation::sigmoid;

    /// [`activation::log_sigmoid`].
    LogSigmoid () => activation::log_sigmoid;

    /// [`activation::tanh`].
    Tanh () => activation::tanh;

    /// [`activation::silu`].
    Silu () => activation::silu;

    /// [`activation::mish`].
    Mish () => activation::mish;

    /// [`activation::gelu`], or with [`GeluKind::Tanh`] [`activation::gelu_tanh`].
    Gelu (GeluKind = GeluKind::Exact) => activation::gelu_of;

    /// [`activation::leaky_relu`] with this slope below 0; 0.01 by default.
    LeakyRelu (f64 = 0.01) => activation::leaky_relu;

    /// [`activation::elu`] with this `alpha`; 1 by default.
    Elu (f64 = 1.0) => activation::elu;

    /// [`activation::celu`] with this `alpha`; 1 by default.
    Celu (f64 = 1.0) => activation::celu;

    /// [`activation::selu`].
    Selu () => activation::selu;

    /// [`activation::softplus`] with `beta` and `threshold`; 1 and 20 by default.
    Softplus {
        /// How sharp the bend is.
        beta: f64 = 1.0,
        /// Where `beta·x` is above this, the result is `x`.
        threshold: f64 = 20.0,
    } => activation::softplus;

    /// [`activation::hardtanh`] from `low` to `high`; −1 and 1 by default.
    Hardtanh {
        /// The smallest result.
        low: f64 = -1.0,
        /// The largest result.
        high: f64 = 1.0,
    } => activation::hardtanh;

    /// [`activation::hardsigmoid`].
    Hardsigmoid () => activation::hardsigmoid;

    /// [`activation::hardswish`].
    Hardswish () => activation::hardswish;

    /// [`activation::hardshrink`] with this `lambda`; ½ by default.
    Hardshrink (f64 = 0.5) => activation::hardshrink;

    /// [`activation::softshrink`] with this `lambda`; ½ by default.
    Softshrink (f64 = 0.5) => activation::softshrink;

    /// [`activation::tanhshrink`].
    Tanhshrink () => activation::tanhshrink;

    /// [`activation::softsign`].
    Softsign () => activation::softsign;

    /// [`activation::threshold`] with `threshold` and `value`; 0 and 0 by default, where PyTorch has none.
    Threshold {
        /// What `x` must be above of to stay.
        threshold: f64 = 0.0,
        /// What the others become.
        value: f64 = 0.0,
    } => activation::threshold;

    /// [`activation::softmax`] along this axis; the last by default. PyTorch's `Softmax2d` is `Softmax(-3)`.
    Softmax (isize = -1) => activation::softmax;

    /// [`activation::log_softmax`] along this axis; the last by default.
    LogSoftmax (isize = -1) => activation::log_softmax;

    /// [`activation::softmin`] along this axis; the last by default.
    Softmin (isize = -1) => activation::softmin;

    /// [`activation::glu`] along this axis; the last by default.
    Glu (isize = -1) => activation::glu;
}
