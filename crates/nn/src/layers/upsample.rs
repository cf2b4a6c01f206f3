//! [`Upsample`], [`PixelShuffle`] and [`PixelUnshuffle`]: change the resolution of images.

use std::fmt;

use fulmen_tensor::{AsTensor, Interpolation, Tensor};

use crate::Module;
use crate::library::NN;

/// Interpolates the spatial axes of `[batch, channels, …]` to given sizes or by given factors. Like
/// PyTorch's `nn.Upsample`; see [`Tensor::interpolate`].
///
/// ```
/// use fulmen_nn::Upsample;
/// use fulmen_tensor::{DType, Interpolation, Tensor};
///
/// let x = Tensor::zeros(DType::F32, [8, 3, 14, 14]);
/// assert_eq!(Upsample::scale_factor([2.0, 2.0]).forward(&x).ty().to_string(), "f32[8, 3, 28, 28]");
/// let layer = Upsample::size([20, 30]).mode(Interpolation::Linear { align_corners: false });
/// assert_eq!(layer.forward(&x).ty().to_string(), "f32[8, 3, 20, 30]");
/// ```
#[derive(Clone, Debug, Module)]
#[must_use]
pub struct Upsample {
    sizes: Option<Vec<usize>>,
    scales: Vec<f64>,
    #[module(skip)]
    mode: Interpolation,
}

impl Upsample {
    /// Resizes to these sizes, one for each spatial axis, with the nearest element.
    pub fn size(sizes: impl Into<Vec<usize>>) -> Upsample {
        Upsample { sizes: Some(sizes.into()), scales: Vec::new(), mode: Interpolation::Nearest }
    }

    /// Resizes by these factors, one for each spatial axis, with the nearest element.
    pub fn scale_factor(scales: impl Into<Vec<f64>>) -> Upsample {
        Upsample { sizes: None, scales: scales.into(), mode: Interpolation::Nearest }
    }

    /// The interpolation mode.
    pub fn mode(mut self, mode: Interpolation) -> Upsample {
        self.mode = mode;
        self
    }

    /// Interpolates the input.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record(self, || {
            let x = x.as_tensor().live()?;
            let axes = self.sizes.as_ref().map_or(self.scales.len(), Vec::len);
            if x.rank() != axes + 2 {
                let message = format!(
                    "the input {} is not [batch, channels, …] with {axes} spatial axes",
                    x.ty()
                );
                return Err(message.into());
            }
            Ok(match &self.sizes {
                Some(sizes) => x.interpolate(sizes, self.mode),
                None => x.interpolate_by(&self.scales, self.mode),
            })
        })
    }
}

impl fmt::Display for Upsample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.sizes {
            Some(sizes) => write!(f, "Upsample(to {sizes:?}, {:?})", self.mode),
            None => write!(f, "Upsample(by {:?}, {:?})", self.scales, self.mode),
        }
    }
}

/// Rearranges channels into pixels: `[…, channels·r², height, width]` becomes `[…, channels,
/// height·r, width·r]`. Like PyTorch's `nn.PixelShuffle`.
///
/// ```
/// use fulmen_nn::{PixelShuffle, PixelUnshuffle};
/// use fulmen_tensor::{DType, Tensor};
///
/// let large = PixelShuffle::new(2).forward(&Tensor::zeros(DType::F32, [8, 12, 16, 16]));
/// assert_eq!(large.ty().to_string(), "f32[8, 3, 32, 32]");
/// assert_eq!(PixelUnshuffle::new(2).forward(&large).ty().to_string(), "f32[8, 12, 16, 16]");
/// ```
#[derive(Clone, Copy, Debug, Module)]
pub struct PixelShuffle {
    factor: usize,
}

/// Rearranges pixels into channels, the inverse of [`PixelShuffle`]. Like PyTorch's
/// `nn.PixelUnshuffle`.
#[derive(Clone, Copy, Debug, Module)]
pub struct PixelUnshuffle {
    factor: usize,
}

impl PixelShuffle {
    /// The factor by which height and width grow.
    pub fn new(factor: usize) -> PixelShuffle {
        PixelShuffle { factor }
    }

    /// Rearranges the input.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record(format_args!("PixelShuffle({})", self.factor), || {
            let x = x.as_tensor().live()?;
            let r = self.factor;
            let rank = x.rank() as isize;
            let square = r.saturating_mul(r);
            if rank < 3 || x.size(-3).checked_rem(square) != Some(0) {
                let message = format!(
                    "the input {} is not […, a multiple of {square} channels, height, width]",
                    x.ty()
                );
                return Err(message.into());
            }
            let outer = &x.shape()[..x.rank() - 3];
            let height = x.size(-2);
            let width = x.size(-1);
            let channels = x.size(-3) / square;
            let split = x.reshape([outer, &[channels, r, r, height, width]].concat());
            let order = split.movedim([-4, -3], [-3, -1]);
            Ok(order.reshape(
                [outer, &[channels, height.saturating_mul(r), width.saturating_mul(r)]].concat(),
            ))
        })
    }
}

impl PixelUnshuffle {
    /// The factor by which height and width shrink.
    pub fn new(factor: usize) -> PixelUnshuffle {
        PixelUnshuffle { factor }
    }

    /// Rearranges the input.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record(format_args!("PixelUnshuffle({})", self.factor), || {
            let x = x.as_tensor().live()?;
            let r = self.factor;
            let divides = |axis: isize| x.size(axis).checked_rem(r) == Some(0);
            if x.rank() < 3 || !divides(-1) || !divides(-2) {
                let message = format!(
                    "the input {} is not […, channels, height, width] in multiples of {r}",
                    x.ty()
                );
                return Err(message.into());
            }
            let outer = &x.shape()[..x.rank() - 3];
            let height = x.size(-2) / r;
            let width = x.size(-1) / r;
            let split = x.reshape([outer, &[x.size(-3), height, r, width, r]].concat());
            let order = split.movedim([-3, -1], [-4, -3]);
            Ok(order.reshape(
                [outer, &[x.size(-3).saturating_mul(r.saturating_mul(r)), height, width]].concat(),
            ))
        })
    }
}
