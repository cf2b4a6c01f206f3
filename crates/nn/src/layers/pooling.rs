//! [`MaxPool2d`] and [`AvgPool2d`]: one number for each window of an image.

use std::fmt;
use std::panic::Location;

use fulmen_tensor::{Pooling, Tensor};

use crate::{Forward, Module, Pair, users_line};

/// Runs `f` on a batch of images; one image without a batch axis gets one for the while.
#[track_caller]
pub(super) fn batched(x: &Tensor, f: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
    let line = Location::caller();
    users_line::at(line, || if x.rank() == 3 { f(&x.unsqueeze(0)).squeeze(0) } else { f(x) })
}

/// Says so if a window has no room in the padded image.
pub(super) fn room(x: &Tensor, window: Pair, padding: Pair, dilation: Pair) -> Option<String> {
    let sides = [
        ("height", -2, window.height, padding.height, dilation.height),
        ("width", -1, window.width, padding.width, dilation.width),
    ];
    sides.into_iter().find_map(|(name, axis, window, padding, dilation)| {
        let has = padding.saturating_mul(2).saturating_add(x.size(axis));
        let needs = window.saturating_sub(1).saturating_mul(dilation).saturating_add(1);
        let padded = if padding > 0 { " with its padding" } else { "" };
        (has < needs).then(|| format!("the {name} of {}{padded} is {has}, the window needs {needs}", x.ty()))
    })
}

macro_rules! pool {
    ($(#[$doc:meta])* $name:ident { $($setting:ident : $ty:ty = $default:expr),* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        pub struct $name {
            window: Pair,
            stride: Pair,
            padding: Pair,
            $($setting: $ty,)*
        }

        impl $name {
            /// Windows of this size side by side, without padding.
            pub fn new(window: impl Into<Pair>) -> $name {
                let window = window.into();
                $name { window, stride: window, padding: Pair::from(0), $($setting: $default,)* }
            }

            /// Steps between two windows; the window's size at first.
            pub fn stride(mut self, stride: impl Into<Pair>) -> $name {
                self.stride = stride.into();
                self
            }

            /// Elements added on each side; at most half of the window.
            pub fn padding(mut self, padding: impl Into<Pair>) -> $name {
                self.padding = padding.into();
                self
            }

            fn pooling(&self) -> Pooling {
                Pooling::new(self.window.to_vec()).stride(self.stride.to_vec()).padding(self.padding.to_vec())
            }

            /// Why this input or these settings cannot be, if they cannot.
            fn misfit(&self, x: &Tensor) -> Option<String> {
                if !self.window.both(|n| n > 0) || !self.stride.both(|n| n > 0) {
                    return Some("window and stride must be at least 1".into());
                }
                if self.padding.height > self.window.height / 2 || self.padding.width > self.window.width / 2 {
                    return Some(format!("padding {} is more than half of the window", self.padding));
                }
                if !(3..=4).contains(&x.rank()) {
                    return Some(format!("the input {} is not [batch, channels, height, width]", x.ty()));
                }
                room(x, self.window, self.padding, Pair::from(1))
            }

            /// The windows' numbers.
            #[track_caller]
            pub fn forward(&self, x: &Tensor) -> Tensor {
                if x.fault().is_some() {
                    return x.clone();
                }
                match self.misfit(x) {
                    Some(message) => Tensor::poison(&self.to_string(), message),
                    None => batched(x, |x| self.apply(x)),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({}", stringify!($name), self.window)?;
                if self.stride != self.window {
                    write!(f, ", stride {}", self.stride)?;
                }
                if self.padding != Pair::from(0) {
                    write!(f, ", padding {}", self.padding)?;
                }
                f.write_str(")")
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

pool! {
    /// The largest number of each window of images `[batch, channels, height, width]` or of one image. As PyTorch's
    /// `nn.MaxPool2d`: padding is never the largest, what fills no whole window is left out.
    ///
    /// ```
    /// use fulmen_nn::MaxPool2d;
    /// use fulmen_tensor::{DType, Tensor};
    /// let y = MaxPool2d::new(3).stride(2).padding(1).forward(&Tensor::zeros(DType::F32, [8, 64, 112, 112]));
    /// assert_eq!(y.ty().to_string(), "f32[8, 64, 56, 56]");
    /// ```
    MaxPool2d {}
}

impl MaxPool2d {
    #[track_caller]
    fn apply(&self, x: &Tensor) -> Tensor {
        x.max_pool(&self.pooling())
    }
}

pool! {
    /// The mean of each window of images `[batch, channels, height, width]` or of one image. As PyTorch's
    /// `nn.AvgPool2d`: padding counts as zeros unless told otherwise, what fills no whole window is left out.
    ///
    /// ```
    /// use fulmen_nn::AvgPool2d;
    /// use fulmen_tensor::Tensor;
    /// let y = AvgPool2d::new(2).forward(&Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0], [1, 2, 2]));
    /// assert_eq!(y.eval()?.to_vec::<f32>()?, [2.5]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    AvgPool2d { count_include_pad: bool = true }
}

impl AvgPool2d {
    /// Whether padding counts in the mean.
    pub fn count_include_pad(mut self, count: bool) -> AvgPool2d {
        self.count_include_pad = count;
        self
    }

    #[track_caller]
    fn apply(&self, x: &Tensor) -> Tensor {
        let mean = x.avg_pool(&self.pooling());
        if self.count_include_pad || self.padding == Pair::from(0) {
            return mean;
        }
        // The share of each window that is image.
        let image = Tensor::ones(x.dtype(), [1, 1, x.size(2), x.size(3)]);
        mean / image.avg_pool(&self.pooling())
    }
}
