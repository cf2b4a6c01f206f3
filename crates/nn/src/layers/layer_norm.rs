//! [`LayerNorm`]: normalization of each sample.

use std::fmt;

use fulmen_tensor::{AsTensor, Shape, Tensor};

use super::normalize::{affine, check_last_axes, standardize};
use crate::library::NN;
use crate::precision::precision;
use crate::{Init, Module, Parameter};

/// Normalizes over the last axes: `(x − mean)/√(var + eps)·weight + bias`. Like PyTorch's
/// `nn.LayerNorm`.
///
/// Weight and bias have the normalized shape. The statistics are computed in f32; the result has
/// the input's dtype.
///
/// ```
/// use fulmen_nn::{LayerNorm, Module};
/// use fulmen_tensor::Tensor;
///
/// let norm = LayerNorm::new([2]);
/// norm.initialize(0);
/// let y = norm.forward(&Tensor::from_slice(&[1.0f32, 3.0, 30.0, 10.0], [2, 2])).eval()?.to_vec::<f32>()?;
/// assert!(y.iter().zip([-1.0, 1.0, 1.0, -1.0]).all(|(y, expected)| (y - expected).abs() < 1e-4));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
#[must_use]
pub struct LayerNorm {
    /// The normalized shape; initially ones.
    pub weight: Option<Parameter>,
    /// The normalized shape; initially zeros.
    pub bias: Option<Parameter>,
    shape: Shape,
    eps: f64,
}

impl LayerNorm {
    /// Normalizes the last axes, which have this shape; `eps` 1e-5, with weight and bias.
    pub fn new(normalized_shape: impl Into<Shape>) -> LayerNorm {
        let layer =
            LayerNorm { weight: None, bias: None, shape: normalized_shape.into(), eps: 1e-5 };
        layer.elementwise_affine(true)
    }

    /// The constant added to the variance.
    pub fn eps(mut self, eps: f64) -> LayerNorm {
        self.eps = eps;
        self
    }

    /// With or without weight and bias.
    pub fn elementwise_affine(mut self, affine: bool) -> LayerNorm {
        self.weight = affine.then(|| Parameter::new(&self.shape, Init::ones()));
        self.bias(affine)
    }

    /// With or without a bias.
    pub fn bias(mut self, bias: bool) -> LayerNorm {
        self.bias = bias.then(|| Parameter::new(&self.shape, Init::zeros()));
        self
    }

    /// Normalizes the input.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record(self, || {
            let x = x.as_tensor().live()?;
            check_last_axes(x, &self.shape)?;
            let wide = x.to_dtype(precision(x.dtype()));
            let axes: Vec<isize> = (0..self.shape.rank() as isize).map(|axis| -1 - axis).collect();
            let y = standardize(&wide, &axes, self.eps);
            Ok(affine(y, self.weight.as_ref(), self.bias.as_ref(), &self.shape).to_dtype(x.dtype()))
        })
    }
}

impl fmt::Display for LayerNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LayerNorm({})", self.shape)
    }
}
