//! [`ConvTranspose1d`], [`ConvTranspose2d`] and [`ConvTranspose3d`]: transposed convolution over 1,
//! 2 or 3 axes.

use std::fmt;

use fulmen_tensor::{AsTensor, Convolution, Tensor};

use super::conv::{add_bias, bias, settings, weight};
use super::sizes::Sizes;
use super::spatial::{check_batch, describe_settings, sides, with_batch_axis};
use crate::library::NN;
use crate::{Module, Parameter};

/// Transposed convolution over `N` axes of `[batch, channels, …]`, or of one sample `[channels,
/// …]`. It enlarges images by its stride. Like PyTorch's `nn.ConvTranspose1d`, `nn.ConvTranspose2d`
/// and `nn.ConvTranspose3d`; use it as [`ConvTranspose1d`], [`ConvTranspose2d`],
/// [`ConvTranspose3d`].
///
/// Each axis gets the size
/// `(size − 1)·stride − 2·padding + dilation·(kernel − 1) + output_padding + 1`. Weight
/// `[in, out/groups, …]` and bias `[out]` are initialized uniformly in `±1/√fan`, where the fan is
/// the product of the weight's axes from the second on. The builder methods recreate the
/// parameters, so call them before initialization.
///
/// ```
/// use fulmen_nn::{ConvTranspose2d, Module};
/// use fulmen_tensor::{DType, Tensor};
///
/// let layer = ConvTranspose2d::new(64, 32, 3).stride(2).padding(1).output_padding(1);
/// layer.initialize(0);
/// let y = layer.forward(&Tensor::zeros(DType::F32, [8, 64, 14, 14]));
/// assert_eq!(y.ty().to_string(), "f32[8, 32, 28, 28]");
/// ```
#[derive(Clone, Debug, Module)]
#[must_use]
pub struct ConvTranspose<const N: usize> {
    /// `[in, out/groups, …]`.
    pub weight: Parameter,
    /// `[out]`.
    pub bias: Option<Parameter>,
    in_channels: usize,
    out_channels: usize,
    kernel: Sizes<N>,
    stride: Sizes<N>,
    padding: Sizes<N>,
    output_padding: Sizes<N>,
    dilation: Sizes<N>,
    groups: usize,
}

/// Transposed convolution over sequences `[batch, channels, length]`; see [`ConvTranspose`].
pub type ConvTranspose1d = ConvTranspose<1>;
/// Transposed convolution over images `[batch, channels, height, width]`; see [`ConvTranspose`].
pub type ConvTranspose2d = ConvTranspose<2>;
/// Transposed convolution over volumes `[batch, channels, depth, height, width]`; see
/// [`ConvTranspose`].
pub type ConvTranspose3d = ConvTranspose<3>;

impl<const N: usize> ConvTranspose<N> {
    /// Stride 1, no padding, no dilation, one group, a bias.
    pub fn new(
        in_channels: usize,
        out_channels: usize,
        kernel: impl Into<Sizes<N>>,
    ) -> ConvTranspose<N> {
        let kernel = kernel.into();
        let one = Sizes::from(1);
        let none = Sizes::from(0);
        let layer = ConvTranspose {
            weight: weight(in_channels, out_channels, 1, kernel),
            bias: None,
            in_channels,
            out_channels,
            kernel,
            stride: one,
            padding: none,
            output_padding: none,
            dilation: one,
            groups: 1,
        };
        layer.bias(true)
    }

    /// Applies the transposed convolution and the bias.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record(self, || {
            let x = x.as_tensor().live()?;
            self.check_channels(x)?;
            let convolution = Convolution::new(N)
                .stride(self.stride.0)
                .padding(sides(self.padding))
                .output_padding(self.output_padding.0)
                .dilation(self.dilation.0)
                .groups(self.groups);
            let weight = self.weight.get();
            Ok(with_batch_axis::<N>(x, |x| {
                add_bias::<N>(&x.conv_transpose(&weight, &convolution), self.bias.as_ref())
            }))
        })
    }
}

settings! {
    ConvTranspose, in_channels, out_channels, {
        /// The factor by which the output is larger.
        stride;
        /// The padding of the corresponding convolution: this many elements are cut off each side
        /// of the result.
        padding;
        /// Additional size at the end of each axis of the result; less than the stride or the
        /// dilation.
        output_padding;
        /// The distance between elements of the kernel.
        dilation;
    }
}

impl<const N: usize> fmt::Display for ConvTranspose<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConvTranspose {
            in_channels,
            out_channels,
            kernel,
            stride,
            padding,
            dilation,
            groups,
            ..
        } = self;
        write!(f, "ConvTranspose{N}d({in_channels} -> {out_channels}, kernel {kernel}")?;
        let extra = ("output_padding", self.output_padding, 0);
        f.write_str(&describe_settings(&[
            ("stride", *stride, 1),
            ("padding", *padding, 0),
            extra,
            ("dilation", *dilation, 1),
        ]))?;
        if *groups != 1 {
            write!(f, ", {groups} groups")?;
        }
        f.write_str(")")
    }
}
