//! Changing the dtype, by value (`convert`) or by bits (`bitcast_convert`).

use crate::lower::Lowering;
use crate::operation::{Operation, RecomputePolicy, Vjp, one};
use crate::tensor::Kind;
use crate::{DType, Shape, Tensor, TensorType};

#[derive(Debug)]
pub(super) struct Convert {
    to: DType,
}

impl Operation for Convert {
    fn name(&self) -> &'static str {
        "to_dtype"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let from = inputs[0].dtype;
        if from.is_complex() && !self.to.is_complex() {
            return Err(format!(
                "cannot convert {from} to {}; use real(), imag() or abs()",
                self.to
            ));
        }
        one(TensorType::new(self.to, &inputs[0].shape))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let from = cx.input(0).dtype();
        let g = cx.cotangent();
        // Rounding to integers is piecewise constant.
        vec![match (from.is_complex(), g.dtype().is_complex()) {
            (false, true) => Some(g.real().to_dtype(from)),
            _ if g.dtype().is_inexact() => Some(g.to_dtype(from)),
            _ => None,
        }]
    }
    fn recompute_policy(&self) -> RecomputePolicy {
        RecomputePolicy::Always
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!("stablehlo.convert {} : {}", cx.operand(0), cx.signature())
    }
}

#[derive(Debug)]
struct BitcastConvert {
    to: DType,
}

impl BitcastConvert {
    /// The shape of the result. If the new dtype is narrower, a last axis is added, with the parts
    /// of each element. If it is wider, the last axis is removed.
    fn shape(&self, from: &TensorType) -> Result<Shape, String> {
        let from_bytes = from.dtype.size_in_bytes();
        let to_bytes = self.to.size_in_bytes();
        let has_bits = |dtype: DType| dtype.is_float() || dtype.is_integer();
        if !has_bits(from.dtype) || !has_bits(self.to) {
            return Err(format!(
                "cannot read the bits of {} as {}: neither dtype may be bool or complex",
                from.dtype, self.to
            ));
        }
        let mut shape = from.shape.to_vec();
        if from_bytes > to_bytes {
            shape.push(from_bytes / to_bytes);
        } else if from_bytes < to_bytes && shape.pop() != Some(to_bytes / from_bytes) {
            return Err(format!(
                "{} of {} make one {}: the last axis of {from} must have that size",
                to_bytes / from_bytes,
                from.dtype,
                self.to
            ));
        }
        Ok(Shape::from(shape))
    }
}

impl Operation for BitcastConvert {
    fn name(&self) -> &'static str {
        "bitcast"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        one(TensorType::new(self.to, self.shape(inputs[0])?))
    }
    fn vjp(&self, _: &Vjp<'_>) -> Vec<Option<Tensor>> {
        // Only a bitcast between floating-point dtypes can receive a gradient.
        vec![self.to.is_float().then(|| {
            Tensor::poison("bitcast", "the bits have no derivative; detach() the operand")
        })]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!("stablehlo.bitcast_convert {} : {}", cx.operand(0), cx.signature())
    }
}

impl Tensor {
    /// Converts the values to `dtype` (PyTorch's `to`, JAX's `astype`). Floats round to nearest;
    /// floats become integers by rounding toward zero; numbers become booleans as `value != 0`;
    /// real numbers become the real part of complex ones. If the dtype is already `dtype`, nothing
    /// is recorded. The gradient flows between floating-point and complex dtypes; through integers
    /// it is 0.
    ///
    /// Poisoned for a conversion from complex to real: use [`Tensor::real`], [`Tensor::imag`] or
    /// [`Tensor::abs`].
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) -> Tensor {
        // Most operands already have the dtype, so no scope is opened for them. A poisoned tensor
        // stays poisoned, even if it reports this dtype.
        if self.dtype() == dtype {
            return self.clone();
        }
        Tensor::record("to_dtype", || {
            let from = self.live()?.dtype();
            if dtype == DType::Bool {
                return Ok(self.ne(0.0));
            }
            if let Some((parts, [sharding, gathered])) = self.gathered_from()
                && dtype.size_in_bytes() < from.size_in_bytes()
            {
                return Ok(parts.to_dtype(dtype).all_gather_to(sharding, gathered));
            }
            // Compilers convert to complex numbers only from floats of the same width.
            let real = dtype.is_complex() && !from.is_complex();
            let from = if real { self.to_dtype(dtype.real()) } else { self.clone() };
            Tensor::try_apply(Convert { to: dtype }, &[&from])
        })
    }

    /// Reinterprets the bits as `dtype` (JAX's `lax.bitcast_convert_type`). A narrower dtype adds a
    /// last axis with the parts of each element, lowest bits first. A wider dtype combines the
    /// parts on the last axis and removes that axis.
    ///
    /// No gradient flows: it is 0 through integers, and poisoned between floating-point dtypes.
    /// Poisoned for booleans and complex numbers, and if the last axis does not have the number of
    /// parts.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor};
    /// let words = Tensor::from_slice(&[0x0001_0002u32], [1]).bitcast(DType::U16);
    /// assert_eq!(words.ty().to_string(), "u16[1, 2]");
    /// assert_eq!(words.eval()?.to_vec::<u16>()?, [2, 1]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn bitcast(&self, dtype: DType) -> Tensor {
        Tensor::record("bitcast", || {
            let operation = BitcastConvert { to: dtype };
            match (self.bits_of(), operation.infer(&[self.ty()])) {
                (Some((source, true)), Ok(types)) => Ok(source.bitcast_to(&types[0])),
                (Some((source, false)), Ok(types)) => Ok(source.bitcast_to(&types[0]).detach()),
                _ => Tensor::try_apply(operation, &[self]),
            }
        })
    }

    /// The tensor whose bits these are. Also says whether all dtypes in between are floating-point,
    /// so that it has a gradient.
    ///
    /// XLA merges two bitcasts in a row. If both change the width, the merged operation has a wrong
    /// type and the compiler fails. So they are merged here.
    fn bits_of(&self) -> Option<(&Tensor, bool)> {
        let mut tensor = self;
        let mut flows = self.dtype().is_float();
        while let Kind::Operation(operation) = &tensor.node.kind {
            let source = tensor.node.inputs.first()?;
            match operation.name() {
                "bitcast" => return Some((source, flows)),
                // The compiler sees no operation here.
                "detach" => (tensor, flows) = (source, false),
                _ => return None,
            }
        }
        None
    }

    /// Reinterprets the bits as this type, which has as many bits.
    fn bitcast_to(&self, ty: &TensorType) -> Tensor {
        let parts = ty.dtype.size_in_bytes() / self.dtype().size_in_bytes();
        match parts {
            0 | 1 => self.bitcast(ty.dtype).reshape(ty.shape.to_vec()),
            _ => self.reshape([&ty.shape[..], &[parts]].concat()).bitcast(ty.dtype),
        }
    }
}
