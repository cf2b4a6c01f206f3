//! Layers that pad the last axes: [`ZeroPad2d`], [`ReflectionPad2d`] and similar layers.

use std::fmt;

use fulmen_tensor::{AsTensor, PadMode, Tensor};

use super::spatial::check_batch;
use crate::library::NN;
use crate::{Module, Visit};

/// The number of elements before and after each of `N` spatial axes, in order; negative numbers
/// crop. A single number applies to all sides.
///
/// PyTorch lists the last axis first: `(left, right, top, bottom)` there is `[(top, bottom), (left,
/// right)]` here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sides<const N: usize>(pub [(i64, i64); N]);

impl<const N: usize> From<i64> for Sides<N> {
    fn from(all: i64) -> Sides<N> {
        Sides([(all, all); N])
    }
}
impl<const N: usize> From<[(i64, i64); N]> for Sides<N> {
    fn from(sides: [(i64, i64); N]) -> Sides<N> {
        Sides(sides)
    }
}

impl<const N: usize> Module for Sides<N> {
    fn visit(&self, _: &mut Visit<'_>) {}
}

macro_rules! pads {
    ($($(#[$doc:meta])* $name:ident($($value:ident)?) = $mode:expr, $one:ident $two:ident $three:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        #[must_use]
        pub struct $name<const N: usize> {
            sides: Sides<N>,
            $($value: f64,)?
        }

        #[doc = concat!("[`", stringify!($name), "`] over sequences `[batch, channels, length]`.")]
        pub type $one = $name<1>;
        #[doc = concat!("[`", stringify!($name), "`] over images `[batch, channels, height, width]`.")]
        pub type $two = $name<2>;
        #[doc = concat!("[`", stringify!($name), "`] over volumes `[batch, channels, depth, height, width]`.")]
        pub type $three = $name<3>;

        impl<const N: usize> $name<N> {
            /// Pads each axis by the given number of elements on each side.
            pub fn new(sides: impl Into<Sides<N>>, $($value: f64)?) -> $name<N> {
                $name { sides: sides.into(), $($value)? }
            }

            /// Pads the input.
            #[track_caller]
            pub fn forward(&self, x: impl AsTensor) -> Tensor {
                NN.record(self, || {
                let x = x.as_tensor().live()?;
                $(let $value = self.$value;)?
                check_batch::<N>(x, "channels")?;
                Ok(x.pad_mode(&self.sides.0, $mode))
                })
            }
        }

        impl<const N: usize> fmt::Display for $name<N> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}{N}d({:?})", stringify!($name), self.sides.0)
            }
        }
    )*};
}

pads! {
    /// Pads the last `N` axes with zeros. Like PyTorch's `nn.ZeroPad2d` and its variants.
    ///
    /// ```
    /// use fulmen_nn::ZeroPad2d;
    /// use fulmen_tensor::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, [1, 3, 4, 4]);
    /// assert_eq!(ZeroPad2d::new([(0, 1), (2, 2)]).forward(&x).ty().to_string(), "f32[1, 3, 5, 8]");
    /// ```
    ZeroPad() = PadMode::Zeros, ZeroPad1d ZeroPad2d ZeroPad3d;

    /// Pads the last `N` axes with a constant. Like PyTorch's `nn.ConstantPad2d` and its variants.
    ConstantPad(value) = PadMode::Constant(value), ConstantPad1d ConstantPad2d ConstantPad3d;

    /// Pads the last `N` axes by reflection at the edges, by less than the input's size. Like
    /// PyTorch's `nn.ReflectionPad2d` and its variants.
    ReflectionPad() = PadMode::Reflect, ReflectionPad1d ReflectionPad2d ReflectionPad3d;

    /// Pads the last `N` axes by repeating the edge elements. Like PyTorch's `nn.ReplicationPad2d`
    /// and its variants.
    ReplicationPad() = PadMode::Replicate, ReplicationPad1d ReplicationPad2d ReplicationPad3d;

    /// Pads the last `N` axes with the input's opposite ends, by at most its size. Like PyTorch's
    /// `nn.CircularPad2d` and its variants.
    CircularPad() = PadMode::Circular, CircularPad1d CircularPad2d CircularPad3d;
}
