//! [`Reduction`]: how losses of samples are combined.

use fulmen_tensor::Tensor;

/// How losses of samples are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// The arithmetic mean of the losses.
    #[default]
    Mean,
    /// The sum of the losses.
    Sum,
    /// All losses, without a reduction.
    None,
}

impl Reduction {
    pub(super) fn apply(self, losses: &Tensor) -> Tensor {
        match self {
            Reduction::Mean => losses.mean_all(),
            Reduction::Sum => losses.sum_all(),
            Reduction::None => losses.clone(),
        }
    }
}
