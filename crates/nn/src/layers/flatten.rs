//! [`Flatten`] and [`Unflatten`]: several axes as one, and one as several.

use fulmen_tensor::Tensor;

use crate::{Forward, Module};

/// Merges the axes from the second to the last, or those asked for, into one. As PyTorch's `nn.Flatten`.
///
/// ```
/// use fulmen_nn::Flatten;
/// use fulmen_tensor::{DType, Tensor};
/// let y = Flatten::new().forward(&Tensor::zeros(DType::F32, [32, 16, 7, 7]));
/// assert_eq!(y.ty().to_string(), "f32[32, 784]");
/// ```
#[derive(Clone, Debug, Module)]
pub struct Flatten {
    start: isize,
    end: isize,
}

impl Flatten {
    /// All axes but the first.
    pub fn new() -> Flatten {
        Flatten::axes(1, -1)
    }

    /// The axes from `start` to `end`, both included; negative ones count from the end.
    pub fn axes(start: isize, end: isize) -> Flatten {
        Flatten { start, end }
    }

    /// The merged tensor.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        x.flatten(self.start, self.end)
    }
}

impl Default for Flatten {
    fn default() -> Flatten {
        Flatten::new()
    }
}

impl Forward for Flatten {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        Flatten::forward(self, x)
    }
}

/// Splits one axis into several. As PyTorch's `nn.Unflatten`; see [`Tensor::unflatten`].
///
/// ```
/// use fulmen_nn::Unflatten;
/// use fulmen_tensor::{DType, Tensor};
/// let y = Unflatten::new(1, [16, 7, -1]).forward(&Tensor::zeros(DType::F32, [32, 784]));
/// assert_eq!(y.ty().to_string(), "f32[32, 16, 7, 7]");
/// ```
#[derive(Clone, Debug, Module)]
pub struct Unflatten {
    axis: isize,
    sizes: Vec<isize>,
}

impl Unflatten {
    /// The axis becomes axes of these sizes, of which one may be −1: it is what the others leave.
    pub fn new(axis: isize, sizes: impl Into<Vec<isize>>) -> Unflatten {
        Unflatten { axis, sizes: sizes.into() }
    }

    /// The tensor with more axes.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        x.unflatten(self.axis, &self.sizes)
    }
}

impl Forward for Unflatten {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        Unflatten::forward(self, x)
    }
}
