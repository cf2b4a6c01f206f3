//! [`Variable`]: a mutable cell for a tensor, such as a weight or a running mean.
//!
//! The value is an ordinary expression. Tracing a training step puts placeholders into the
//! variables, runs the model, and takes the new values from the variables.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{DType, Tensor, TensorType};

/// A mutable cell for a tensor. A clone is the same cell, so two layers can share a weight.
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
    /// A new cell with `value`. All later values must have its type.
    pub fn new(value: Tensor) -> Variable {
        Variable::with_type(value.ty().clone(), value)
    }

    /// A new cell for values of type `ty`, with `value`. For a cell without a value yet, pass a
    /// poisoned tensor.
    pub fn with_type(ty: TensorType, value: Tensor) -> Variable {
        Variable(Arc::new(Mutex::new(State { ty, value })))
    }

    /// The dtype and shape of the cell's values.
    pub fn ty(&self) -> TensorType {
        self.state().ty.clone()
    }

    /// The current value.
    pub fn get(&self) -> Tensor {
        self.state().value.clone()
    }

    /// Replaces the value. If `value` has a different type, the cell holds a poisoned tensor that
    /// says so.
    #[track_caller]
    pub fn set(&self, value: Tensor) {
        let mut state = self.state();
        state.value = Tensor::record("set", || {
            if *value.live()?.ty() != state.ty {
                return Err(format!(
                    "the variable holds {}, but the new value is {}",
                    state.ty,
                    value.ty()
                )
                .into());
            }
            Ok(value)
        });
    }

    /// Changes the dtype of the cell's values, and converts the current value.
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
        state.value = state.value.to_dtype_on_host(dtype);
        state.ty.dtype = dtype;
    }

    /// Whether both are the same cell.
    pub fn is(&self, other: &Variable) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No panic can separate the changes of the value and its type, so a poisoned lock is still
        // consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Variable({:?})", self.get())
    }
}
