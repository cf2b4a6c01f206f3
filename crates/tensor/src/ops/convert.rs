//! Changing the element type: by value (`convert`) or by bits (`bitcast_convert`).

use crate::lower::Lowering;
use crate::operation::{Operation, Repeated, Vjp, one};
use crate::{DType, Tensor, TensorType};

#[derive(Debug)]
struct Convert {
    to: DType,
}

impl Operation for Convert {
    fn name(&self) -> &'static str {
        "to_dtype"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        one(TensorType::new(self.to, &inputs[0].shape))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let from = cx.input(0).dtype();
        vec![(from.is_float() && self.to.is_float()).then(|| cx.cotangent().to_dtype(from))]
    }
    fn repeated(&self) -> Repeated {
        Repeated::Always
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!("stablehlo.convert {} : {}", cx.operand(0), cx.signature())
    }
}

#[derive(Debug)]
struct BitcastConvert {
    to: DType,
}

impl Operation for BitcastConvert {
    fn name(&self) -> &'static str {
        "bitcast"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let from = inputs[0].dtype;
        if from.size_in_bytes() != self.to.size_in_bytes() || from == DType::Bool || self.to == DType::Bool {
            return Err(format!(
                "the bits of {from} are not those of {}: the sizes must agree, none may be bool",
                self.to
            ));
        }
        one(TensorType::new(self.to, &inputs[0].shape))
    }
    fn vjp(&self, _: &Vjp<'_>) -> Vec<Option<Tensor>> {
        vec![None]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!("stablehlo.bitcast_convert {} : {}", cx.operand(0), cx.signature())
    }
}

impl Tensor {
    /// The same values as `dtype`: floats round to nearest, floats become integers towards zero, numbers become
    /// `value != 0` as booleans. Nothing is recorded when the dtype is already that. The gradient flows between
    /// floating-point types.
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) -> Tensor {
        if self.dtype() == dtype && self.fault().is_none() {
            return self.clone();
        }
        if dtype == DType::Bool {
            return self.ne(0.0);
        }
        Tensor::apply(Convert { to: dtype }, &[self])
    }

    /// The same bits read as `dtype`, which must have the same size. No gradient flows.
    #[track_caller]
    pub fn bitcast(&self, dtype: DType) -> Tensor {
        Tensor::apply(BitcastConvert { to: dtype }, &[self])
    }
}
