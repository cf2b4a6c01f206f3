//! [`Flatten`] and [`Unflatten`]: merge axes, or split one.

use fulmen_tensor::{AsTensor, Tensor};

use crate::Module;
use crate::library::NN;

/// Merges the axes from the second to the last, or the given ones, into one. Like PyTorch's
/// `nn.Flatten`.
///
/// ```
/// use fulmen_nn::Flatten;
/// use fulmen_tensor::{DType, Tensor};
/// let y = Flatten::new().forward(&Tensor::zeros(DType::F32, [32, 16, 7, 7]));
/// assert_eq!(y.ty().to_string(), "f32[32, 784]");
/// ```
#[derive(Clone, Debug, Module)]
#[must_use]
pub struct Flatten {
    start: isize,
    end: isize,
}

impl Flatten {
    /// Merges all axes except the first.
    pub fn new() -> Flatten {
        Flatten { start: 1, end: -1 }
    }

    /// The first axis to merge; 1 by default.
    pub fn start_axis(mut self, axis: isize) -> Flatten {
        self.start = axis;
        self
    }

    /// The last axis to merge; −1, the last of all, by default.
    pub fn end_axis(mut self, axis: isize) -> Flatten {
        self.end = axis;
        self
    }

    /// Merges the axes.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        let _scope = NN.open();
        let x = x.as_tensor();
        x.flatten(self.start, self.end)
    }
}

impl Default for Flatten {
    fn default() -> Flatten {
        Flatten::new()
    }
}

/// Splits one axis into several. Like PyTorch's `nn.Unflatten`; see [`Tensor::unflatten`].
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
    /// Splits the axis into axes of these sizes. One of them may be −1 and is inferred from the
    /// others.
    pub fn new(axis: isize, sizes: impl Into<Vec<isize>>) -> Unflatten {
        Unflatten { axis, sizes: sizes.into() }
    }

    /// Splits the axis.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        let _scope = NN.open();
        let x = x.as_tensor();
        x.unflatten(self.axis, &self.sizes)
    }
}
