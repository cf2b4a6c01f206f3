//! [`Flatten`] and [`Unflatten`]: several axes as one, and one as several.

use fulmen_tensor::{AsTensor, Tensor};

use crate::Module;
use crate::record::NN;

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

    /// The merged tensor.
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
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        let _scope = NN.open();
        let x = x.as_tensor();
        x.unflatten(self.axis, &self.sizes)
    }
}
