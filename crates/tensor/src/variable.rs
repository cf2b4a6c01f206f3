//! [`Variable`]: a cell that holds the current value of something that changes, a weight or a running mean.
//!
//! The value is an expression like any other. A training step is traced by putting placeholders into the variables,
//! running the model, and looking at what the cells hold afterwards.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Tensor, TensorType};

/// A cell that holds a tensor. A clone is the same cell; this is how two layers share a weight.
///
/// ```
/// use fulmen_tensor::{Tensor, Variable};
/// let mean = Variable::new(Tensor::scalar(1.0f32));
/// mean.set(mean.get() * 0.5);
/// assert_eq!(mean.get().eval()?.to_vec::<f32>()?, [0.5]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone)]
pub struct Variable(Arc<Inner>);

struct Inner {
    ty: TensorType,
    value: Mutex<Tensor>,
}

impl Variable {
    /// A new cell that holds `value`, whose type it keeps for good.
    pub fn new(value: Tensor) -> Variable {
        Variable::with_type(value.ty().clone(), value)
    }

    /// A new cell for values of type `ty`, which holds `value`: also a poisoned one, for a value yet to come.
    pub fn with_type(ty: TensorType, value: Tensor) -> Variable {
        Variable(Arc::new(Inner { ty, value: Mutex::new(value) }))
    }

    /// The dtype and shape of every value of this cell.
    pub fn ty(&self) -> &TensorType {
        &self.0.ty
    }

    /// What the cell holds now.
    pub fn get(&self) -> Tensor {
        self.0.value.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts another value into the cell. A value of another type becomes a poisoned one that says so.
    #[track_caller]
    pub fn set(&self, value: Tensor) {
        let value = if value.fault().is_none() && value.ty() != self.ty() {
            Tensor::poison("set", format!("the variable holds {}, the new value is {}", self.ty(), value.ty()))
        } else {
            value
        };
        *self.0.value.lock().unwrap_or_else(PoisonError::into_inner) = value;
    }

    /// Whether both are the very same cell.
    pub fn is(&self, other: &Variable) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Variable({:?})", self.get())
    }
}
