//! [`RmsNorm`]: division of each sample by its root mean square.

use std::fmt;

use fulmen_tensor::{AsTensor, DType, Shape, Tensor};

use super::normalize::{affine, check_last_axes};
use crate::library::NN;
use crate::precision::precision;
use crate::{Init, Module, Parameter};

/// `x/√(mean(x²) + eps)·weight` over the last axes, without mean and bias. Like PyTorch's
/// `nn.RMSNorm`; used in Llama.
///
/// The mean square is computed in f32; the result has the input's dtype.
///
/// ```
/// use fulmen_nn::{Module, RmsNorm};
/// use fulmen_tensor::Tensor;
///
/// let norm = RmsNorm::new([2]).eps(0.0);
/// norm.initialize(0);
/// let y = norm.forward(&Tensor::from_slice(&[1.0f32, 7.0], [2])).eval()?.to_vec::<f32>()?;
/// assert!((y[0] - 0.2).abs() < 1e-6 && (y[1] - 1.4).abs() < 1e-6);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
#[must_use]
pub struct RmsNorm {
    /// The normalized shape; initially ones.
    pub weight: Option<Parameter>,
    shape: Shape,
    eps: Option<f64>,
}

impl RmsNorm {
    /// Normalizes the last axes, which have this shape, with a weight. `eps` is the machine epsilon
    /// of the dtype of the computation, 1.2e-7 for f32.
    pub fn new(normalized_shape: impl Into<Shape>) -> RmsNorm {
        let layer = RmsNorm { weight: None, shape: normalized_shape.into(), eps: None };
        layer.elementwise_affine(true)
    }

    /// The constant added to the mean square.
    pub fn eps(mut self, eps: f64) -> RmsNorm {
        self.eps = Some(eps);
        self
    }

    /// With or without a weight.
    pub fn elementwise_affine(mut self, affine: bool) -> RmsNorm {
        self.weight = if affine { Some(Parameter::new(&self.shape, Init::ones())) } else { None };
        self
    }

    /// Normalizes the input.
    ///
    /// Poisoned if the last axes are not the normalized shape, or the input is not floating-point.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record(self, || {
            let x = x.as_tensor().live()?;
            check_last_axes(x, &self.shape)?;
            let wide = x.to_dtype(precision(x.dtype()));
            let default =
                if wide.dtype() == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
            let axes: Vec<isize> = (0..self.shape.rank() as isize).map(|axis| -1 - axis).collect();
            let square = (&wide * &wide).mean_keepdim(&axes);
            let y = wide * (square + self.eps.unwrap_or(default)).rsqrt();
            Ok(affine(y, self.weight.as_ref(), None, &self.shape).to_dtype(x.dtype()))
        })
    }
}

impl fmt::Display for RmsNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RmsNorm({})", self.shape)
    }
}
