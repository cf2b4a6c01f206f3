//! [`GroupNorm`]: normalization of groups of channels, sample by sample.

use std::fmt;

use fulmen_durable::messages::quantity;
use fulmen_tensor::{AsTensor, Tensor};

use super::normalize::{affine, channel_shape, check_channels, check_float, standardize};
use crate::library::NN;
use crate::precision::precision;
use crate::{Init, Module, Parameter};

/// Normalizes each group of channels of each sample of `[batch, channels, …]`: `(x − mean)/√(var +
/// eps)·weight + bias`. Like PyTorch's `nn.GroupNorm`. A single group normalizes whole samples; one
/// group for each channel is instance normalization.
///
/// The statistics are computed in f32; the result has the input's dtype. Training and evaluation
/// mode do not differ.
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
#[must_use]
pub struct GroupNorm {
    /// `[channels]`; initially ones.
    pub weight: Option<Parameter>,
    /// `[channels]`; initially zeros.
    pub bias: Option<Parameter>,
    groups: usize,
    channels: usize,
    eps: f64,
}

impl GroupNorm {
    /// `eps` 1e-5, with weight and bias. The number of groups must divide the number of channels.
    pub fn new(num_groups: usize, num_channels: usize) -> GroupNorm {
        let layer = GroupNorm {
            weight: None,
            bias: None,
            groups: num_groups,
            channels: num_channels,
            eps: 1e-5,
        };
        layer.affine(true)
    }

    /// The constant added to the variance.
    pub fn eps(mut self, eps: f64) -> GroupNorm {
        self.eps = eps;
        self
    }

    /// With or without weight and bias.
    pub fn affine(mut self, affine: bool) -> GroupNorm {
        self.weight =
            if affine { Some(Parameter::new([self.channels], Init::ones())) } else { None };
        self.bias =
            if affine { Some(Parameter::new([self.channels], Init::zeros())) } else { None };
        self
    }

    /// Rejects invalid settings and inputs that do not fit them.
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

    /// Normalizes the input.
    ///
    /// Poisoned if the groups do not divide the channels, and if the input has other channels on
    /// axis 1 or is not floating-point.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record(self, || {
            let x = x.as_tensor().live()?;
            self.check(x)?;
            let dims = x.shape();
            let grouped =
                [&[dims[0], self.groups, self.channels / self.groups], &dims[2..]].concat();
            let axes: Vec<isize> = (2..grouped.len() as isize).collect();
            let wide = x.to_dtype(precision(x.dtype())).reshape(grouped);
            let y = standardize(&wide, &axes, self.eps).reshape(dims);
            let shape = channel_shape(x.rank(), self.channels);
            Ok(affine(y, self.weight.as_ref(), self.bias.as_ref(), &shape).to_dtype(x.dtype()))
        })
    }
}

impl fmt::Display for GroupNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups = quantity(self.groups, "group");
        write!(f, "GroupNorm({groups} of {})", quantity(self.channels, "channel"))
    }
}
