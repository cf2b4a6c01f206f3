//! [`Conv2d`]: convolution over images.

use std::fmt;

use fulmen_tensor::{Convolution, Tensor};

use super::linear::bias_init;
use super::pooling::{batched, room};
use crate::init::{Fan, Nonlinearity};
use crate::{Forward, Init, Module, Pair, Parameter};

/// Convolution over images `[batch, channels, height, width]`, or one image `[channels, height, width]`. As PyTorch's
/// `nn.Conv2d`.
///
/// Weight `[out, in/groups, height, width]` and bias `[out]` begin uniform in `±1/√fan_in`. The builder methods make
/// the parameters anew, so they come before initialization.
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
pub struct Conv2d {
    /// `[out, in/groups, height, width]`.
    pub weight: Parameter,
    /// `[out]`.
    pub bias: Option<Parameter>,
    in_channels: usize,
    out_channels: usize,
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: usize,
}

impl Conv2d {
    /// Stride 1, no padding, no dilation, one group, a bias.
    #[track_caller]
    pub fn new(in_channels: usize, out_channels: usize, kernel: impl Into<Pair>) -> Conv2d {
        let (kernel, one) = (kernel.into(), Pair::from(1));
        let layer = Conv2d {
            weight: weight(in_channels, out_channels, kernel, 1),
            bias: None,
            in_channels,
            out_channels,
            kernel,
            stride: one,
            padding: Pair::from(0),
            dilation: one,
            groups: 1,
        };
        layer.bias(true)
    }

    /// Steps between two places of the kernel.
    pub fn stride(mut self, stride: impl Into<Pair>) -> Conv2d {
        self.stride = stride.into();
        self
    }

    /// Zeros on each side.
    pub fn padding(mut self, padding: impl Into<Pair>) -> Conv2d {
        self.padding = padding.into();
        self
    }

    /// Steps between two elements of the kernel.
    pub fn dilation(mut self, dilation: impl Into<Pair>) -> Conv2d {
        self.dilation = dilation.into();
        self
    }

    /// Groups of channels that do not see each other; must divide both numbers of channels.
    #[track_caller]
    pub fn groups(mut self, groups: usize) -> Conv2d {
        self.groups = groups;
        self.weight = weight(self.in_channels, self.out_channels, self.kernel, groups);
        let bias = self.bias.is_some();
        self.bias(bias)
    }

    /// With or without a bias.
    #[track_caller]
    pub fn bias(mut self, bias: bool) -> Conv2d {
        let fan_in = self.weight.ty().shape.iter().skip(1).product();
        self.bias = bias.then(|| Parameter::new([self.out_channels], bias_init(fan_in)));
        self
    }

    /// Why this input or these settings cannot be, if they cannot.
    fn misfit(&self, x: &Tensor) -> Option<String> {
        let Conv2d { in_channels, out_channels, groups, .. } = self;
        if *groups == 0 || in_channels % groups != 0 || out_channels % groups != 0 {
            return Some(format!("{groups} groups do not divide {in_channels} and {out_channels} channels"));
        }
        if !self.stride.both(|n| n > 0) || !self.dilation.both(|n| n > 0) || !self.kernel.both(|n| n > 0) {
            return Some("kernel, stride and dilation must be at least 1".into());
        }
        let (ty, channels) = (x.ty(), x.size(-3));
        if !(3..=4).contains(&x.rank()) {
            return Some(format!("the input {ty} is not [batch, {in_channels}, height, width]"));
        }
        if channels != *in_channels {
            return Some(format!("the input {ty} has {channels} channels on its axis -3, not {in_channels}"));
        }
        room(x, self.kernel, self.padding, self.dilation)
    }

    /// The convolution and the bias.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        if x.fault().is_some() {
            return x.clone();
        }
        if let Some(message) = self.misfit(x) {
            return Tensor::poison(&self.to_string(), message);
        }
        let pad = |n: usize| (n as i64, n as i64);
        let how = Convolution::new(2)
            .stride(self.stride.to_vec())
            .padding([pad(self.padding.height), pad(self.padding.width)])
            .dilation(self.dilation.to_vec())
            .groups(self.groups);
        let weight = self.weight.get();
        let bias = self.bias.as_ref().map(|b| b.get().reshape([self.out_channels, 1, 1]));
        batched(x, |x| {
            let y = x.convolution(&weight, &how);
            match &bias {
                // Else a product in 16 bits, under autocast, would become f32 by its bias.
                Some(bias) => &y + bias.to_dtype(y.dtype()),
                None => y,
            }
        })
    }
}

#[track_caller]
fn weight(inputs: usize, out: usize, kernel: Pair, groups: usize) -> Parameter {
    // Groups that do not divide are refused by `forward`, which can say so; there is no weight for them.
    let inputs = inputs.checked_div(groups).unwrap_or(0);
    let init = Init::kaiming_uniform(Nonlinearity::LeakyRelu(5f64.sqrt()), Fan::In);
    Parameter::new([out, inputs, kernel.height, kernel.width], init)
}

impl fmt::Display for Conv2d {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conv2d { in_channels, out_channels, kernel, stride, padding, dilation, groups, .. } = self;
        write!(f, "Conv2d({in_channels} -> {out_channels}, kernel {kernel}")?;
        for (name, value, default) in [("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1)] {
            if *value != Pair::from(default) {
                write!(f, ", {name} {value}")?;
            }
        }
        if *groups != 1 {
            write!(f, ", {groups} groups")?;
        }
        f.write_str(")")
    }
}

impl Forward for Conv2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        Conv2d::forward(self, x)
    }
}
