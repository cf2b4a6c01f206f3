//! Reductions: many elements along some axes become one.

use super::takes::Takes;
use crate::autocast::{result_of, wide};
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::{DType, Shape, Tensor, TensorType};

/// How two elements become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reducer {
    Sum,
    Max,
    Min,
}

impl Reducer {
    /// The StableHLO operation that combines two elements.
    pub(super) fn stablehlo(self) -> &'static str {
        match self {
            Reducer::Sum => "stablehlo.add",
            Reducer::Max => "stablehlo.maximum",
            Reducer::Min => "stablehlo.minimum",
        }
    }

    /// MLIR's spelling of the element that changes nothing.
    pub(super) fn identity(self, dtype: DType) -> String {
        let bits = 8 * dtype.size_in_bytes() as u32;
        let most = if dtype.is_unsigned() { u64::MAX >> (64 - bits) } else { u64::MAX >> (65 - bits) };
        match (self, dtype) {
            (Reducer::Sum, _) if dtype.is_float() => "0.0".into(),
            (Reducer::Sum, _) => "0".into(),
            (Reducer::Max, DType::F32) => "0xFF800000".into(),
            (Reducer::Max, DType::F64) => "0xFFF0000000000000".into(),
            (Reducer::Max, DType::Bf16) => "0xFF80".into(),
            (Reducer::Max, DType::F16) => "0xFC00".into(),
            (Reducer::Min, DType::F32) => "0x7F800000".into(),
            (Reducer::Min, DType::F64) => "0x7FF0000000000000".into(),
            (Reducer::Min, DType::Bf16) => "0x7F80".into(),
            (Reducer::Min, DType::F16) => "0x7C00".into(),
            (Reducer::Max, _) if dtype.is_unsigned() => "0".into(),
            (Reducer::Max, _) => format!("-{}", u128::from(most) + 1),
            (Reducer::Min, _) => most.to_string(),
        }
    }
}

#[derive(Debug)]
struct Reduce {
    method: &'static str,
    reducer: Reducer,
    /// Sorted and different.
    axes: Vec<usize>,
}

impl Operation for Reduce {
    fn name(&self) -> &'static str {
        self.method
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let from = inputs[0];
        Takes::Numbers.check(from.dtype)?;
        if self.reducer != Reducer::Sum && self.axes.iter().any(|&a| from.shape[a] == 0) {
            return Err(format!("{from} has no element along the axes {:?} to choose from", self.axes));
        }
        let kept = (0..from.shape.rank()).filter(|a| !self.axes.contains(a));
        one(TensorType::new(from.dtype, kept.map(|a| from.shape[a]).collect::<Vec<_>>()))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let x = cx.input(0);
        let kept: Vec<usize> = (0..x.rank()).filter(|a| !self.axes.contains(a)).collect();
        let spread = |t: &Tensor| t.broadcast_in_dim(x.shape(), &kept);
        let g = spread(&cx.cotangent());
        vec![Some(match self.reducer {
            Reducer::Sum => g,
            // Elements that tie for the extreme share its gradient.
            Reducer::Max | Reducer::Min => {
                // A NaN is chosen too, though it equals nothing.
                let chosen = x.eq(spread(cx.output())).or(x.ne(x)).to_dtype(x.dtype());
                let axes: Vec<isize> = self.axes.iter().map(|&a| a as isize).collect();
                g * &chosen / spread(&chosen.sum(&axes, false))
            }
        })]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let dtype = cx.result().dtype;
        let start = cx.constant(dtype, &self.reducer.identity(dtype));
        format!(
            "stablehlo.reduce({} init: {start}) applies {} across dimensions = {:?} : ({}, {}) -> {}",
            cx.operand(0),
            self.reducer.stablehlo(),
            self.axes,
            cx.operand_type(0).stablehlo(),
            TensorType::scalar(dtype).stablehlo(),
            cx.result().stablehlo()
        )
    }
}

impl Tensor {
    #[track_caller]
    fn reduce(&self, method: &'static str, reducer: Reducer, axes: &[isize], keepdims: bool) -> Tensor {
        if self.fault().is_some() {
            return self.clone();
        }
        let axes = match self.shape().axes(axes) {
            Ok(axes) => axes,
            Err(message) => return Tensor::poison(method, message),
        };
        if axes.is_empty() {
            return self.to_dtype(result_of(method, self.dtype()));
        }
        let mut kept = self.shape().to_vec();
        axes.iter().for_each(|&a| kept[a] = 1);
        // A 16-bit sum stops growing at 256 or 2048 ones; an extreme is one of the elements.
        let from = if reducer == Reducer::Sum { wide(self) } else { self.clone() };
        let reduced = Tensor::apply(Reduce { method, reducer, axes }, &[&from]);
        let reduced = reduced.to_dtype(result_of(method, self.dtype()));
        if keepdims { reduced.reshape(kept) } else { reduced }
    }

    fn all_axes(&self) -> Vec<isize> {
        (0..self.rank() as isize).collect()
    }

    /// The sum along `axes`, which vanish, or stay with size 1 if `keepdims`. The sum of nothing is 0. 16-bit floats are
    /// summed as f32.
    #[track_caller]
    pub fn sum(&self, axes: &[isize], keepdims: bool) -> Tensor {
        self.reduce("sum", Reducer::Sum, axes, keepdims)
    }

    /// The sum of all elements: a scalar.
    #[track_caller]
    pub fn sum_all(&self) -> Tensor {
        self.sum(&self.all_axes(), false)
    }

    /// The largest element along `axes`; NaN if one is NaN. Ties share the gradient.
    #[track_caller]
    pub fn max(&self, axes: &[isize], keepdims: bool) -> Tensor {
        self.reduce("max", Reducer::Max, axes, keepdims)
    }

    /// The smallest element along `axes`; NaN if one is NaN. Ties share the gradient.
    #[track_caller]
    pub fn min(&self, axes: &[isize], keepdims: bool) -> Tensor {
        self.reduce("min", Reducer::Min, axes, keepdims)
    }

    /// The arithmetic mean along `axes`; NaN over nothing. Takes floats; sums 16-bit ones as f32.
    #[track_caller]
    pub fn mean(&self, axes: &[isize], keepdims: bool) -> Tensor {
        if self.fault().is_some() {
            return self.clone();
        }
        if let Err(message) = Takes::Floats.check(self.dtype()) {
            return Tensor::poison("mean", message);
        }
        match self.shape().axes(axes) {
            Ok(found) => {
                let count: usize = found.iter().map(|&a| self.shape()[a]).product();
                // The sum, and even the number of elements, may be too large for 16 bits.
                let sum = wide(self).reduce("mean", Reducer::Sum, axes, keepdims);
                (sum / count as f64).to_dtype(result_of("mean", self.dtype()))
            }
            Err(message) => Tensor::poison("mean", message),
        }
    }

    /// The arithmetic mean of all elements: a scalar.
    #[track_caller]
    pub fn mean_all(&self) -> Tensor {
        self.mean(&self.all_axes(), false)
    }

    /// The variance along `axes`: the mean of `(x − mean)²`, divided by the number of elements (NumPy's `var`; PyTorch
    /// divides by one less unless told otherwise). Computes with 16-bit floats as f32.
    #[track_caller]
    pub fn var(&self, axes: &[isize], keepdims: bool) -> Tensor {
        if self.fault().is_some() {
            return self.clone();
        }
        if let Err(message) = Takes::Floats.check(self.dtype()).and_then(|()| self.shape().axes(axes).map(drop)) {
            return Tensor::poison("var", message);
        }
        let from = wide(self);
        let centred = &from - from.mean(axes, true);
        (&centred * &centred).mean(axes, keepdims).to_dtype(result_of("var", self.dtype()))
    }

    /// The index (i32) of the largest element along one axis: the first of several, the first NaN if there is one.
    #[track_caller]
    pub fn argmax(&self, axis: isize, keepdims: bool) -> Tensor {
        self.arg("argmax", axis, keepdims, Reducer::Max)
    }

    /// The index (i32) of the smallest element along one axis: the first of several, the first NaN if there is one.
    #[track_caller]
    pub fn argmin(&self, axis: isize, keepdims: bool) -> Tensor {
        self.arg("argmin", axis, keepdims, Reducer::Min)
    }

    #[track_caller]
    fn arg(&self, method: &'static str, axis: isize, keepdims: bool, reducer: Reducer) -> Tensor {
        if self.fault().is_some() {
            return self.clone();
        }
        let size = match self.shape().axis(axis) {
            Ok(a) if self.shape()[a] > 0 => self.shape()[a],
            Ok(_) => return Tensor::poison(method, format!("{} has no element along axis {axis}", self.shape())),
            Err(message) => return Tensor::poison(method, message),
        };
        let extreme = self.reduce(method, reducer, &[axis], true);
        if extreme.fault().is_some() {
            return extreme;
        }
        if size > i32::MAX as usize {
            return Tensor::poison(method, format!("axis {axis} of {} is longer than an i32 counts", self.shape()));
        }
        let index = Tensor::iota(DType::I32, self.shape(), axis);
        let wanted = self.eq(extreme).or(self.ne(self));
        wanted.select(&index, &Tensor::full(DType::I32, Shape::scalar(), size as f64)).min(&[axis], keepdims)
    }
}
