//! [`ConvTranspose1d`], [`ConvTranspose2d`] and [`ConvTranspose3d`]: one layer over as many axes.

use std::fmt;

use fulmen_tensor::{AsTensor, Convolution, Tensor};

use super::conv::{bias, biased, impossible, unfit_channels, weight};
use super::sizes::Sizes;
use super::spatial::{batched, sides, unusual};
use crate::{Forward, Module, Parameter};

/// Transposed convolution over `N` axes of `[batch, channels, …]`, or of one sample `[channels, …]`: it makes images larger
/// by its stride. As PyTorch's `nn.ConvTranspose1d`, `nn.ConvTranspose2d` and `nn.ConvTranspose3d`; users name it
/// [`ConvTranspose1d`], [`ConvTranspose2d`], [`ConvTranspose3d`].
///
/// Each axis gets the size `(size − 1)·stride − 2·padding + dilation·(kernel − 1) + output_padding + 1`. Weight
/// `[in, out/groups, …]` and bias `[out]` begin uniform in `±1/√fan`, the fan being that of the weight's axes from the
/// second on. The builder methods make the parameters anew, so they come before initialization.
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
/// Transposed convolution over volumes `[batch, channels, depth, height, width]`; see [`ConvTranspose`].
pub type ConvTranspose3d = ConvTranspose<3>;

impl<const N: usize> ConvTranspose<N> {
    /// Stride 1, no padding, no dilation, one group, a bias.
    #[track_caller]
    pub fn new(in_channels: usize, out_channels: usize, kernel: impl Into<Sizes<N>>) -> ConvTranspose<N> {
        let (kernel, one, none) = (kernel.into(), Sizes::from(1), Sizes::from(0));
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

    /// How many times as many elements come out.
    pub fn stride(mut self, stride: impl Into<Sizes<N>>) -> ConvTranspose<N> {
        self.stride = stride.into();
        self
    }

    /// Elements cut off on each side of the result: the padding of the convolution that this one undoes.
    pub fn padding(mut self, padding: impl Into<Sizes<N>>) -> ConvTranspose<N> {
        self.padding = padding.into();
        self
    }

    /// What the result has more at the end of each axis; less than the stride or the dilation.
    pub fn output_padding(mut self, output_padding: impl Into<Sizes<N>>) -> ConvTranspose<N> {
        self.output_padding = output_padding.into();
        self
    }

    /// Steps between two elements of the kernel.
    pub fn dilation(mut self, dilation: impl Into<Sizes<N>>) -> ConvTranspose<N> {
        self.dilation = dilation.into();
        self
    }

    /// Groups of channels that do not see each other; must divide both numbers of channels.
    #[track_caller]
    pub fn groups(mut self, groups: usize) -> ConvTranspose<N> {
        self.groups = groups;
        self.weight = weight(self.in_channels, self.out_channels, groups, self.kernel);
        let bias = self.bias.is_some();
        self.bias(bias)
    }

    /// With or without a bias.
    #[track_caller]
    pub fn bias(mut self, with: bool) -> ConvTranspose<N> {
        self.bias = if with { Some(bias(self.out_channels, &self.weight)) } else { None };
        self
    }

    /// The transposed convolution and the bias.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        let x = x.as_tensor();
        if x.fault().is_some() {
            return x.clone();
        }
        let at_least_1 = [self.kernel, self.stride, self.dilation];
        let misfit = impossible((self.in_channels, self.out_channels), self.groups, at_least_1)
            .or_else(|| unfit_channels::<N>(x, self.in_channels));
        if let Some(message) = misfit {
            return Tensor::poison(&self.to_string(), message);
        }
        let how = Convolution::new(N)
            .stride(self.stride.0)
            .padding(sides(self.padding))
            .output_padding(self.output_padding.0)
            .dilation(self.dilation.0)
            .groups(self.groups);
        let weight = self.weight.get();
        batched::<N>(x, |x| biased::<N>(&x.conv_transpose(&weight, &how), self.bias.as_ref()))
    }
}

impl<const N: usize> fmt::Display for ConvTranspose<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConvTranspose { in_channels, out_channels, kernel, stride, padding, dilation, groups, .. } = self;
        write!(f, "ConvTranspose{N}d({in_channels} -> {out_channels}, kernel {kernel}")?;
        let extra = ("output_padding", self.output_padding, 0);
        f.write_str(&unusual(&[("stride", *stride, 1), ("padding", *padding, 0), extra, ("dilation", *dilation, 1)]))?;
        if *groups != 1 {
            write!(f, ", {groups} groups")?;
        }
        f.write_str(")")
    }
}

impl<const N: usize> Forward for ConvTranspose<N> {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        ConvTranspose::forward(self, x)
    }
}
