//! [`Reduction`]: how the losses of the samples become the result.

use fulmen_tensor::Tensor;

/// How the losses of the samples become the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// Their arithmetic mean.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// Each for itself.
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
