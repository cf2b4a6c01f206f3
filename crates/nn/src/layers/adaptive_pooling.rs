//! [`AdaptiveAvgPool2d`]: means over windows that are chosen so that the result has a given size.

use std::fmt;

use fulmen_tensor::Tensor;

use crate::precision::wide;
use crate::{Forward, Module, Pair};

/// The means of a grid of windows over images `[batch, channels, height, width]` or one image, as many as asked for,
/// however large the image. As PyTorch's `nn.AdaptiveAvgPool2d`; with size 1 it is the mean of the whole image.
///
/// The windows overlap where the size does not divide the image's.
///
/// ```
/// use fulmen_nn::AdaptiveAvgPool2d;
/// use fulmen_tensor::{DType, Tensor};
/// let features = Tensor::zeros(DType::F32, [8, 512, 7, 7]);
/// assert_eq!(AdaptiveAvgPool2d::new(1).forward(&features).ty().to_string(), "f32[8, 512, 1, 1]");
/// assert_eq!(AdaptiveAvgPool2d::new((2, 3)).forward(&features).ty().to_string(), "f32[8, 512, 2, 3]");
/// ```
#[derive(Clone, Debug, Module)]
pub struct AdaptiveAvgPool2d {
    size: Pair,
}

impl AdaptiveAvgPool2d {
    /// Means in a grid of this size.
    pub fn new(size: impl Into<Pair>) -> AdaptiveAvgPool2d {
        AdaptiveAvgPool2d { size: size.into() }
    }

    /// The means.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        if x.fault().is_some() {
            return x.clone();
        }
        let ty = x.ty();
        let problem = if !self.size.both(|n| n > 0) {
            "the size must be at least 1".into()
        } else if !(3..=4).contains(&x.rank()) || x.size(-1) == 0 || x.size(-2) == 0 {
            format!("the input {ty} is not [batch, channels, height, width]")
        } else if !ty.dtype.is_float() {
            format!("the input {ty} is not floating-point; convert it with to_dtype()")
        } else {
            let wide = wide(x);
            let y = if x.size(-2).is_multiple_of(self.size.height) && x.size(-1).is_multiple_of(self.size.width) {
                self.means_of_tiles(&wide)
            } else {
                // A window is a rectangle, so its mean is the mean over columns of the means over rows.
                means(&means(&wide, -2, self.size.height), -1, self.size.width)
            };
            return y.to_dtype(ty.dtype);
        };
        Tensor::poison(&self.to_string(), problem)
    }

    /// The means of windows that do not overlap, in one sum.
    #[track_caller]
    fn means_of_tiles(&self, x: &Tensor) -> Tensor {
        let Pair { height, width } = self.size;
        let outer = &x.shape()[..x.rank() - 2];
        let tiles = [outer, &[height, x.size(-2) / height, width, x.size(-1) / width]].concat();
        x.reshape(tiles).mean(&[-3, -1], false)
    }
}

/// The means of `count` windows along one axis: the `i`-th from `⌊i·n/count⌋` to `⌈(i + 1)·n/count⌉`.
#[track_caller]
fn means(x: &Tensor, axis: isize, count: usize) -> Tensor {
    let n = x.size(axis);
    if count == n {
        return x.clone();
    }
    let mut windows = vec![];
    for i in 0..count {
        // In 128 bits the product of two sizes has room.
        let edge = |i: usize| i as u128 * n as u128;
        let start = (edge(i) / count as u128) as usize;
        let end = edge(i + 1).div_ceil(count as u128) as usize;
        windows.push(x.narrow(axis, start, end - start).mean(&[axis], true));
    }
    Tensor::concatenate(&windows.iter().collect::<Vec<_>>(), axis)
}

impl fmt::Display for AdaptiveAvgPool2d {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AdaptiveAvgPool2d({})", self.size)
    }
}

impl Forward for AdaptiveAvgPool2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        AdaptiveAvgPool2d::forward(self, x)
    }
}
