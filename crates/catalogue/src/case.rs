//! [`Case`]: an operation at one point, as the scripts of `reference` write it.

use fulmen_error::Result;
use fulmen_tensor::{DType, Element, Literal, Shape, Tensor, TensorType, grad};
use half::{bf16, f16};
use serde::Deserialize;
use serde_json::Value;

use crate::attrs::as_number;
use crate::{Attrs, Row};

#[derive(Deserialize)]
struct File {
    cases: Vec<Case>,
}

/// An operation at one point: its inputs, and the outputs and gradients of JAX.
#[derive(Clone, Deserialize)]
pub struct Case {
    /// The name of the operation.
    pub op: String,
    /// The name of the case.
    pub name: String,
    /// The arguments that are not tensors.
    pub attrs: Attrs,
    /// The arguments.
    pub inputs: Vec<Array>,
    /// The results of JAX.
    pub outputs: Vec<Array>,
    /// The weights of each output in the loss for the gradients. Empty for a case about values
    /// only.
    pub cotangents: Vec<Option<Array>>,
    /// One gradient for each input.
    pub gradients: Vec<Option<Array>>,
    /// The reason why the derivative at this point is not a limit of differences.
    pub kink: Option<String>,
}

/// A tensor. A complex element takes two numbers of `data`.
#[derive(Clone, Deserialize)]
pub struct Array {
    dtype: String,
    shape: Vec<usize>,
    data: Vec<Value>,
}

pub(crate) fn read(text: &str) -> Vec<Case> {
    serde_json::from_str::<File>(text).unwrap().cases
}

impl Case {
    /// The types of the inputs.
    pub fn types(&self) -> impl Iterator<Item = TensorType> {
        self.inputs.iter().map(Array::ty)
    }

    /// Whether the case has gradients.
    pub fn has_gradients(&self) -> bool {
        self.gradients.iter().any(Option::is_some)
    }

    /// Records the outputs, and the gradients that JAX has too. `cotangent` makes the weights of an
    /// output in the loss: [`Array::tensor`], or one with another dtype.
    ///
    /// # Errors
    /// The operation cannot be recorded with these inputs.
    pub fn record(
        &self,
        row: &Row,
        x: &[Tensor],
        attrs: &Attrs,
        cotangent: impl Fn(&Array) -> Tensor,
    ) -> Result<Vec<Tensor>> {
        let outputs = row.record(x, attrs);
        let weighted = outputs.iter().zip(&self.cotangents).filter_map(|(output, weights)| {
            // For complex numbers, the real part: this is the meaning of JAX's cotangents.
            Some((output * cotangent(weights.as_ref()?)).real().sum_all())
        });
        let gradients = match weighted.reduce(|a, b| a + b) {
            Some(loss) => {
                let wrt = x.iter().zip(&self.gradients).filter(|(_, gradient)| gradient.is_some());
                grad(&loss, &wrt.map(|(x, _)| x).collect::<Vec<_>>())
            }
            None => Vec::new(),
        };
        let results: Vec<Tensor> = outputs.into_iter().chain(gradients).collect();
        for result in &results {
            result.check().map_err(|error| error.context(&self.name))?;
        }
        Ok(results)
    }

    /// The names and expected values of the results of [`Case::record`].
    pub fn expected(&self) -> Vec<(String, &Array)> {
        let outputs = self.outputs.iter().enumerate();
        let outputs = outputs.map(|(i, y)| (format!("{}, output {i}", self.name), y));
        let gradients = self.gradients.iter().enumerate().filter_map(|(i, gradient)| {
            Some((format!("{}, gradient {i}", self.name), gradient.as_ref()?))
        });
        outputs.chain(gradients).collect()
    }
}

impl Array {
    /// The type.
    pub fn ty(&self) -> TensorType {
        let dtype = DType::all()
            .find(|d| d.name() == self.dtype)
            .unwrap_or_else(|| panic!("dtype {}", self.dtype));
        TensorType::new(dtype, Shape::from(self.shape.as_slice()))
    }

    /// The numbers; 64-bit integers may lose their last bits.
    pub fn values(&self) -> Vec<f64> {
        self.data.iter().map(|value| as_number(value).unwrap()).collect()
    }

    /// The value.
    pub fn literal(&self) -> Literal {
        Literal::from_bytes(self.ty(), &encode(&self.dtype, &self.data)).unwrap()
    }

    /// The value as a constant.
    pub fn tensor(&self) -> Tensor {
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
