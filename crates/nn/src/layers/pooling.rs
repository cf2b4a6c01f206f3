//! [`MaxPool1d`], [`AvgPool1d`] and similar layers: one number for each window of a sequence, an
//! image or a volume.
//!
//! Out of scope: windows chosen by the size of the result (`adaptive_pooling.rs`).

use std::fmt;

use fulmen_tensor::{AsTensor, Pooling, Tensor};

use super::sizes::Sizes;
use super::spatial::{check_batch, check_window, describe_settings, with_batch_axis};
use crate::Module;
use crate::library::NN;

macro_rules! pool {
    ($(#[$doc:meta])* $name:ident { $($setting:ident : $ty:ty = $default:expr),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        #[must_use]
        pub struct $name<const N: usize> {
            window: Sizes<N>,
            stride: Sizes<N>,
            padding: Sizes<N>,
            dilation: Sizes<N>,
            ceil_mode: bool,
            $($setting: $ty,)*
        }

        impl<const N: usize> $name<N> {
            /// Adjacent windows of this size, without padding.
            pub fn new(window: impl Into<Sizes<N>>) -> $name<N> {
                let window = window.into();
                let padding = Sizes::from(0);
                let dilation = Sizes::from(1);
                $name { window, stride: window, padding, dilation, ceil_mode: false, $($setting: $default,)* }
            }

            /// The distance between windows; initially the size of the window.
            pub fn stride(mut self, stride: impl Into<Sizes<N>>) -> $name<N> {
                self.stride = stride.into();
                self
            }

            /// The padding on each side; at most half of the window.
            pub fn padding(mut self, padding: impl Into<Sizes<N>>) -> $name<N> {
                self.padding = padding.into();
                self
            }

            /// Whether to include a last window that starts inside the input and ends outside;
            /// initially false.
            pub fn ceil_mode(mut self, ceil_mode: bool) -> $name<N> {
                self.ceil_mode = ceil_mode;
                self
            }

            fn pooling(&self) -> Pooling {
                Pooling::new(self.window.to_vec())
                    .stride(self.stride.to_vec())
                    .padding(self.padding.to_vec())
                    .dilation(self.dilation.to_vec())
                    .ceil_mode(self.ceil_mode)
            }

            /// What is wrong with the input or the settings, if anything.
            fn check(&self, x: &Tensor) -> Result<(), String> {
                if ![self.window, self.stride, self.dilation].iter().all(|sizes| sizes.all(|n| n > 0)) {
                    return Err("window, stride and dilation must be at least 1".into());
                }
                if (0..N).any(|i| self.padding.0[i] > self.window.0[i] / 2) {
                    return Err(format!("padding {} is more than half of the window", self.padding));
                }
                check_batch::<N>(x, "channels")?;
                check_window(x, self.window, self.padding, self.dilation)
            }

            /// Applies the pooling.
            #[track_caller]
            pub fn forward(&self, x: impl AsTensor) -> Tensor {
                NN.record(self, || {
                let x = x.as_tensor().live()?;
                self.check(x)?;
                Ok(with_batch_axis::<N>(x, |x| self.apply(x)))
                })
            }
        }

        impl<const N: usize> fmt::Display for $name<N> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}{N}d({}", stringify!($name), self.window)?;
                if self.stride != self.window {
                    write!(f, ", stride {}", self.stride)?;
                }
                f.write_str(&describe_settings(&[("padding", self.padding, 0), ("dilation", self.dilation, 1)]))?;
                f.write_str(if self.ceil_mode { ", ceil_mode)" } else { ")" })
            }
        }
    };
}

pool! {
    /// The maximum of each window over `N` axes of `[batch, channels, …]`, or of one sample.
    /// Padding never counts as the maximum. Like PyTorch's `nn.MaxPool1d`, `nn.MaxPool2d` and
    /// `nn.MaxPool3d`; use it as [`MaxPool1d`], [`MaxPool2d`], [`MaxPool3d`].
    ///
    /// ```
    /// use fulmen_nn::MaxPool2d;
    /// use fulmen_tensor::{DType, Tensor};
    /// let y = MaxPool2d::new(3).stride(2).padding(1).forward(&Tensor::zeros(DType::F32, [8, 64, 112, 112]));
    /// assert_eq!(y.ty().to_string(), "f32[8, 64, 56, 56]");
    /// ```
    MaxPool {}
}

/// Maxima over sequences `[batch, channels, length]`; see [`MaxPool`].
pub type MaxPool1d = MaxPool<1>;
/// Maxima over images `[batch, channels, height, width]`; see [`MaxPool`].
pub type MaxPool2d = MaxPool<2>;
/// Maxima over volumes `[batch, channels, depth, height, width]`; see [`MaxPool`].
pub type MaxPool3d = MaxPool<3>;

impl<const N: usize> MaxPool<N> {
    /// The distance between elements of a window; initially 1.
    pub fn dilation(mut self, dilation: impl Into<Sizes<N>>) -> MaxPool<N> {
        self.dilation = dilation.into();
        self
    }

    /// The maxima, and their positions in their channels (PyTorch's `return_indices`); see
    /// [`Tensor::max_pool_with_indices`].
    #[track_caller]
    pub fn forward_with_indices(&self, x: &Tensor) -> [Tensor; 2] {
        NN.record(self, || {
            self.check(x.live()?)?;
            Ok(if x.rank() == N + 1 {
                x.unsqueeze(0)
                    .max_pool_with_indices(&self.pooling())
                    .map(|output| output.squeeze(0))
            } else {
                x.max_pool_with_indices(&self.pooling())
            })
        })
    }

    fn apply(&self, x: &Tensor) -> Tensor {
        x.max_pool(&self.pooling())
    }
}

pool! {
    /// The mean of each window over `N` axes of `[batch, channels, …]`, or of one sample. Padding
    /// counts as zeros by default. Like PyTorch's `nn.AvgPool1d`, `nn.AvgPool2d` and
    /// `nn.AvgPool3d`; use it as [`AvgPool1d`], [`AvgPool2d`], [`AvgPool3d`].
    ///
    /// ```
    /// use fulmen_nn::AvgPool2d;
    /// use fulmen_tensor::Tensor;
    /// let y = AvgPool2d::new(2).forward(&Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0], [1, 2, 2]));
    /// assert_eq!(y.eval()?.to_vec::<f32>()?, [2.5]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    AvgPool { count_include_pad: bool = true, divisor: Option<usize> = None }
}

/// Means over sequences `[batch, channels, length]`; see [`AvgPool`].
pub type AvgPool1d = AvgPool<1>;
/// Means over images `[batch, channels, height, width]`; see [`AvgPool`].
pub type AvgPool2d = AvgPool<2>;
/// Means over volumes `[batch, channels, depth, height, width]`; see [`AvgPool`].
pub type AvgPool3d = AvgPool<3>;

impl<const N: usize> AvgPool<N> {
    /// Whether padding counts in the mean.
    pub fn count_include_pad(mut self, count: bool) -> AvgPool<N> {
        self.count_include_pad = count;
        self
    }

    /// The divisor of the sum of each window, instead of its number of elements (PyTorch's
    /// `divisor_override`).
    pub fn divisor_override(mut self, divisor: usize) -> AvgPool<N> {
        self.divisor = Some(divisor);
        self
    }

    fn apply(&self, x: &Tensor) -> Tensor {
        let pooling = self.pooling().count_include_pad(self.count_include_pad);
        x.avg_pool(&match self.divisor {
            Some(divisor) => pooling.divisor(divisor),
            None => pooling,
        })
    }
}
