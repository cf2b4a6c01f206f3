//! [`Buffer`]: state that belongs to a model but is not trained, such as running statistics.

use std::fmt;

use fulmen_tensor::{Tensor, TensorType, Variable};

use crate::library::NN;

/// A tensor that is saved with the model and changed by its layers, but not by the optimizer.
///
/// A clone is the same buffer.
///
/// ```
/// use fulmen_nn::Buffer;
/// use fulmen_tensor::{DType, Tensor};
///
/// let count = Buffer::new(Tensor::zeros(DType::F32, []));
/// count.set(count.get() + 1.0);
/// assert_eq!(count.get().eval()?.to_vec::<f32>()?, [1.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone)]
pub struct Buffer {
    variable: Variable,
    initial: Tensor,
}

impl Buffer {
    /// A buffer with this value, to which [`Module::reinitialize`](crate::Module::reinitialize)
    /// resets it.
    #[track_caller]
    pub fn new(initial: Tensor) -> Buffer {
        let _scope = NN.open();
        Buffer { variable: Variable::new(initial.clone()), initial }
    }

    /// The value, as an expression.
    pub fn get(&self) -> Tensor {
        self.variable.get()
    }

    /// Replaces the value by one of the same type. No gradient flows through the new value.
    #[track_caller]
    pub fn set(&self, value: Tensor) {
        let _scope = NN.open();
        self.variable.set(value.detach());
    }

    /// Resets the buffer to its initial value.
    pub fn reset(&self) {
        self.variable.set(self.initial.to_dtype(self.variable.ty().dtype));
    }

    /// Dtype and shape.
    pub fn ty(&self) -> TensorType {
        self.variable.ty()
    }

    /// The cell that holds the value.
    pub fn variable(&self) -> &Variable {
        &self.variable
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({})", self.ty())
    }
}
