//! The files of reference values that `reference/common.py` writes.

use fulmen_tensor::{DType, Element, Literal, Shape, Tensor, TensorType};
use half::{bf16, f16};
use serde::Deserialize;
use serde_json::Value;

use crate::operations::attrs::{Attrs, as_number};

#[derive(Deserialize)]
struct File {
    cases: Vec<Case>,
}

/// An operation at one point: its inputs, and the outputs and gradients of JAX.
#[derive(Clone, Deserialize)]
pub(crate) struct Case {
    pub(crate) op: String,
    pub(crate) name: String,
    pub(crate) attrs: Attrs,
    pub(crate) inputs: Vec<Array>,
    pub(crate) outputs: Vec<Array>,
    /// The weights of each output in the loss for the gradients. Empty for a case about values
    /// only.
    pub(crate) cotangents: Vec<Option<Array>>,
    /// One gradient for each input.
    pub(crate) gradients: Vec<Option<Array>>,
    /// The reason why the derivative at this point is not a limit of differences.
    pub(crate) kink: Option<String>,
}

/// A tensor. A complex element takes two numbers of `data`.
#[derive(Clone, Deserialize)]
pub(crate) struct Array {
    dtype: String,
    shape: Vec<usize>,
    data: Vec<Value>,
}

pub(crate) fn read(text: &str) -> Vec<Case> {
    serde_json::from_str::<File>(text).unwrap().cases
}

impl Case {
    pub(crate) fn types(&self) -> impl Iterator<Item = TensorType> {
        self.inputs.iter().map(Array::ty)
    }

    /// Whether the case has gradients.
    pub(crate) fn has_gradients(&self) -> bool {
        self.gradients.iter().any(Option::is_some)
    }
}

impl Array {
    pub(crate) fn ty(&self) -> TensorType {
        let dtype = DType::all()
            .find(|d| d.name() == self.dtype)
            .unwrap_or_else(|| panic!("dtype {}", self.dtype));
        TensorType::new(dtype, Shape::from(self.shape.as_slice()))
    }

    /// The numbers; 64-bit integers may lose their last bits.
    pub(crate) fn values(&self) -> Vec<f64> {
        self.data.iter().map(|value| as_number(value).unwrap()).collect()
    }

    pub(crate) fn literal(&self) -> Literal {
        Literal::from_bytes(self.ty(), &encode(&self.dtype, &self.data)).unwrap()
    }

    pub(crate) fn tensor(&self) -> Tensor {
        self.literal().to_tensor()
    }
}

fn encode(dtype: &str, data: &[Value]) -> Vec<u8> {
    fn bytes<T: Element>(data: &[Value], element: impl Fn(f64) -> T) -> Vec<u8> {
        T::to_bytes(
            &data.iter().map(|value| element(as_number(value).unwrap())).collect::<Vec<_>>(),
        )
    }
    fn exact<T: Element + TryFrom<i128>>(data: &[Value]) -> Vec<u8> {
        let number =
            |value: &Value| value.as_i64().map(i128::from).or(value.as_u64().map(i128::from));
        let element = |value| T::try_from(number(value).unwrap()).ok().unwrap();
        T::to_bytes(&data.iter().map(element).collect::<Vec<_>>())
    }
    match dtype {
        "f32" | "c64" => bytes(data, |v| v as f32),
        "f64" | "c128" => bytes(data, |v| v),
        "bf16" => bytes(data, bf16::from_f64),
        "f16" => bytes(data, f16::from_f64),
        "bool" => bytes(data, |v| v != 0.0),
        "i8" => exact::<i8>(data),
        "i16" => exact::<i16>(data),
        "i32" => exact::<i32>(data),
        "i64" => exact::<i64>(data),
        "u8" => exact::<u8>(data),
        "u16" => exact::<u16>(data),
        "u32" => exact::<u32>(data),
        "u64" => exact::<u64>(data),
        other => panic!("dtype {other}"),
    }
}

/// The tolerance against JAX: relative to the number, and to the largest number of the tensor. Zero
/// for dtypes other than floats.
fn tolerance(dtype: &str) -> (f64, f64) {
    match dtype {
        "f32" | "c64" => (1e-5, 1e-6),
        "f64" | "c128" => (1e-11, 1e-12),
        "bf16" => (1e-2, 4e-3),
        "f16" => (2e-3, 5e-4),
        _ => (0.0, 0.0),
    }
}

/// The numbers of a value, two for a complex one.
fn decode(literal: &Literal) -> Vec<f64> {
    match literal.ty().dtype.name() {
        "c64" => f32::from_bytes(literal.bytes()).into_iter().map(f64::from).collect(),
        "c128" => f64::from_bytes(literal.bytes()),
        _ => literal.to_f64(),
    }
}

/// A description of the difference from the expected value, if there is one.
pub(crate) fn difference(actual: &Literal, expected: &Array) -> Option<String> {
    if actual.ty() != &expected.ty() {
        return Some(format!("the type is {}, JAX has {}", actual.ty(), expected.ty()));
    }
    let exact = expected.literal();
    if actual.bytes() == exact.bytes() {
        return None;
    }
    let (relative, relative_to_largest) = tolerance(&expected.dtype);
    let whole = relative == 0.0;
    let actual = decode(actual);
    let expected = decode(&exact);
    let largest = expected.iter().filter(|v| v.is_finite()).fold(0.0f64, |m, v| m.max(v.abs()));
    for (i, (a, b)) in actual.iter().zip(&expected).enumerate() {
        let same = a == b || (a.is_nan() && b.is_nan());
        let close = (a - b).abs() <= relative * b.abs() + relative_to_largest * largest;
        if !same && !close {
            return Some(format!("number {i} is {a}, JAX has {b}"));
        }
    }
    whole.then(|| "integers differ in bits that a float does not show".to_owned())
}
