//! The activations as layers, for [`Sequential`](crate::Sequential), one row each. The functions in
//! [`activation`](crate::activation) have the formulas; activations with parameters or random
//! numbers have their own files.
//!
//! As for all layers, `new` takes the required settings, and a method sets each of the others.

use fulmen_tensor::{AsTensor, Tensor};

use crate::activation::{self, GeluKind};
use crate::library::NN;
use crate::{Forward, Module};

/// A row consists of: docs, name, the settings of `new` in parentheses, the settings with a default
/// (PyTorch's) and a method in braces, and the function of the input and the settings.
macro_rules! layers {
    ($($(#[$doc:meta])* $name:ident $required:tt $settings:tt => $function:path;)*) => {
        $(layers!(@row [$(#[$doc])*] $name $required $settings $function);)*
    };
    (@row [$(#[$doc:meta])*] $name:ident () {} $function:path) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Module)]
        #[must_use]
        pub struct $name;

        impl $name {
            /// The layer; it has no settings.
            pub fn new() -> $name {
                $name
            }
        }
        layers!(@forward $name, $function, |layer|);
    };
    (@row [$(#[$doc:meta])*] $name:ident () {$($settings:tt)*} $function:path) => {
        layers!(@settings [$(#[$doc])*] $name () {$($settings)*} $function);
        impl Default for $name {
            fn default() -> $name {
                $name::new()
            }
        }
    };
    (@row [$(#[$doc:meta])*] $name:ident $required:tt $settings:tt $function:path) => {
        layers!(@settings [$(#[$doc])*] $name $required $settings $function);
    };
    (@settings [$(#[$doc:meta])*] $name:ident
        ($($(#[$of_required:meta])* $required:ident: $required_type:ty),*)
        {$($(#[$of:meta])* $setting:ident: $type:ty = $default:expr,)*} $function:path
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Module)]
        #[must_use]
        pub struct $name {
            $($required: $required_type,)*
            $($setting: $type,)*
        }

        impl $name {
            /// The layer, with PyTorch's defaults for the other settings.
            pub fn new($($required: $required_type),*) -> $name {
                $name { $($required,)* $($setting: $default,)* }
            }

            $($(#[$of])*
            pub fn $setting(mut self, $setting: $type) -> $name {
                self.$setting = $setting;
                self
            })*
        }
        layers!(@forward $name, $function, |layer| $(layer.$required,)* $(layer.$setting,)*);
    };
    (@forward $name:ident, $function:path, |$layer:ident| $($setting:expr),* $(,)?) => {
        impl $name {
            /// Applies the function.
            #[track_caller]
            pub fn forward(&self, x: impl AsTensor) -> Tensor {
                let _scope = NN.open();
                let $layer = self;
                let _ = $layer;
                $function(x.as_tensor(), $($setting),*)
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
    Relu () {} => activation::relu;

    /// [`activation::relu6`].
    Relu6 () {} => activation::relu6;

    /// [`activation::sigmoid`].
    Sigmoid () {} => activation::sigmoid;

    /// [`activation::log_sigmoid`].
    LogSigmoid () {} => activation::log_sigmoid;

    /// [`activation::tanh`].
    Tanh () {} => activation::tanh;

    /// [`activation::silu`].
    Silu () {} => activation::silu;

    /// [`activation::mish`].
    Mish () {} => activation::mish;

    /// [`activation::gelu`], or with [`GeluKind::Tanh`] [`activation::gelu_tanh`].
    Gelu () {
        /// The form of the GELU; [`GeluKind::Exact`] by default.
        approximate: GeluKind = GeluKind::Exact,
    } => activation::gelu_of;

    /// [`activation::leaky_relu`] with this slope below 0; PyTorch's default is 0.01.
    LeakyRelu (negative_slope: f64) {} => activation::leaky_relu;

    /// [`activation::elu`].
    Elu () {
        /// The function approaches `−α` far below 0; 1 by default.
        alpha: f64 = 1.0,
    } => activation::elu;

    /// [`activation::celu`].
    Celu () {
        /// The function approaches `−α` far below 0; 1 by default.
        alpha: f64 = 1.0,
    } => activation::celu;

    /// [`activation::selu`].
    Selu () {} => activation::selu;

    /// [`activation::softplus`].
    Softplus () {
        /// The sharpness of the bend; 1 by default.
        beta: f64 = 1.0,
        /// If `beta·x` is above this, the result is `x`; 20 by default.
        threshold: f64 = 20.0,
    } => activation::softplus;

    /// [`activation::hardtanh`].
    Hardtanh () {
        /// The smallest result; −1 by default.
        min_val: f64 = -1.0,
        /// The largest result; 1 by default.
        max_val: f64 = 1.0,
    } => activation::hardtanh;

    /// [`activation::hardsigmoid`].
    Hardsigmoid () {} => activation::hardsigmoid;

    /// [`activation::hardswish`].
    Hardswish () {} => activation::hardswish;

    /// [`activation::hardshrink`].
    Hardshrink () {
        /// Inputs this close to 0 become 0; ½ by default.
        lambda: f64 = 0.5,
    } => activation::hardshrink;

    /// [`activation::softshrink`].
    Softshrink () {
        /// Inputs this close to 0 become 0; ½ by default.
        lambda: f64 = 0.5,
    } => activation::softshrink;

    /// [`activation::tanhshrink`].
    Tanhshrink () {} => activation::tanhshrink;

    /// [`activation::softsign`].
    Softsign () {} => activation::softsign;

    /// [`activation::threshold`]: `x` where it is above `threshold`, else `value`.
    Threshold (threshold: f64, value: f64) {} => activation::threshold;

    /// [`activation::softmax`] along this axis; −1 is the last. PyTorch's `Softmax2d` is
    /// `Softmax::new(-3)`.
    Softmax (axis: isize) {} => activation::softmax;

    /// [`activation::log_softmax`] along this axis; −1 is the last.
    LogSoftmax (axis: isize) {} => activation::log_softmax;

    /// [`activation::softmin`] along this axis; −1 is the last.
    Softmin (axis: isize) {} => activation::softmin;

    /// [`activation::glu`].
    Glu () {
        /// The axis to halve; the last by default.
        axis: isize = -1,
    } => activation::glu;
}
