//! [`GroupNorm`]: normalization of groups of channels, sample by sample.

use std::fmt;

use fulmen_tensor::{AsTensor, Tensor};

use super::normalize::{affine, beside_channels, check_channels, check_float, standardize};
use crate::precision::precision;
use crate::record::NN;
use crate::{Init, Module, Parameter};

/// Normalizes each group of channels of each sample of `[batch, channels, …]`: `(x − mean)/√(var + eps)·weight + bias`. As
/// PyTorch's `nn.GroupNorm`. With one group it normalizes whole samples, with as many as channels it is instance
/// normalization.
///
/// The statistics are computed in f32 whatever the input's dtype, which is also the result's; they are the same while
/// training and in evaluation.
///
/// ```
/// use fulmen_nn::{GroupNorm, Module};
/// use fulmen_tensor::Tensor;
///
/// let norm = GroupNorm::new(2, 4);
/// norm.initialize(0);
/// let y = norm.forward(&Tensor::from_slice(&[1.0f32, 3.0, 70.0, 50.0], [1, 4])).eval()?.to_vec::<f32>()?;
/// assert!(y.iter().zip([-1.0, 1.0, 1.0, -1.0]).all(|(y, expected)| (y - expected).abs() < 1e-4));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
pub struct GroupNorm {
    /// `[channels]`; ones at first.
    pub weight: Option<Parameter>,
    /// `[channels]`; zeros at first.
    pub bias: Option<Parameter>,
    groups: usize,
    channels: usize,
    eps: f64,
}

impl GroupNorm {
    /// `eps` 1e-5, with weight and bias. The number of groups must divide that of channels.
    pub fn new(num_groups: usize, num_channels: usize) -> GroupNorm {
        let layer = GroupNorm { weight: None, bias: None, groups: num_groups, channels: num_channels, eps: 1e-5 };
        layer.affine(true)
    }

    /// What is added to the variance.
    pub fn eps(mut self, eps: f64) -> GroupNorm {
        self.eps = eps;
        self
    }

    /// With or without weight and bias.
    pub fn affine(mut self, affine: bool) -> GroupNorm {
        self.weight = if affine { Some(Parameter::new([self.channels], Init::ones())) } else { None };
        self.bias = if affine { Some(Parameter::new([self.channels], Init::zeros())) } else { None };
        self
    }

    /// Refuses settings that cannot be, and an input that does not fit them.
    fn check(&self, x: &Tensor) -> Result<(), String> {
        let GroupNorm { groups, channels, .. } = *self;
        if groups == 0 || channels % groups != 0 {
            return Err(format!("{groups} groups do not divide {channels} channels"));
        }
        if x.rank() < 2 {
            return Err(format!("the input {} is not [batch, {channels}, ..]", x.ty()));
        }
        check_channels(x, channels)?;
        check_float(x)
    }

    /// The normalized input.
    ///
    /// Poisoned where the groups do not divide the channels, and for an input with other channels on axis 1 or not
    /// floating-point.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record(self, || {
            let x = x.as_tensor().live()?;
            self.check(x)?;
            let dims = x.shape();
            let grouped = [&[dims[0], self.groups, self.channels / self.groups], &dims[2..]].concat();
            let axes: Vec<isize> = (2..grouped.len() as isize).collect();
            let wide = x.to_dtype(precision(x.dtype())).reshape(grouped);
            let y = standardize(&wide, &axes, self.eps).reshape(dims);
            let beside = beside_channels(x.rank(), self.channels);
            Ok(affine(y, self.weight.as_ref(), self.bias.as_ref(), &beside).to_dtype(x.dtype()))
        })
    }
}

impl fmt::Display for GroupNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GroupNorm({} groups of {} channels)", self.groups, self.channels)
    }
}
