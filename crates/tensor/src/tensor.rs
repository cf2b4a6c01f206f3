//! [`Tensor`]: an expression for a value. It is a cheap handle to one result of a node in an
//! immutable graph.
//!
//! Out of scope: computation, see [`Runtime`](crate::Runtime); derivatives, see
//! [`grad`](crate::grad()).

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::operation::{Operation, RecomputePolicy};
use crate::scope::{FromFault, Scope, current_line};
use crate::sharding::Block;
use crate::stored_value::{HostElements, StoredValue};
use crate::{DType, DeviceArray, Fault, Result, Shape, TensorType};

/// An expression for a value: it describes how the value is computed.
///
/// Operations record; they do not run. [`Tensor::eval`] compiles and runs the recorded expression.
/// A training step is recorded and compiled once. An invalid operation, such as one on shapes that
/// do not match, returns a *poisoned* tensor with a [`Fault`] that has the caller's file and line.
/// Everything computed from it is poisoned with the same fault, and [`Tensor::eval`] returns it as
/// an `Err`.
///
/// ```
/// use fulmen_tensor::Tensor;
///
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2]);
/// let y = x.matmul(&x) + 1.0;
/// assert_eq!(y.eval()?.to_vec::<f32>()?, [8.0, 11.0, 16.0, 23.0]);
///
/// let wrong = x.matmul(&Tensor::from_slice(&[1.0f32; 6], [3, 2])).relu();
/// assert!(wrong.eval().unwrap_err().to_string().contains("matmul"));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    pub(crate) node: Arc<Node>,
    pub(crate) output: usize,
}

pub(crate) struct Node {
    pub(crate) id: u64,
    pub(crate) kind: Kind,
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) outputs: Vec<TensorType>,
    pub(crate) location: &'static Location<'static>,
    /// Whether it is computed only from constants, without a loop, so that any body can compute it
    /// again.
    pub(crate) constant: bool,
}

#[derive(Clone)]
pub(crate) enum Kind {
    Operation(Arc<dyn Operation>),
    /// An input of the function being traced.
    Placeholder {
        name: String,
    },
    /// An input of a loop body, a branch or another [`Region`](crate::region::Region).
    Parameter {
        /// The operation with the body.
        operation: &'static str,
        name: String,
    },
    /// A value on the devices.
    Array(Arc<DeviceArray>),
    /// A value on the host, in memory or in a file, that is too large for a program's text.
    Host(HostElements),
    Poison(Fault),
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// The next node's id. Every later node has this id or a larger one.
pub(crate) fn next_id() -> u64 {
    NEXT_ID.load(Ordering::Relaxed)
}

impl Node {
    fn new(
        kind: Kind,
        inputs: Vec<Tensor>,
        outputs: Vec<TensorType>,
        location: &'static Location<'static>,
    ) -> Arc<Node> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let constant = match &kind {
            Kind::Operation(operation) => {
                operation.recompute_policy() != RecomputePolicy::Never
                    && inputs.iter().all(|t| t.node.constant)
            }
            _ => false,
        };
        Arc::new(Node { id, kind, inputs, outputs, location, constant })
    }

    /// The same operation on other inputs of the same types, recorded by the same line.
    pub(crate) fn with_inputs(
        &self,
        operation: &Arc<dyn Operation>,
        inputs: Vec<Tensor>,
    ) -> Arc<Node> {
        Node::new(Kind::Operation(operation.clone()), inputs, self.outputs.clone(), self.location)
    }
}

impl Tensor {
    /// The first output of a new node, recorded in the open scope.
    pub(crate) fn from_parts(kind: Kind, inputs: Vec<Tensor>, outputs: Vec<TensorType>) -> Tensor {
        let line = current_line();
        debug_assert!(!line.file().ends_with(file!()), "recorded outside of a scope");
        Tensor { node: Node::new(kind, inputs, outputs, line), output: 0 }
    }

    /// A poisoned tensor: `operation` has a mistake at the caller's line.
    ///
    /// Use this in code on top of this crate that finds a mistake while it records. The message
    /// should say what is wrong and what was expected.
    #[track_caller]
    pub fn poison(operation: &str, message: impl Into<String>) -> Tensor {
        Tensor::poisoned(Fault::new(operation, message, current_line()))
    }

    /// A tensor poisoned with an earlier mistake, at the line of that mistake.
    pub(crate) fn poisoned(fault: Fault) -> Tensor {
        let location = fault.location();
        let outputs = vec![TensorType::scalar(DType::F32)];
        Tensor { node: Node::new(Kind::Poison(fault), Vec::new(), outputs, location), output: 0 }
    }

    /// An input for a [`Function`](crate::Function).
    ///
    /// Poisoned if the type has more than 2⁴⁷ bytes, which no program can address. This limit holds
    /// for every tensor.
    #[track_caller]
    pub fn placeholder(name: impl Into<String>, ty: TensorType) -> Tensor {
        Tensor::record("placeholder", || {
            if !ty.is_addressable() {
                return Err(ty.too_large().into());
            }
            Ok(Tensor::from_parts(Kind::Placeholder { name: name.into() }, Vec::new(), vec![ty]))
        })
    }

    /// An input for the body of `operation`.
    pub(crate) fn parameter(
        operation: &'static str,
        name: impl Into<String>,
        ty: TensorType,
    ) -> Tensor {
        Tensor::from_parts(Kind::Parameter { operation, name: name.into() }, Vec::new(), vec![ty])
    }

    /// A tensor with a value that is already on the devices.
    #[track_caller]
    pub fn from_array(array: Arc<DeviceArray>) -> Tensor {
        let _scope = Scope::open();
        let ty = array.ty().clone();
        Tensor::from_parts(Kind::Array(array), Vec::new(), vec![ty])
    }

    /// A tensor of host elements, which a program takes as an argument. The caller has checked
    /// their number.
    pub(crate) fn from_host(ty: TensorType, elements: HostElements) -> Tensor {
        Tensor::from_parts(Kind::Host(elements), Vec::new(), vec![ty])
    }

    /// A tensor with a value that is outside of memory, such as one of a file. Each use reads it
    /// again: a program that takes it, or [`Tensor::eval`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use fulmen_tensor::{Block, DType, Result, StoredValue, Tensor, TensorType};
    ///
    /// struct Zeros;
    /// impl StoredValue for Zeros {
    ///     fn read(&self, block: &Block) -> Result<Vec<u8>> {
    ///         Ok(vec![0; block.size.iter().product()])
    ///     }
    ///     fn fingerprint(&self) -> Result<String> {
    ///         Ok("zeros".into())
    ///     }
    /// }
    /// let zeros = Tensor::from_stored(TensorType::new(DType::U8, [3]), Arc::new(Zeros));
    /// assert_eq!(zeros.eval()?.to_vec::<u8>()?, [0, 0, 0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn from_stored(ty: TensorType, value: Arc<dyn StoredValue>) -> Tensor {
        let _scope = Scope::open();
        Tensor::from_host(ty, HostElements::Stored(value))
    }

    /// Like [`Tensor::to_dtype`], but a value on the host is converted there, block by block, when
    /// it is read, and the result is again a value on the host. No gradient flows through it.
    #[track_caller]
    pub fn to_dtype_on_host(&self, dtype: DType) -> Tensor {
        match &self.node.kind {
            Kind::Host(elements)
                if self.dtype() != dtype && self.dtype().is_float() && dtype.is_float() =>
            {
                let _scope = Scope::open();
                let ty = TensorType::new(dtype, self.shape());
                Tensor::from_host(ty, elements.converted(self.ty(), dtype))
            }
            _ => self.to_dtype(dtype),
        }
    }

    /// The dtype and shape. Meaningless for a poisoned tensor, which has the type of an f32 scalar.
    pub fn ty(&self) -> &TensorType {
        &self.node.outputs[self.output]
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.ty().dtype
    }

    /// The sizes of the axes.
    pub fn shape(&self) -> &Shape {
        &self.ty().shape
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.shape().rank()
    }

    /// The size of an axis. Negative axes count from the end: `size(-1)` is the last. Returns 1 for
    /// a poisoned tensor, and 0 if there is no such axis, so that model code needs no checks.
    pub fn size(&self, axis: isize) -> usize {
        if self.fault().is_some() {
            return 1;
        }
        self.shape().axis(axis).map_or(0, |a| self.shape()[a])
    }

    /// The fault of a poisoned tensor: the first mistake in its expression.
    pub fn fault(&self) -> Option<&Fault> {
        match &self.node.kind {
            Kind::Poison(fault) => Some(fault),
            _ => None,
        }
    }

    /// The tensor, or its fault as an [`Error`](crate::Error).
    pub fn check(&self) -> Result<&Tensor> {
        match self.fault() {
            Some(fault) => Err(fault.clone().into()),
            None => Ok(self),
        }
    }

    /// The tensor, or its fault, for `?` within [`Tensor::record`]. Call this before using the
    /// tensor's type, which is meaningless if it is poisoned.
    pub fn live(&self) -> Result<&Tensor, Fault> {
        match self.fault() {
            Some(fault) => Err(fault.clone()),
            None => Ok(self),
        }
    }

    /// The device value, if this tensor is one rather than an expression.
    pub fn array(&self) -> Option<&Arc<DeviceArray>> {
        match &self.node.kind {
            Kind::Array(array) => Some(array),
            _ => None,
        }
    }

    /// The host value, if this tensor is one rather than an expression or a small constant. `None`
    /// also if it is in a file that cannot be read.
    pub fn literal(&self) -> Option<crate::Literal> {
        match &self.node.kind {
            Kind::Host(elements) => elements.literal(self.ty()).ok(),
            _ => None,
        }
    }

    /// Whether this tensor is a value on the host, in memory or in a file, rather than an
    /// expression or a small constant.
    pub fn is_on_host(&self) -> bool {
        matches!(self.node.kind, Kind::Host(_))
    }

    /// The elements of a block, if this tensor [is on the host](Tensor::is_on_host). Of a value in a
    /// file, only the block is read.
    ///
    /// # Errors
    /// The block is not within the value; the file cannot be read, or it was changed.
    pub fn host_block(&self, block: &Block) -> Result<Option<Cow<'_, [u8]>>> {
        match &self.node.kind {
            Kind::Host(elements) => elements.block(self.ty(), block).map(Some),
            _ => Ok(None),
        }
    }

    /// The host value, if this tensor is one, large or small.
    pub(crate) fn host_value(&self) -> Option<crate::Literal> {
        match &self.node.kind {
            Kind::Operation(operation) => {
                crate::Literal::from_bytes(self.ty().clone(), operation.host_value()?).ok()
            }
            _ => self.literal(),
        }
    }

    /// Whether this tensor is a value, on the host or on the devices, rather than an expression.
    pub(crate) fn has_value(&self) -> bool {
        match &self.node.kind {
            Kind::Operation(operation) => operation.host_value().is_some(),
            kind => matches!(kind, Kind::Array(_) | Kind::Host(_)),
        }
    }

    /// The line of the user's code that recorded this tensor.
    pub fn location(&self) -> &'static Location<'static> {
        self.node.location
    }

    /// Whether both are the same recorded value. This does not compare their elements.
    pub fn is(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.node, &other.node) && self.output == other.output
    }
}

/// Drops a long chain of nodes without recursion, which would overflow the stack: a training step's
/// expression is deep.
impl Drop for Node {
    fn drop(&mut self) {
        let mut pending = std::mem::take(&mut self.inputs);
        while let Some(tensor) = pending.pop() {
            if let Some(mut node) = Arc::into_inner(tensor.node) {
                pending.append(&mut node.inputs);
            }
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.node.kind {
            Kind::Operation(operation) => write!(f, "Tensor({}: {})", operation.name(), self.ty()),
            Kind::Placeholder { name } => write!(f, "Tensor(placeholder {name}: {})", self.ty()),
            Kind::Parameter { operation, name } => {
                write!(f, "Tensor({name} in the body of {operation}: {})", self.ty())
            }
            Kind::Array(_) => write!(f, "Tensor(on the devices: {})", self.ty()),
            Kind::Host(_) => write!(f, "Tensor(host value: {})", self.ty()),
            Kind::Poison(fault) => write!(f, "Tensor(poisoned: {fault})"),
        }
    }
}

impl FromFault for Tensor {
    fn from_fault(fault: Fault) -> Tensor {
        Tensor::poisoned(fault)
    }
}

/// One poisoned tensor, because the number of results is unknown.
impl FromFault for Vec<Tensor> {
    fn from_fault(fault: Fault) -> Vec<Tensor> {
        vec![Tensor::poisoned(fault)]
    }
}

/// Like [`Tensor::live`] for several tensors: the fault of the first poisoned one.
pub(crate) fn all_live<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<(), Fault> {
    tensors.into_iter().try_for_each(|t| t.live().map(drop))
}

impl From<&Tensor> for Tensor {
    fn from(tensor: &Tensor) -> Tensor {
        tensor.clone()
    }
}
