//! [`Identity`]: a placeholder layer.

use fulmen_tensor::{AsTensor, Tensor};

use crate::{Forward, Module};

/// Returns its input. Like PyTorch's `nn.Identity`.
///
/// ```
/// use fulmen_nn::Identity;
/// use fulmen_tensor::{DType, Tensor};
/// let x = Tensor::zeros(DType::F32, [3]);
/// assert!(Identity.forward(&x).is(&x));
/// ```
#[derive(Clone, Copy, Debug, Default, Module)]
pub struct Identity;

impl Identity {
    /// The layer; it has no settings.
    pub fn new() -> Identity {
        Identity
    }

    /// The input.
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        x.as_tensor().clone()
    }
}

impl Forward for Identity {
    fn forward(&self, x: &Tensor) -> Tensor {
        x.clone()
    }
}
