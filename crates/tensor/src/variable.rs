//! [`Variable`]: a cell that holds the current value of something that changes, a weight or a running mean.
//!
//! The value is an expression like any other. A training step is traced by putting placeholders into the variables,
//! running the model, and looking at what the cells hold afterwards.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{DType, Tensor, TensorType};

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
pub struct Variable(Arc<Mutex<State>>);

struct State {
    ty: TensorType,
    value: Tensor,
}

impl Variable {
    /// A new cell that holds `value`, whose type is that of all later values.
    pub fn new(value: Tensor) -> Variable {
        Variable::with_type(value.ty().clone(), value)
    }

    /// A new cell for values of type `ty`, which holds `value`: also a poisoned one, for a value yet to come.
    pub fn with_type(ty: TensorType, value: Tensor) -> Variable {
        Variable(Arc::new(Mutex::new(State { ty, value })))
    }

    /// The dtype and shape of every value of this cell.
    pub fn ty(&self) -> TensorType {
        self.state().ty.clone()
    }

    /// What the cell holds now.
    pub fn get(&self) -> Tensor {
        self.state().value.clone()
    }

    /// Puts another value into the cell. A value of another type becomes a poisoned one that says so.
    #[track_caller]
    pub fn set(&self, value: Tensor) {
        let mut state = self.state();
        state.value = Tensor::record("set", || match *value.live()?.ty() == state.ty {
            true => Ok(value),
            false => Err(format!("the variable holds {}, the new value is {}", state.ty, value.ty()).into()),
        });
    }

    /// Makes this a cell for values of another element type, and converts the value that it holds.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor, Variable};
    /// let weight = Variable::new(Tensor::ones(DType::F32, [2]));
    /// weight.to_dtype(DType::Bf16);
    /// assert_eq!(weight.ty().to_string(), "bf16[2]");
    /// assert_eq!(weight.get().dtype(), DType::Bf16);
    /// ```
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) {
        let mut state = self.state();
        state.value = state.value.to_dtype(dtype);
        state.ty.dtype = dtype;
    }

    /// Whether both are the very same cell.
    pub fn is(&self, other: &Variable) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Value and type are changed without a call in between that could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Variable({:?})", self.get())
    }
}
