//! [`Conv1d`], [`Conv2d`] and [`Conv3d`]: convolution over 1, 2 or 3 axes.
//!
//! Out of scope: transposed convolution (`conv_transpose.rs`).

use std::fmt;

use fulmen_tensor::{AsTensor, Convolution, PadMode, Tensor};

use super::linear::bias_init;
use super::sizes::Sizes;
use super::spatial::{check_batch, check_window, describe_settings, sides, with_batch_axis};
use crate::init::{Fan, Nonlinearity};
use crate::library::NN;
use crate::{Init, Module, Parameter};

/// Convolution over `N` axes of `[batch, channels, …]`, or of one sample `[channels, …]`. Like
/// PyTorch's `nn.Conv1d`, `nn.Conv2d` and `nn.Conv3d`; use it as [`Conv1d`], [`Conv2d`],
/// [`Conv3d`].
///
/// Weight `[out, in/groups, …]` and bias `[out]` are initialized uniformly in `±1/√fan_in`. The
/// builder methods recreate the parameters, so call them before initialization.
///
/// ```
/// use fulmen_nn::{Conv2d, Module};
/// use fulmen_tensor::{DType, Tensor};
///
/// let conv = Conv2d::new(3, 64, 7).stride(2).padding(3).bias(false);
/// conv.initialize(0);
/// let y = conv.forward(&Tensor::zeros(DType::F32, [8, 3, 224, 224]));
/// assert_eq!(y.ty().to_string(), "f32[8, 64, 112, 112]");
/// ```
#[derive(Clone, Debug, Module)]
#[must_use]
pub struct Conv<const N: usize> {
    /// `[out, in/groups, …]`.
    pub weight: Parameter,
    /// `[out]`.
    pub bias: Option<Parameter>,
    in_channels: usize,
    out_channels: usize,
    kernel: Sizes<N>,
    stride: Sizes<N>,
    padding: Sizes<N>,
    /// Whether to replace `padding` by the padding that preserves the sizes.
    same: bool,
    #[module(skip)]
    padding_mode: PadMode,
    dilation: Sizes<N>,
    groups: usize,
}

/// Convolution over sequences `[batch, channels, length]`; see [`Conv`].
pub type Conv1d = Conv<1>;
/// Convolution over images `[batch, channels, height, width]`; see [`Conv`].
pub type Conv2d = Conv<2>;
/// Convolution over volumes `[batch, channels, depth, height, width]`; see [`Conv`].
pub type Conv3d = Conv<3>;

/// A weight that is initialized as in PyTorch. Its fan-in is computed from the second axis.
pub(super) fn weight<const N: usize>(
    first: usize,
    second: usize,
    groups: usize,
    kernel: Sizes<N>,
) -> Parameter {
    // `forward` rejects groups that do not divide the channels, so the size does not matter for
    // them.
    let second = second.checked_div(groups).unwrap_or(0);
    let init = Init::kaiming_uniform(Nonlinearity::LeakyRelu(5f64.sqrt()), Fan::In);
    Parameter::new([&[first, second], &kernel.0[..]].concat(), init)
}

/// A bias with `out` channels. Its initial values depend on the fan-in of `weight`.
pub(super) fn bias(out: usize, weight: &Parameter) -> Parameter {
    let fan_in = weight.ty().shape.iter().skip(1).fold(1usize, |n, &size| n.saturating_mul(size));
    Parameter::new([out], bias_init(fan_in))
}

/// Adds a bias to the channels.
pub(super) fn add_bias<const N: usize>(y: &Tensor, bias: Option<&Parameter>) -> Tensor {
    match bias {
        // Otherwise the bias would widen a 16-bit product under autocast to f32.
        Some(bias) => {
            y + bias.get().unflatten(0, &[&[-1], &[1; N][..]].concat()).to_dtype(y.dtype())
        }
        None => y.clone(),
    }
}

/// The common part of both kinds of convolution: settings as methods, and checks. `$first` and
/// `$second` are the fields with the sizes of the weight's first two axes.
macro_rules! settings {
    ($name:ident, $first:ident, $second:ident, { $($(#[$doc:meta])* $setting:ident;)* }) => {
        impl<const N: usize> $name<N> {
            $($(#[$doc])*
            pub fn $setting(mut self, $setting: impl Into<Sizes<N>>) -> $name<N> {
                self.$setting = $setting.into();
                self
            })*

            /// The number of groups of channels that are independent; must divide both numbers of
            /// channels.
            pub fn groups(mut self, groups: usize) -> $name<N> {
                self.groups = groups;
                self.weight = weight(self.$first, self.$second, groups, self.kernel);
                let bias = self.bias.is_some();
                self.bias(bias)
            }

            /// With or without a bias.
            pub fn bias(mut self, enabled: bool) -> $name<N> {
                self.bias = enabled.then(|| bias(self.out_channels, &self.weight));
                self
            }

            /// Rejects invalid settings and inputs that do not fit them.
            fn check_channels(&self, x: &Tensor) -> Result<(), String> {
                let channels = self.in_channels;
                let out = self.out_channels;
                let groups = self.groups;
                if channels.checked_rem(groups) != Some(0) || out.checked_rem(groups) != Some(0) {
                    return Err(format!("{groups} groups do not divide {channels} and {out} channels"));
                }
                if ![self.kernel, self.stride, self.dilation].iter().all(|sizes| sizes.all(|n| n > 0)) {
                    return Err("kernel, stride and dilation must be at least 1".into());
                }
                check_batch::<N>(x, channels)?;
                let axis = -(N as isize) - 1;
                match x.size(axis) {
                    actual if actual == channels => Ok(()),
                    actual => Err(format!(
                        "the input {} has {} on its axis {axis}, not {channels}",
                        x.ty(),
                        fulmen_durable::messages::quantity(actual, "channel")
                    )),
                }
            }
        }
    };
}
pub(super) use settings;

settings! {
    Conv, out_channels, in_channels, {
        /// The stride of the kernel.
        stride;
        /// The padding on each side.
        padding;
        /// The distance between elements of the kernel.
        dilation;
    }
}

impl<const N: usize> Conv<N> {
    /// Stride 1, no padding, no dilation, one group, a bias.
    pub fn new(in_channels: usize, out_channels: usize, kernel: impl Into<Sizes<N>>) -> Conv<N> {
        let kernel = kernel.into();
        let one = Sizes::from(1);
        let layer = Conv {
            weight: weight(out_channels, in_channels, 1, kernel),
            bias: None,
            in_channels,
            out_channels,
            kernel,
            stride: one,
            padding: Sizes::from(0),
            same: false,
            padding_mode: PadMode::Zeros,
            dilation: one,
            groups: 1,
        };
        layer.bias(true)
    }

    /// Pads so that the result has the input's sizes (PyTorch's `padding="same"`); for stride 1
    /// only.
    pub fn padding_same(mut self) -> Conv<N> {
        self.same = true;
        self
    }

    /// The padding mode; initially zeros.
    pub fn padding_mode(mut self, mode: PadMode) -> Conv<N> {
        self.padding_mode = mode;
        self
    }

    /// The padding on both sides of each axis.
    fn sides(&self) -> Vec<(i64, i64)> {
        if !self.same {
            return sides(self.padding);
        }
        let total = |i: usize| {
            let total = self.dilation.0[i].saturating_mul(self.kernel.0[i].saturating_sub(1));
            i64::try_from(total).unwrap_or(i64::MAX)
        };
        (0..N).map(|i| (total(i) / 2, total(i) - total(i) / 2)).collect()
    }

    /// Applies the convolution and the bias.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record(self, || {
            let x = x.as_tensor().live()?;
            self.check_channels(x)?;
            if !self.same {
                check_window(x, self.kernel, self.padding, self.dilation)?;
            } else if !self.stride.all(|n| n == 1) {
                return Err("padding_same needs stride 1".into());
            }
            let convolution = Convolution::new(N)
                .stride(self.stride.0)
                .dilation(self.dilation.0)
                .groups(self.groups);
            let weight = self.weight.get();
            Ok(with_batch_axis::<N>(x, |x| {
                let y = match self.padding_mode {
                    PadMode::Zeros => x.convolution(&weight, &convolution.padding(self.sides())),
                    mode => x.pad_mode(&self.sides(), mode).convolution(&weight, &convolution),
                };
                add_bias::<N>(&y, self.bias.as_ref())
            }))
        })
    }
}

impl<const N: usize> fmt::Display for Conv<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conv { in_channels, out_channels, kernel, stride, padding, dilation, groups, .. } =
            self;
        write!(f, "Conv{N}d({in_channels} -> {out_channels}, kernel {kernel}")?;
        f.write_str(&describe_settings(&[
            ("stride", *stride, 1),
            ("padding", *padding, 0),
            ("dilation", *dilation, 1),
        ]))?;
        if self.same {
            f.write_str(", same padding")?;
        }
        if *groups != 1 {
            write!(f, ", {groups} groups")?;
        }
        f.write_str(")")
    }
}
