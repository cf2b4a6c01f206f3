//! [`Tensor`]: a value described by how it is computed; a cheap clone of one result of a node in an immutable graph.
//!
//! Nothing here computes a number. See [`Runtime`](crate::Runtime) for running and [`grad`](crate::grad()) for
//! derivatives.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::operation::{Operation, RecomputePolicy};
use crate::scope::{FromFault, Scope, here};
use crate::{DType, DeviceArray, Fault, Result, Shape, TensorType};

/// A value described by how it is computed.
///
/// Operations record; they do not run. [`Tensor::eval`] compiles and runs what was recorded, and a training step is
/// the same record compiled once. An operation that cannot be (shapes that do not fit, say) gives a *poisoned*
/// tensor: it remembers the first [`Fault`] with the caller's file and line, everything computed from it is poisoned
/// too, and asking for the value returns the fault as an `Err`.
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
    /// Whether it is computed from nothing but constants, without a loop, so that it can be written again anywhere.
    pub(crate) constant: bool,
}

pub(crate) enum Kind {
    Operation(Arc<dyn Operation>),
    /// An input of the function being traced.
    Placeholder {
        name: String,
    },
    /// An input of the body of a loop, of a branch or of another [`Region`](crate::region::Region).
    Parameter {
        /// The operation whose body it belongs to.
        of: &'static str,
        name: String,
    },
    /// A value on the devices.
    Array(Arc<DeviceArray>),
    /// The elements of a value in host memory that is too large for a program's text.
    Host(Arc<[u8]>),
    Poison(Fault),
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// A number that no older node has: what is recorded from now on has this one or a larger one.
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
                operation.recompute_policy() != RecomputePolicy::Never && inputs.iter().all(|t| t.node.constant)
            }
            _ => false,
        };
        Arc::new(Node { id, kind, inputs, outputs, location, constant })
    }

    /// The same operation on other inputs of the same types, recorded by the same line.
    pub(crate) fn again(&self, operation: &Arc<dyn Operation>, inputs: Vec<Tensor>) -> Arc<Node> {
        Node::new(Kind::Operation(operation.clone()), inputs, self.outputs.clone(), self.location)
    }
}

impl Tensor {
    /// A node of the open scope.
    pub(crate) fn from_parts(kind: Kind, inputs: Vec<Tensor>, outputs: Vec<TensorType>) -> Tensor {
        let line = here();
        debug_assert!(!line.file().ends_with(file!()), "recorded outside of a scope");
        Tensor { node: Node::new(kind, inputs, outputs, line), output: 0 }
    }

    /// A poisoned tensor: `operation` was asked for something impossible by the caller's line.
    ///
    /// For code above this crate that finds a mistake while it records; the message says what is wrong and what was
    /// expected.
    #[track_caller]
    pub fn poison(operation: &str, message: impl Into<String>) -> Tensor {
        Tensor::poisoned(Fault::new(operation, message, here()))
    }

    /// A tensor that is poisoned with an earlier mistake; it carries the line of the mistake.
    pub(crate) fn poisoned(fault: Fault) -> Tensor {
        let location = fault.location();
        let outputs = vec![TensorType::scalar(DType::F32)];
        Tensor { node: Node::new(Kind::Poison(fault), vec![], outputs, location), output: 0 }
    }

    /// An input of a function that is about to be traced. See [`Function`](crate::Function).
    ///
    /// Poisoned when the type has more than 2⁴⁷ bytes, which no program can address; so is every tensor.
    #[track_caller]
    pub fn placeholder(name: impl Into<String>, ty: TensorType) -> Tensor {
        Tensor::record("placeholder", || {
            if !ty.is_addressable() {
                return Err(ty.too_large().into());
            }
            Ok(Tensor::from_parts(Kind::Placeholder { name: name.into() }, vec![], vec![ty]))
        })
    }

    /// An input of a body that is about to be traced.
    pub(crate) fn parameter(of: &'static str, name: impl Into<String>, ty: TensorType) -> Tensor {
        Tensor::from_parts(Kind::Parameter { of, name: name.into() }, vec![], vec![ty])
    }

    /// A tensor whose value is already on the devices.
    #[track_caller]
    pub fn from_array(array: Arc<DeviceArray>) -> Tensor {
        let _scope = Scope::open();
        let ty = array.ty().clone();
        Tensor::from_parts(Kind::Array(array), vec![], vec![ty])
    }

    /// A tensor of elements that the program gets as an argument. The caller has checked their number.
    pub(crate) fn from_host(ty: TensorType, elements: Vec<u8>) -> Tensor {
        Tensor::from_parts(Kind::Host(elements.into()), vec![], vec![ty])
    }

    /// Dtype and shape. Those of a poisoned tensor mean nothing (f32, scalar).
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

    /// The size of one axis, which may count from the end: `size(-1)` is the last. 1 for a poisoned tensor, 0 where
    /// there is no such axis, so that model code needs no check of its own.
    pub fn size(&self, axis: isize) -> usize {
        if self.fault().is_some() {
            return 1;
        }
        self.shape().axis(axis).map_or(0, |a| self.shape()[a])
    }

    /// The first mistake that this tensor was computed from, if there is one.
    pub fn fault(&self) -> Option<&Fault> {
        match &self.node.kind {
            Kind::Poison(fault) => Some(fault),
            _ => None,
        }
    }

    /// The tensor, or its fault as an error.
    pub fn check(&self) -> Result<&Tensor> {
        match self.fault() {
            Some(fault) => Err(fault.clone().into()),
            None => Ok(self),
        }
    }

    /// The tensor, or the fault that it is poisoned with; for `?` within [`Tensor::record`]. Its type means something only
    /// if it is not poisoned.
    pub fn live(&self) -> Result<&Tensor, Fault> {
        match self.fault() {
            Some(fault) => Err(fault.clone()),
            None => Ok(self),
        }
    }

    /// The value on the devices that this tensor is, if it is one and not an expression.
    pub fn array(&self) -> Option<&Arc<DeviceArray>> {
        match &self.node.kind {
            Kind::Array(array) => Some(array),
            _ => None,
        }
    }

    /// The value, if it is in host memory and neither an expression nor a small constant.
    pub fn literal(&self) -> Option<crate::Literal> {
        match &self.node.kind {
            Kind::Host(elements) => crate::Literal::from_bytes(self.ty().clone(), elements).ok(),
            _ => None,
        }
    }

    /// The value, if it was given and is in host memory.
    pub(crate) fn given(&self) -> Option<crate::Literal> {
        match &self.node.kind {
            Kind::Operation(operation) => crate::Literal::from_bytes(self.ty().clone(), operation.given()?).ok(),
            _ => self.literal(),
        }
    }

    /// The line of the user's code that recorded this tensor.
    pub fn location(&self) -> &'static Location<'static> {
        self.node.location
    }

    /// Whether both are the very same recorded value (not: whether their values are equal).
    pub fn is(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.node, &other.node) && self.output == other.output
    }
}

/// A long chain of nodes must not be dropped by recursion: a training step's expression is deeper than a stack.
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
            Kind::Parameter { of, name } => write!(f, "Tensor({name} in the body of {of}: {})", self.ty()),
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

/// One poisoned tensor: the number of results is not known.
impl FromFault for Vec<Tensor> {
    fn from_fault(fault: Fault) -> Vec<Tensor> {
        vec![Tensor::poisoned(fault)]
    }
}

/// As [`Tensor::live`] for several: the fault of the first that is poisoned.
pub(crate) fn all_live<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<(), Fault> {
    tensors.into_iter().try_for_each(|t| t.live().map(drop))
}

impl From<&Tensor> for Tensor {
    fn from(tensor: &Tensor) -> Tensor {
        tensor.clone()
    }
}
