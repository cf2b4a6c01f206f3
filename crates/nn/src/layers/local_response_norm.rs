//! [`LocalResponseNorm`]: division by the neighbouring channels, as in AlexNet.

use fulmen_tensor::{AsTensor, Tensor};

use super::normalize::check_float;
use crate::Module;
use crate::precision::precision;
use crate::record::NN;

/// `x/(k + alpha·m)^beta`, where `m` is the mean of `x²` over `size` channels around each of `[batch, channels, …]`, zeros
/// beyond the first and the last. As PyTorch's `nn.LocalResponseNorm`.
///
/// ```
/// use fulmen_nn::LocalResponseNorm;
/// use fulmen_tensor::Tensor;
///
/// let norm = LocalResponseNorm { alpha: 1.0, beta: 1.0, ..LocalResponseNorm::new(2) };
/// let y = norm.forward(&Tensor::from_slice(&[2.0f32, 4.0], [1, 2, 1])).eval()?.to_vec::<f32>()?;
/// assert!((y[0] - 2.0 / 3.0).abs() < 1e-6 && (y[1] - 4.0 / 11.0).abs() < 1e-6);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Module)]
pub struct LocalResponseNorm {
    /// The channels that count: `size/2` before each, itself, and what is left of `size` behind.
    pub size: usize,
    /// The factor of the mean; 1e-4 by default.
    pub alpha: f64,
    /// The exponent; ¾ by default.
    pub beta: f64,
    /// What is added; 1 by default.
    pub k: f64,
}

impl LocalResponseNorm {
    /// PyTorch's defaults, over `size` channels.
    pub fn new(size: usize) -> LocalResponseNorm {
        LocalResponseNorm { size, alpha: 1e-4, beta: 0.75, k: 1.0 }
    }

    /// The divided input, in its dtype; computed in f32 or wider.
    ///
    /// Poisoned for an input of less than three axes or that is not floating-point, and for a size of 0.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record("LocalResponseNorm", || {
            let x = x.as_tensor().live()?;
            if self.size == 0 {
                return Err("the size must be at least 1".into());
            }
            if x.rank() < 3 {
                return Err(format!("the input {} is not [batch, channels, ..]", x.ty()).into());
            }
            check_float(x)?;
            let wide = x.to_dtype(precision(x.dtype()));
            let (square, channels) = (&wide * &wide, x.size(1));
            // More channels than there are add zeros only.
            let (before, behind) = ((self.size / 2).min(channels), ((self.size - 1) / 2).min(channels));
            let mut sides = vec![0; x.rank()];
            sides[1] = before as i64;
            let mut far = vec![0; x.rank()];
            far[1] = behind as i64;
            let padded = square.pad(&Tensor::zeros(wide.dtype(), []), &sides, &far, &vec![0; x.rank()]);
            let mut sum = padded.narrow(1, 0, channels);
            for start in 1..=before + behind {
                sum = sum + padded.narrow(1, start, channels);
            }
            let base = sum * (self.alpha / self.size as f64) + self.k;
            Ok((wide / base.pow(self.beta)).to_dtype(x.dtype()))
        })
    }
}
