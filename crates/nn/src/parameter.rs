//! [`Parameter`]: a tensor that training changes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fulmen_tensor::{DType, Shape, Tensor, TensorType, Variable};

use crate::{Init, Module, Visit};

/// A tensor that training changes: a type, a rule for its first value, and a cell for its value.
///
/// It has no value until [`Module::initialize`] or a weight file gives it one. A clone is the same parameter, which is
/// how weights are tied:
///
/// ```
/// use fulmen_nn::{Linear, Module};
///
/// let encoder = Linear::new(16, 8).bias(false);
/// let mut twin = Linear::new(16, 8).bias(false);
/// twin.weight = encoder.weight.clone();
/// assert_eq!((encoder, twin).num_parameters(), 8 * 16);
/// ```
#[derive(Clone)]
pub struct Parameter {
    ty: TensorType,
    init: Init,
    variable: Variable,
    /// What the variable holds while there is no value; a variable always holds something.
    unset: Tensor,
    requires_grad: Arc<AtomicBool>,
}

impl Parameter {
    /// A parameter of f32 without a value.
    #[track_caller]
    pub fn new(shape: impl Into<Shape>, init: Init) -> Parameter {
        Parameter::with_type(TensorType::new(DType::F32, shape), init)
    }

    /// A parameter of any floating-point type without a value.
    #[track_caller]
    pub fn with_type(ty: TensorType, init: Init) -> Parameter {
        let unset = no_value(&ty);
        let variable = Variable::with_type(ty.clone(), unset.clone());
        Parameter { ty, init, variable, unset, requires_grad: Arc::new(AtomicBool::new(true)) }
    }

    /// A parameter that begins with this value.
    #[track_caller]
    pub fn from_tensor(value: Tensor) -> Parameter {
        let parameter = Parameter::with_type(value.ty().clone(), Init::Value(value.clone()));
        parameter.set(value);
        parameter
    }

    /// The value, as an expression.
    ///
    /// Poisoned while there is none.
    #[track_caller]
    pub fn get(&self) -> Tensor {
        let value = self.variable.get();
        if value.is(&self.unset) {
            // The same words, at the line that asks.
            return no_value(&self.ty);
        }
        value
    }

    /// Gives the parameter a value of its type.
    #[track_caller]
    pub fn set(&self, value: Tensor) {
        self.variable.set(value);
    }

    /// Whether the parameter has a value.
    pub fn is_set(&self) -> bool {
        !self.variable.get().is(&self.unset)
    }

    /// Gives the parameter the first value that its initializer draws with `key`.
    #[track_caller]
    pub fn initialize(&self, key: &Tensor) {
        self.variable.set(self.init.tensor(key, &self.ty));
    }

    /// Dtype and shape.
    pub fn ty(&self) -> TensorType {
        self.ty.clone()
    }

    /// The rule for the first value.
    pub fn init(&self) -> &Init {
        &self.init
    }

    /// The cell that holds the value.
    pub fn variable(&self) -> &Variable {
        &self.variable
    }

    /// Whether training changes this parameter; true at first.
    pub fn requires_grad(&self) -> bool {
        self.requires_grad.load(Ordering::Relaxed)
    }

    /// Freezes the parameter (`false`) or lets training change it again (`true`).
    pub fn set_requires_grad(&self, requires_grad: bool) {
        self.requires_grad.store(requires_grad, Ordering::Relaxed);
    }
}

#[track_caller]
fn no_value(ty: &TensorType) -> Tensor {
    let message = format!("the parameter {ty} has no value yet: call `initialize(seed)` on the model, or load weights");
    Tensor::poison("parameter", message)
}

impl fmt::Debug for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_set() { "" } else { ", no value yet" };
        let frozen = if self.requires_grad() { "" } else { ", frozen" };
        write!(f, "Parameter({}{state}{frozen})", self.ty)
    }
}

impl Module for Parameter {
    fn visit(&self, visit: &mut Visit<'_>) {
        visit.parameter(self);
    }
}
