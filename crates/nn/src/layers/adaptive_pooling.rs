//! [`AdaptiveAvgPool1d`], [`AdaptiveMaxPool1d`] and similar layers: windows that are chosen so that
//! the result has a given size.

use std::fmt;

use fulmen_tensor::{AsTensor, Tensor};

use super::normalize::check_float;
use super::sizes::Sizes;
use super::spatial::check_batch;
use crate::Module;
use crate::library::NN;

macro_rules! adaptive {
    ($(#[$doc:meta])* $name:ident, $method:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        #[must_use]
        pub struct $name<const N: usize> {
            size: Sizes<N>,
        }

        impl<const N: usize> $name<N> {
            /// Makes a grid of this size.
            pub fn new(size: impl Into<Sizes<N>>) -> $name<N> {
                $name { size: size.into() }
            }

            /// Applies the pooling.
            #[track_caller]
            pub fn forward(&self, x: impl AsTensor) -> Tensor {
                NN.record(self, || {
                let x = x.as_tensor().live()?;
                let ty = x.ty();
                let empty = (1..=N as isize).any(|axis| x.size(-axis) == 0);
                if !self.size.all(|n| n > 0) {
                    return Err("the size must be at least 1".into());
                }
                check_batch::<N>(x, "channels")?;
                if empty {
                    return Err(format!("the input {ty} is not [batch, channels, …] with elements along each axis").into());
                }
                check_float(x)?;
                Ok(x.$method(&self.size.0))
                })
            }
        }

        impl<const N: usize> fmt::Display for $name<N> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}{N}d({})", stringify!($name), self.size)
            }
        }
    };
}

adaptive! {
    /// The means of a grid of windows over `N` axes of `[batch, channels, …]` or of one sample. The
    /// grid has the given size, however large the input is. Like PyTorch's `nn.AdaptiveAvgPool1d`,
    /// `nn.AdaptiveAvgPool2d` and `nn.AdaptiveAvgPool3d`; size 1 is the mean of all. Use it as
    /// [`AdaptiveAvgPool1d`], [`AdaptiveAvgPool2d`], [`AdaptiveAvgPool3d`].
    ///
    /// The windows overlap if the size does not divide the input's size.
    ///
    /// ```
    /// use fulmen_nn::AdaptiveAvgPool2d;
    /// use fulmen_tensor::{DType, Tensor};
    /// let features = Tensor::zeros(DType::F32, [8, 512, 7, 7]);
    /// assert_eq!(AdaptiveAvgPool2d::new(1).forward(&features).ty().to_string(), "f32[8, 512, 1, 1]");
    /// assert_eq!(AdaptiveAvgPool2d::new((2, 3)).forward(&features).ty().to_string(), "f32[8, 512, 2, 3]");
    /// ```
    AdaptiveAvgPool, adaptive_avg_pool
}

adaptive! {
    /// The maxima of a grid of windows; see [`AdaptiveAvgPool`]. Like PyTorch's
    /// `nn.AdaptiveMaxPool1d`, `nn.AdaptiveMaxPool2d` and `nn.AdaptiveMaxPool3d`, except that tied
    /// elements share the gradient. Use it as [`AdaptiveMaxPool1d`], [`AdaptiveMaxPool2d`],
    /// [`AdaptiveMaxPool3d`].
    ///
    /// ```
    /// use fulmen_nn::AdaptiveMaxPool1d;
    /// use fulmen_tensor::Tensor;
    /// let y = AdaptiveMaxPool1d::new(2).forward(&Tensor::from_slice(&[1f32, 4.0, 3.0, 2.0], [1, 4]));
    /// assert_eq!(y.eval()?.to_vec::<f32>()?, [4.0, 3.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    AdaptiveMaxPool, adaptive_max_pool
}

/// Means over sequences; see [`AdaptiveAvgPool`].
pub type AdaptiveAvgPool1d = AdaptiveAvgPool<1>;
/// Means over images; see [`AdaptiveAvgPool`].
pub type AdaptiveAvgPool2d = AdaptiveAvgPool<2>;
/// Means over volumes; see [`AdaptiveAvgPool`].
pub type AdaptiveAvgPool3d = AdaptiveAvgPool<3>;
/// Maxima over sequences; see [`AdaptiveMaxPool`].
pub type AdaptiveMaxPool1d = AdaptiveMaxPool<1>;
/// Maxima over images; see [`AdaptiveMaxPool`].
pub type AdaptiveMaxPool2d = AdaptiveMaxPool<2>;
/// Maxima over volumes; see [`AdaptiveMaxPool`].
pub type AdaptiveMaxPool3d = AdaptiveMaxPool<3>;
