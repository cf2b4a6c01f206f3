//! Constants: values that are known while recording.

use std::fmt;
use std::sync::Arc;

use fulmen_durable::messages::quantity;
use half::{bf16, f16};
use num_complex::Complex;

use super::unary::methods;
use crate::axis_order::AxisOrder;
use crate::lower::Lowering;
use crate::operation::{Contents, Operation, Vjp, one};
use crate::scope::{Refusal, Scope};
use crate::stored_value::HostElements;
use crate::tensor::Kind;
use crate::{DType, Element, Literal, Shape, Tensor, TensorType};

/// The largest constant, in bytes, that is written into the text of a
/// [`Function`](crate::Function), where the compiler can fold it. A larger value becomes an
/// argument. `eval` turns user-supplied values of every size into arguments: see
/// [`Contents::HostValue`].
const MAX_BYTES_IN_TEXT: usize = 1024;

/// The bytes of a constant: of all elements, or of a single one that all elements equal.
pub(crate) struct Constant {
    ty: TensorType,
    bytes: Arc<[u8]>,
    /// Whether the user supplied the elements, instead of a number to fill the tensor with.
    from_user: bool,
}

impl Constant {
    /// The constant with its axes in this order, if that is the same number for all elements.
    pub(crate) fn filled_in_order(&self, order: &AxisOrder) -> Option<Constant> {
        let ty = TensorType::new(self.ty.dtype, order.reorder(&self.ty.shape));
        (self.is_splat() && !self.from_user).then(|| Constant {
            ty,
            bytes: self.bytes.clone(),
            from_user: false,
        })
    }

    fn is_splat(&self) -> bool {
        self.bytes.len() == self.ty.dtype.size_in_bytes()
    }
}

/// The value of a tensor, if no program has to compute it: a constant, or a value on the host.
pub fn known_value(x: &Tensor) -> Option<Literal> {
    let Some(element) = repeated_element(x) else { return x.host_value() };
    Literal::from_bytes(x.ty().clone(), &element.repeat(x.shape().num_elements())).ok()
}

/// The bytes of the element that a tensor repeats, if it is a constant that was made of a number.
pub fn repeated_element(x: &Tensor) -> Option<Arc<[u8]>> {
    let Kind::Operation(operation) = &x.node.kind else { return None };
    let constant = operation.downcast::<Constant>()?;
    (constant.is_splat() && !constant.from_user).then(|| constant.bytes.clone())
}

/// The elements of a constant, which are known while recording: all of them, or one if all are
/// equal.
pub(crate) fn elements(operation: &dyn Operation) -> Option<&[u8]> {
    operation.downcast::<Constant>().map(|constant| &*constant.bytes)
}

impl Operation for Constant {
    fn name(&self) -> &'static str {
        "constant"
    }
    fn infer(&self, _: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        one(self.ty.clone())
    }
    fn vjp(&self, _: &Vjp<'_>) -> Vec<Option<Tensor>> {
        Vec::new()
    }
    fn contents(&self) -> Contents<'_> {
        if self.from_user && !self.bytes.is_empty() {
            Contents::HostValue(&self.bytes)
        } else {
            Contents::Nothing
        }
    }
    fn lower(&self, _: &mut Lowering<'_>) -> String {
        let ty = self.ty.stablehlo();
        if self.ty.shape.num_elements() == 0 {
            return format!("stablehlo.constant dense<> : {ty}");
        }
        let elements: String = match (self.ty.dtype, self.is_splat()) {
            (dtype, true) => spell(dtype, &self.bytes),
            // MLIR's raw form packs booleans, so they are written out.
            (DType::Bool, false) => {
                nested(&self.ty.shape, &mut self.bytes.iter().map(|&b| (b != 0).to_string()))
            }
            (_, false) => format!("\"0x{}\"", hex(&self.bytes)),
        };
        format!("stablehlo.constant dense<{elements}> : {ty}")
    }
}

impl fmt::Debug for Constant {
    /// Prints all bytes: two constants with the same text count as the same value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.ty, hex(&self.bytes))
    }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let digit = |d: u8| char::from(DIGITS[usize::from(d)]);
    bytes.iter().flat_map(|&b| [digit(b >> 4), digit(b & 15)]).collect()
}

fn nested(dims: &[usize], elements: &mut impl Iterator<Item = String>) -> String {
    match dims {
        [] => elements.next().unwrap_or_default(),
        [n, inner @ ..] => {
            let parts: Vec<_> = (0..*n).map(|_| nested(inner, elements)).collect();
            format!("[{}]", parts.join(", "))
        }
    }
}

/// One element in MLIR's syntax: decimal where that is exact and short, else the bits in
/// hexadecimal.
fn spell(dtype: DType, bytes: &[u8]) -> String {
    fn first<T: Element>(bytes: &[u8]) -> Option<T> {
        T::from_bytes(bytes).first().copied()
    }
    let float = |value: Option<f64>, bits: String| match value {
        Some(v) if v.is_finite() && v == v.trunc() && v.abs() < 1e15 => format!("{v:.1}"),
        _ => format!("0x{bits}"),
    };
    let bits = || hex(&bytes.iter().rev().copied().collect::<Vec<_>>());
    let text = |value: Option<String>| value.unwrap_or_default();
    match dtype {
        DType::F32 => float(first::<f32>(bytes).map(f64::from), bits()),
        DType::F64 => float(first::<f64>(bytes), bits()),
        DType::Bf16 => float(first::<bf16>(bytes).map(f64::from), bits()),
        DType::F16 => float(first::<f16>(bytes).map(f64::from), bits()),
        DType::I8 => text(first::<i8>(bytes).map(|v| v.to_string())),
        DType::I16 => text(first::<i16>(bytes).map(|v| v.to_string())),
        DType::I32 => text(first::<i32>(bytes).map(|v| v.to_string())),
        DType::I64 => text(first::<i64>(bytes).map(|v| v.to_string())),
        DType::U8 => text(first::<u8>(bytes).map(|v| v.to_string())),
        DType::U16 => text(first::<u16>(bytes).map(|v| v.to_string())),
        DType::U32 => text(first::<u32>(bytes).map(|v| v.to_string())),
        DType::U64 => text(first::<u64>(bytes).map(|v| v.to_string())),
        DType::Bool => text(first::<bool>(bytes).map(|v| v.to_string())),
        DType::C64 | DType::C128 => {
            let (real, imaginary) = bytes.split_at(bytes.len() / 2);
            format!("({}, {})", spell(dtype.real(), real), spell(dtype.real(), imaginary))
        }
    }
}

/// Encodes `value` as an element of `dtype`. Floats round to nearest; integers truncate and
/// saturate.
fn encode(dtype: DType, value: f64) -> Vec<u8> {
    match dtype {
        DType::F32 => f32::to_bytes(&[value as f32]),
        DType::F64 => f64::to_bytes(&[value]),
        DType::Bf16 => bf16::to_bytes(&[bf16::from_f64(value)]),
        DType::F16 => f16::to_bytes(&[f16::from_f64(value)]),
        DType::I8 => i8::to_bytes(&[value as i8]),
        DType::I16 => i16::to_bytes(&[value as i16]),
        DType::I32 => i32::to_bytes(&[value as i32]),
        DType::I64 => i64::to_bytes(&[value as i64]),
        DType::U8 => u8::to_bytes(&[value as u8]),
        DType::U16 => u16::to_bytes(&[value as u16]),
        DType::U32 => u32::to_bytes(&[value as u32]),
        DType::U64 => u64::to_bytes(&[value as u64]),
        DType::Bool => bool::to_bytes(&[value != 0.0]),
        DType::C64 => Complex::<f32>::to_bytes(&[Complex::from(value as f32)]),
        DType::C128 => Complex::<f64>::to_bytes(&[Complex::from(value)]),
    }
}

/// Whether the integer or boolean `dtype` holds `value` exactly. Floating-point and complex dtypes
/// round, so they hold every value.
pub(crate) fn holds(dtype: DType, value: f64) -> bool {
    if dtype.is_inexact() {
        return true;
    }
    let bits = 8 * dtype.size_in_bytes() as i32;
    let (least, above) = match dtype {
        DType::Bool => (0.0, 2.0),
        _ if dtype.is_unsigned() => (0.0, 2f64.powi(bits)),
        _ => (-(2f64.powi(bits - 1)), 2f64.powi(bits - 1)),
    };
    value == value.trunc() && (least..above).contains(&value)
}

methods! {
    /// Zeros of this tensor's dtype and shape.
    zeros_like() -> Tensor, |x| Tensor::try_full(x.dtype(), x.shape(), 0.0);

    /// Ones of this tensor's dtype and shape.
    ones_like() -> Tensor, |x| Tensor::try_full(x.dtype(), x.shape(), 1.0);
}

impl Literal {
    /// This value as a constant tensor.
    #[track_caller]
    pub fn to_tensor(&self) -> Tensor {
        let _scope = Scope::open();
        Tensor::from_elements(self.ty().clone(), self.bytes().to_vec())
    }
}

impl Tensor {
    /// A constant of the given elements, in row-major order.
    ///
    /// Poisoned if the number of elements does not fit the shape.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1i32, 2, 3, 4, 5, 6], [2, 3]);
    /// assert_eq!(x.ty().to_string(), "i32[2, 3]");
    /// ```
    #[track_caller]
    pub fn from_slice<T: Element>(elements: &[T], shape: impl Into<Shape>) -> Tensor {
        Tensor::record("from_slice", || {
            let ty = TensorType::new(T::DTYPE, shape);
            if elements.len() != ty.shape.num_elements() {
                return Err(format!(
                    "got {} for the shape {}, which has {}",
                    quantity(elements.len(), "element"),
                    ty.shape,
                    ty.shape.num_elements()
                )
                .into());
            }
            Ok(Tensor::from_elements(ty, T::to_bytes(elements)))
        })
    }

    /// The elements of a constant that stores all of them and has the dtype of `T`.
    pub(crate) fn constant_elements<T: Element>(&self) -> Option<Vec<T>> {
        match &self.node.kind {
            Kind::Operation(operation) if self.dtype() == T::DTYPE => {
                let elements = T::from_bytes(elements(operation.as_ref())?);
                (elements.len() == self.shape().num_elements()).then_some(elements)
            }
            _ => None,
        }
    }

    /// A constant of these elements. The caller has checked their number.
    pub(crate) fn from_elements(ty: TensorType, elements: Vec<u8>) -> Tensor {
        if elements.len() > MAX_BYTES_IN_TEXT {
            return Tensor::from_host(ty, HostElements::InMemory(elements.into()));
        }
        Tensor::apply(Constant { ty, bytes: elements.into(), from_user: true }, &[])
    }

    /// A scalar constant.
    #[track_caller]
    pub fn scalar<T: Element>(value: T) -> Tensor {
        Tensor::from_slice(&[value], [])
    }

    /// A constant whose elements all equal `value`. It is rounded to the nearest float of `dtype`,
    /// or truncated to an integer (PyTorch's and NumPy's `full`).
    #[track_caller]
    pub fn full(dtype: DType, shape: impl Into<Shape>, value: f64) -> Tensor {
        Tensor::record("full", || Tensor::try_full(dtype, shape, value))
    }

    fn try_full(dtype: DType, shape: impl Into<Shape>, value: f64) -> Result<Tensor, Refusal> {
        let ty = TensorType::new(dtype, shape);
        if !ty.is_addressable() {
            return Err(ty.too_large().into());
        }
        let bytes = encode(dtype, value).into();
        Tensor::try_apply(Constant { ty, bytes, from_user: false }, &[])
    }

    /// A constant of zeros, or of `false`.
    #[track_caller]
    pub fn zeros(dtype: DType, shape: impl Into<Shape>) -> Tensor {
        Tensor::record("zeros", || Tensor::try_full(dtype, shape, 0.0))
    }

    /// A constant of ones, or of `true`.
    #[track_caller]
    pub fn ones(dtype: DType, shape: impl Into<Shape>) -> Tensor {
        Tensor::record("ones", || Tensor::try_full(dtype, shape, 1.0))
    }
}
