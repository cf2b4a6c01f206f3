//! [`Parameter`]: a tensor that training changes. Tied parameters share a cell; the cell of the
//! value alone is `fulmen_tensor::Variable`.

use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fulmen_tensor::{DType, Shape, Sharding, Tensor, TensorType, Variable};

use crate::axes::check_names;
use crate::composed::{Int8, LowRank};
use crate::library::NN;
use crate::{Error, Init, Result};

/// A trainable tensor: a type, an initializer, and a cell for its value.
///
/// It has no value until [`Module::initialize`](crate::Module::initialize) or a weight file gives
/// it one. A clone is the same parameter: clone it to tie weights when a model is built, or use
/// [`Parameter::tie`] later.
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
pub struct Parameter(Arc<Mutex<Slot>>);

/// The state behind a parameter and all its clones.
enum Slot {
    Cell(Arc<Cell>),
    /// The parameter to which this one was tied. Chains never form a cycle.
    Tied(Parameter),
}

struct Cell {
    init: Mutex<Init>,
    variable: Variable,
    /// The content of the variable while there is no value; a variable is never empty.
    unset: Tensor,
    requires_grad: AtomicBool,
    /// The line that asked for sparse gradients.
    sparse: Mutex<Option<&'static Location<'static>>>,
    /// The sharding, and the line that set it.
    sharding: Mutex<Option<(Sharding, &'static Location<'static>)>>,
    axes: Mutex<Option<NamedAxes>>,
    /// The scales of the variable's values, if these are int8.
    int8: Mutex<Option<Int8>>,
    /// The update that is part of the value.
    low_rank: Mutex<Option<LowRank>>,
}

/// The names of a parameter's axes.
#[derive(Clone)]
struct NamedAxes {
    names: Vec<Option<String>>,
    /// The line that gave them.
    location: &'static Location<'static>,
}

/// Held while parameters are tied, so that two threads cannot tie two parameters to each other.
static TIE_LOCK: Mutex<()> = Mutex::new(());

impl Parameter {
    /// An f32 parameter without a value.
    #[track_caller]
    pub fn new(shape: impl Into<Shape>, init: Init) -> Parameter {
        let _scope = NN.open();
        Parameter::with_type(TensorType::new(DType::F32, shape), init)
    }

    /// A parameter of any floating-point type without a value.
    #[track_caller]
    pub fn with_type(ty: TensorType, init: Init) -> Parameter {
        let _scope = NN.open();
        let unset = Tensor::poison("parameter", no_value(&ty));
        let variable = Variable::with_type(ty, unset.clone());
        let requires_grad = AtomicBool::new(true);
        let cell = Cell {
            init: Mutex::new(init),
            variable,
            unset,
            requires_grad,
            sparse: Mutex::new(None),
            sharding: Mutex::new(None),
            axes: Mutex::new(None),
            int8: Mutex::new(None),
            low_rank: Mutex::new(None),
        };
        Parameter(Arc::new(Mutex::new(Slot::Cell(Arc::new(cell)))))
    }

    /// A parameter with this initial value.
    #[track_caller]
    pub fn from_tensor(value: Tensor) -> Parameter {
        let _scope = NN.open();
        let parameter = Parameter::with_type(value.ty().clone(), Init::Value(value.clone()));
        parameter.set(value);
        parameter
    }

    /// Makes this parameter and all its clones the same as `other`: one value, one gradient, one
    /// optimizer state, one entry in a weight file. Parameters that were tied to this one are
    /// included. Value, initializer, sharding, names of axes and `requires_grad` come from `other`.
    ///
    /// # Errors
    /// The two differ in shape or dtype; neither changes.
    ///
    /// ```
    /// use fulmen_nn::{Linear, Module};
    ///
    /// let model = (Linear::new(16, 8).bias(false), Linear::new(16, 8).bias(false), Linear::new(8, 16).bias(false));
    /// model.initialize(0);
    /// model.1.weight.tie(&model.0.weight)?;
    /// let names: Vec<String> = model.parameters().into_iter().map(|(name, _)| name).collect();
    /// assert_eq!(names, ["0.weight", "2.weight"]);
    ///
    /// let error = model.2.weight.tie(&model.0.weight).unwrap_err().to_string();
    /// assert!(error.contains("cannot tie f32[16, 8] to f32[8, 16]"));
    /// # Ok::<(), fulmen_nn::Error>(())
    /// ```
    #[track_caller]
    pub fn tie(&self, other: &Parameter) -> Result<()> {
        let _one_at_a_time = lock(&TIE_LOCK);
        let (from, cell) = self.resolve();
        let (to, target) = other.resolve();
        if Arc::ptr_eq(&cell, &target) {
            return Ok(());
        }
        let ty = cell.variable.ty();
        let expected = target.variable.ty();
        if ty != expected {
            let message = format!(
                "cannot tie {ty} to {expected}: tied parameters have one shape and one dtype"
            );
            return Err(Error::usage_at(message, Location::caller()));
        }
        *lock(&from.0) = Slot::Tied(to);
        Ok(())
    }

    /// Whether both are the same parameter: clones, or tied.
    pub fn is(&self, other: &Parameter) -> bool {
        self.address() == other.address()
    }

    /// An address that identical parameters share. Different parameters have different addresses.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.cell()).addr()
    }

    /// The value, as an expression.
    ///
    /// Poisoned if there is none.
    #[track_caller]
    pub fn get(&self) -> Tensor {
        let stored = self.stored();
        if self.parts().is_empty() {
            return stored;
        }
        NN.record("parameter", || Ok(self.composed(stored.live()?.clone())))
    }

    /// The values of the parameter's own variable, as an expression: integers of an int8 weight, and
    /// without a low-rank update.
    ///
    /// Poisoned if there is none.
    #[track_caller]
    pub(crate) fn stored(&self) -> Tensor {
        NN.record("parameter", || {
            let cell = self.cell();
            if let Some(message) = cell.check_sharding().or_else(|| cell.check_axes()) {
                return Err(message.into());
            }
            if !cell.is_set() {
                // The same message as the fault, but with the caller's line.
                return Err(no_value(&cell.variable.ty()).into());
            }
            Ok(cell.variable.get())
        })
    }

    /// The scales, if the values are int8.
    pub(crate) fn int8(&self) -> Option<Int8> {
        lock(&self.cell().int8).clone()
    }

    /// Replaces the type, the value and the scales.
    pub(crate) fn set_int8(&self, ty: TensorType, value: Option<Tensor>, int8: Option<Int8>) {
        let (from, cell) = self.resolve();
        let value = value.unwrap_or_else(|| cell.unset.clone());
        let next = Cell {
            init: Mutex::new(lock(&cell.init).clone()),
            variable: Variable::with_type(ty, value),
            unset: cell.unset.clone(),
            requires_grad: AtomicBool::new(self.requires_grad()),
            sparse: Mutex::new(*lock(&cell.sparse)),
            sharding: Mutex::new(lock(&cell.sharding).clone()),
            axes: Mutex::new(lock(&cell.axes).clone()),
            int8: Mutex::new(int8),
            low_rank: Mutex::new(lock(&cell.low_rank).clone()),
        };
        *lock(&from.0) = Slot::Cell(Arc::new(next));
    }

    /// The low-rank update that is part of the value.
    #[doc(hidden)] // for `Lora`
    pub fn low_rank(&self) -> Option<LowRank> {
        lock(&self.cell().low_rank).clone()
    }

    /// Makes a low-rank update part of the value, or removes it.
    #[doc(hidden)] // for `Lora`
    pub fn set_low_rank(&self, update: Option<LowRank>) {
        *lock(&self.cell().low_rank) = update;
    }

    /// Sets a value of the parameter's type.
    #[track_caller]
    pub fn set(&self, value: Tensor) {
        let _scope = NN.open();
        self.cell().variable.set(value);
    }

    /// Whether the parameter has a value.
    pub fn is_set(&self) -> bool {
        self.cell().is_set()
    }

    /// Sets the initial value that the initializer draws with `key`.
    #[track_caller]
    pub fn initialize(&self, key: &Tensor) {
        let _scope = NN.open();
        let cell = self.cell();
        let first = match self.int8() {
            None => lock(&cell.init).tensor(key, &cell.variable.ty()),
            Some(_) => Tensor::poison(
                "initialize",
                "an int8 weight cannot be initialized: initialize the model, or load its weights, before \
                 `quantize_int8`",
            ),
        };
        cell.variable.set(first);
    }

    /// Dtype and shape.
    pub fn ty(&self) -> TensorType {
        self.cell().variable.ty()
    }

    /// The dtype of the value: that of the type, except that an int8 weight stands for numbers of the
    /// dtype that it had.
    pub fn dtype(&self) -> DType {
        self.int8().map_or(self.ty().dtype, |int8| int8.dtype)
    }

    /// The initializer.
    pub fn init(&self) -> Init {
        lock(&self.cell().init).clone()
    }

    /// Replaces the initializer. An existing value does not change.
    ///
    /// ```
    /// use fulmen_nn::{Init, Linear, Module};
    ///
    /// let model = (Linear::new(8, 8), Linear::new(8, 2));
    /// for (_, parameter) in model.parameters().iter().filter(|(_, p)| p.ty().shape.rank() > 1) {
    ///     parameter.set_init(Init::xavier_uniform(1.0));
    /// }
    /// model.initialize(0);
    /// ```
    pub fn set_init(&self, init: Init) {
        *lock(&self.cell().init) = init;
    }

    /// The cell that holds the value. [`Parameter::tie`] replaces it.
    pub fn variable(&self) -> Variable {
        self.cell().variable.clone()
    }

    /// Whether training changes this parameter; initially true.
    pub fn requires_grad(&self) -> bool {
        self.cell().requires_grad.load(Ordering::Relaxed)
    }

    /// Freezes the parameter (`false`) or lets training change it again (`true`).
    pub fn set_requires_grad(&self, requires_grad: bool) {
        self.cell().requires_grad.store(requires_grad, Ordering::Relaxed);
    }

    /// Sets whether training computes the gradient of this table only for the rows that a step looks
    /// up, and changes only those rows: see [`Embedding::sparse`](crate::Embedding::sparse).
    #[track_caller]
    pub fn set_sparse_gradient(&self, sparse: bool) {
        let location = Location::caller();
        *lock(&self.cell().sparse) = sparse.then_some(location);
    }

    /// The line that asked for sparse gradients, if there is one.
    pub fn sparse_gradient_location(&self) -> Option<&'static Location<'static>> {
        *lock(&self.cell().sparse)
    }

    /// Splits the parameter over the mesh of a run, each of its axes along the mesh axis of that
    /// name, and returns it. The Trainer prefers this over its own strategy. It has no effect on
    /// one device.
    ///
    /// The value is poisoned if the sharding has more axes than the parameter. Names and sizes are
    /// checked once there is a mesh.
    ///
    /// ```
    /// use fulmen_nn::{Linear, Module};
    /// use fulmen_tensor::Sharding;
    ///
    /// // The output features are split, as Megatron splits the first of two layers.
    /// let linear = Linear::new(512, 2048);
    /// linear.weight.with_sharding(Sharding::new([Some("model"), None]));
    /// assert_eq!(linear.weight.sharding().unwrap().to_string(), "[model]");
    ///
    /// let bias = linear.bias.as_ref().unwrap().with_sharding(Sharding::new([None, Some("model")]));
    /// assert!(bias.get().fault().unwrap().message().contains("the sharding [-, model] has more axes than f32[2048]"));
    /// ```
    #[track_caller]
    // The result is this parameter, so callers may ignore it.
    #[allow(clippy::return_self_not_must_use)]
    pub fn with_sharding(&self, sharding: Sharding) -> Parameter {
        *lock(&self.cell().sharding) = Some((sharding, Location::caller()));
        self.clone()
    }

    /// The sharding, if one was set.
    pub fn sharding(&self) -> Option<Sharding> {
        lock(&self.cell().sharding).as_ref().map(|(sharding, _)| sharding.clone())
    }

    /// The line that set the sharding.
    pub fn sharding_location(&self) -> Option<&'static Location<'static>> {
        lock(&self.cell().sharding).as_ref().map(|(_, location)| *location)
    }

    /// Names the axes of the parameter, and returns it. A run's [`AxisRules`](crate::axes::AxisRules)
    /// map the names to axes of its mesh, over which the parameter is then split. `None` is an axis
    /// that no rule splits. A sharding of [`with_sharding`](Parameter::with_sharding) comes first.
    ///
    /// The value is poisoned if there is not one name for each axis.
    ///
    /// ```
    /// use fulmen_nn::{Embedding, Module};
    ///
    /// let table = Embedding::new(50_000, 64);
    /// table.weight.with_axes(["vocab", "embed"]);
    /// assert_eq!(table.weight.axes().unwrap(), [Some("vocab".to_owned()), Some("embed".to_owned())]);
    ///
    /// table.weight.with_axes(["vocab"]);
    /// assert!(table.weight.get().fault().unwrap().message().starts_with("the names [vocab] are not one for each axis of [50000, 64]"));
    /// ```
    #[track_caller]
    // The result is this parameter, so callers may ignore it.
    #[allow(clippy::return_self_not_must_use)]
    pub fn with_axes<'a, N: Into<Option<&'a str>>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> Parameter {
        let names: Vec<Option<&str>> = names.into_iter().map(Into::into).collect();
        let names = names.into_iter().map(|name| name.map(str::to_owned)).collect();
        let location = Location::caller();
        *lock(&self.cell().axes) = Some(NamedAxes { names, location });
        self.clone()
    }

    /// The names of the axes, if they were given.
    pub fn axes(&self) -> Option<Vec<Option<String>>> {
        lock(&self.cell().axes).as_ref().map(|axes| axes.names.clone())
    }

    /// The line that named the axes.
    pub fn axes_location(&self) -> Option<&'static Location<'static>> {
        lock(&self.cell().axes).as_ref().map(|axes| axes.location)
    }

    /// Converts the type, the value and a fixed initial value to another floating-point type.
    pub(crate) fn convert(&self, dtype: DType) {
        let cell = self.cell();
        if let Some(int8) = &mut *lock(&cell.int8) {
            int8.dtype = dtype;
            return;
        }
        cell.variable.to_dtype(dtype);
        let mut init = lock(&cell.init);
        if let Init::Value(value) = &*init {
            *init = Init::Value(value.to_dtype(dtype));
        }
    }

    fn cell(&self) -> Arc<Cell> {
        self.resolve().1
    }

    /// The end of the chain of ties, starting at this parameter, and its cell.
    fn resolve(&self) -> (Parameter, Arc<Cell>) {
        let mut current = self.clone();
        loop {
            let next = match &*lock(&current.0) {
                Slot::Cell(cell) => Err(cell.clone()),
                Slot::Tied(next) => Ok(next.clone()),
            };
            match next {
                Ok(next) => current = next,
                Err(cell) => return (current, cell),
            }
        }
    }
}

impl Cell {
    /// Whether the variable holds a value rather than the fault of `unset`, which conversions
    /// preserve.
    fn is_set(&self) -> bool {
        match (self.variable.get().fault(), self.unset.fault()) {
            (Some(current), Some(unset)) => !std::ptr::eq(current.message(), unset.message()),
            _ => true,
        }
    }

    fn check_sharding(&self) -> Option<String> {
        let (sharding, location) = lock(&self.sharding).clone()?;
        let ty = self.variable.ty();
        let is_valid = sharding.axes().len() <= ty.shape.rank();
        (!is_valid).then(|| {
            format!("the sharding {sharding} has more axes than {ty}; it was given at {location}")
        })
    }

    fn check_axes(&self) -> Option<String> {
        let NamedAxes { names, location } = lock(&self.axes).clone()?;
        let error = check_names(&names, &self.variable.ty().shape).err()?;
        Some(format!("{error}; they were given at {location}"))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is a single assignment, so a panic in another thread cannot leave it half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn no_value(ty: &TensorType) -> String {
    format!(
        "the parameter {ty} has no value yet: call `initialize(seed)` on the model, or load weights"
    )
}

impl fmt::Debug for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_set() { "" } else { ", no value yet" };
        let frozen = if self.requires_grad() { "" } else { ", frozen" };
        write!(f, "Parameter({}{state}{frozen})", self.ty())
    }
}
