//! [`Convolution`]: the options of a convolution and of a transposed convolution.

use fulmen_durable::messages::quantity;

use super::convolution::{Axes, ConvolutionOp, dilated_size};
use crate::Tensor;
use crate::shape::{LARGEST, within_reach};

/// The zeros around the input.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Padding {
    /// The numbers before and after the input, for each spatial axis.
    Numbers(Vec<(i64, i64)>),
    /// The padding that keeps the size of the input.
    Same,
}

/// The options of a convolution; lists have one entry for each spatial axis. [`Convolution::new`]
/// sets stride 1, no padding, no dilation and one group.
///
/// ```
/// use fulmen_tensor::{Convolution, DType, Tensor};
/// let x = Tensor::zeros(DType::F32, [8, 3, 32, 32]);
/// let w = Tensor::zeros(DType::F32, [16, 3, 3, 3]);
/// let y = x.convolution(&w, &Convolution::new(2).stride([2, 2]).padding([(1, 1), (1, 1)]));
/// assert_eq!(y.ty().to_string(), "f32[8, 16, 16, 16]");
/// let y = x.convolution(&w, &Convolution::new(2).same());
/// assert_eq!(y.ty().to_string(), "f32[8, 16, 32, 32]");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Convolution {
    pub(super) stride: Vec<usize>,
    padding: Padding,
    pub(super) output_padding: Vec<usize>,
    pub(super) dilation: Vec<usize>,
    pub(super) groups: usize,
}

impl Convolution {
    /// A convolution over `spatial` axes with stride 1, no padding (PyTorch's `valid`), no dilation
    /// and one group.
    pub fn new(spatial: usize) -> Convolution {
        Convolution {
            stride: vec![1; spatial],
            padding: Padding::Numbers(vec![(0, 0); spatial]),
            output_padding: vec![0; spatial],
            dilation: vec![1; spatial],
            groups: 1,
        }
    }

    /// The step between two positions of the kernel.
    pub fn stride(mut self, stride: impl Into<Vec<usize>>) -> Convolution {
        self.stride = stride.into();
        self
    }

    /// The numbers of zeros before and after the input.
    pub fn padding(mut self, padding: impl Into<Vec<(i64, i64)>>) -> Convolution {
        self.padding = Padding::Numbers(padding.into());
        self
    }

    /// Pads so that the result has the size of the input (PyTorch's `padding="same"`). If the
    /// number of zeros is odd, one more follows the input than precedes it. Requires stride 1.
    pub fn same(mut self) -> Convolution {
        self.padding = Padding::Same;
        self
    }

    /// The additional size at the end of the result of [`Tensor::conv_transpose`]. It must be less
    /// than the stride or the dilation.
    pub fn output_padding(mut self, output_padding: impl Into<Vec<usize>>) -> Convolution {
        self.output_padding = output_padding.into();
        self
    }

    /// The step between two elements of the kernel.
    pub fn dilation(mut self, dilation: impl Into<Vec<usize>>) -> Convolution {
        self.dilation = dilation.into();
        self
    }

    /// The number of groups of channels. Each output channel depends only on the input channels of
    /// its group.
    pub fn groups(mut self, groups: usize) -> Convolution {
        self.groups = groups;
        self
    }

    /// The zeros around the input, after a check that all lists have one entry for each spatial
    /// axis.
    pub(super) fn check(&self, kernel: &Tensor) -> Result<Vec<(i64, i64)>, String> {
        let spatial = self.stride.len();
        let padding_entries = match &self.padding {
            Padding::Numbers(padding) => padding.len(),
            Padding::Same => spatial,
        };
        if [padding_entries, self.dilation.len(), self.output_padding.len()]
            .iter()
            .any(|&n| n != spatial)
        {
            return Err(format!(
                "stride, padding and dilation must have one entry for each spatial axis: {self:?}"
            ));
        }
        match &self.padding {
            Padding::Numbers(padding) => Ok(padding.clone()),
            Padding::Same if self.stride.iter().any(|&stride| stride != 1) => {
                Err(format!("same() requires stride 1, not {:?}", self.stride))
            }
            Padding::Same => Ok((0..spatial)
                .map(|i| {
                    let window = kernel
                        .shape()
                        .get(i + 2)
                        .map_or(0, |&size| dilated_size(size, self.dilation[i]));
                    let total = window.saturating_sub(1).min(LARGEST) as i64;
                    (total / 2, total - total / 2)
                })
                .collect()),
        }
    }

    /// The equivalent convolution over the dilated input, and whether the kernel's groups move from
    /// its first axis to the second.
    pub(super) fn transposed(
        &self,
        input: &Tensor,
        kernel: &Tensor,
    ) -> Result<(ConvolutionOp, bool), String> {
        if self.padding == Padding::Same {
            return Err("a transposed convolution does not support same(); use padding()".into());
        }
        let padding = self.check(kernel)?;
        let spatial = self.stride.len();
        if input.rank() != spatial + 2 || kernel.rank() != spatial + 2 {
            return Err(format!(
                "a transposed convolution over {spatial} axes takes an input [batch, channels, …] and a kernel \
                 [channels, out, …] of rank {}; they are {} and {}",
                spatial + 2,
                input.ty(),
                kernel.ty()
            ));
        }
        let channels = input.shape()[1];
        if kernel.shape()[0] != channels || channels.checked_rem(self.groups) != Some(0) {
            return Err(format!(
                "the input {} has {}; the kernel {} in {} takes {}",
                input.ty(),
                quantity(channels, "channel"),
                kernel.ty(),
                quantity(self.groups, "group"),
                kernel.shape()[0]
            ));
        }
        for (i, &(low, high)) in padding.iter().enumerate() {
            let extra = self.output_padding[i];
            let stride = self.stride[i];
            let dilation = self.dilation[i];
            if extra > 0 && extra >= stride.max(dilation) {
                return Err(format!(
                    "output_padding {extra} of spatial axis {i} must be less than the stride {stride} or the dilation \
                     {dilation}"
                ));
            }
            if stride == 0 || dilation == 0 {
                return Err("stride and dilation must be at least 1".into());
            }
            for (name, amount) in [("padding", low), ("padding", high)] {
                within_reach(name, i + 2, amount.into())?;
            }
            within_reach(
                "the dilated kernel size",
                i + 2,
                dilated_size(kernel.shape()[i + 2], dilation) as i128,
            )?;
            within_reach("output_padding", i + 2, extra as i128)?;
        }
        // This cannot overflow: the amounts were checked above.
        let padding = (0..spatial).map(|i| {
            let margin = dilated_size(kernel.shape()[i + 2], self.dilation[i]) as i64 - 1;
            (margin - padding[i].0, margin - padding[i].1 + self.output_padding[i] as i64)
        });
        let operation = ConvolutionOp {
            method: "conv_transpose",
            stride: vec![1; spatial],
            padding: padding.collect(),
            lhs_dilation: self.stride.clone(),
            rhs_dilation: self.dilation.clone(),
            feature_groups: self.groups,
            batch_groups: 1,
            lhs: Axes::standard(spatial),
            rhs: Axes::standard(spatial).swapped(),
            out: Axes::standard(spatial),
        };
        Ok((operation, self.groups > 1))
    }
}
