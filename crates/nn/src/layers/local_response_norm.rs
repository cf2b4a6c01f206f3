//! [`LocalResponseNorm`]: division by the norm of neighboring channels, as in AlexNet.

use fulmen_tensor::{AsTensor, Tensor};

use super::normalize::check_float;
use crate::Module;
use crate::library::NN;
use crate::precision::precision;

/// `x/(k + alpha·m)^beta`, where `m` is the mean of `x²` over `size` channels around each channel
/// of `[batch, channels, …]`, with zeros outside. Like PyTorch's `nn.LocalResponseNorm`.
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
    /// The window of channels: `size/2` before each channel, the channel itself, and the rest of
    /// `size` after it.
    pub size: usize,
    /// The factor of the mean; 1e-4 by default.
    pub alpha: f64,
    /// The exponent; ¾ by default.
    pub beta: f64,
    /// The additive constant; 1 by default.
    pub k: f64,
}

impl LocalResponseNorm {
    /// PyTorch's defaults, over `size` channels.
    pub fn new(size: usize) -> LocalResponseNorm {
        LocalResponseNorm { size, alpha: 1e-4, beta: 0.75, k: 1.0 }
    }

    /// Normalizes the input. Computed in f32 or wider; the result has the input's dtype.
    ///
    /// Poisoned if the input has fewer than three axes or is not floating-point, and for size 0.
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
            let square = &wide * &wide;
            let channels = x.size(1);
            // Channels outside the input only add zeros.
            let before = (self.size / 2).min(channels);
            let after = ((self.size - 1) / 2).min(channels);
            let mut sides = vec![0; x.rank()];
            sides[1] = before as i64;
            let mut ends = vec![0; x.rank()];
            ends[1] = after as i64;
            let padded =
                square.pad(&Tensor::zeros(wide.dtype(), []), &sides, &ends, &vec![0; x.rank()]);
            let mut sum = padded.narrow(1, 0, channels);
            for start in 1..=before + after {
                sum = sum + padded.narrow(1, start, channels);
            }
            let base = sum * (self.alpha / self.size as f64) + self.k;
            Ok((wide / base.pow(self.beta)).to_dtype(x.dtype()))
        })
    }
}
