//! `argmax` and `argmin`: the indices of the largest and the smallest elements. Indices have no
//! gradient.
//!
//! One reduction of elements and indices together. A comparison of the elements with their extreme
//! would be another reduction, for which XLA may compute the elements again and round them
//! differently. Then no element equals the extreme.

use super::dtype_set::DTypeSet;
use super::pooling_positions::selection;
use super::reduce::{Reducer, reductions};
use super::unary::methods;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp};
use crate::scope::Refusal;
use crate::{DType, Tensor, TensorType};

/// The extremes along an axis, and their indices, from the elements and the indices of all.
#[derive(Debug)]
struct ArgReduce {
    method: &'static str,
    reducer: Reducer,
    axis: usize,
}

impl Operation for ArgReduce {
    fn name(&self) -> &'static str {
        self.method
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        DTypeSet::Numbers.check(inputs[0].dtype)?;
        let mut to = inputs[0].shape.to_vec();
        to.remove(self.axis);
        Ok(inputs.iter().map(|ty| TensorType::new(ty.dtype, to.clone())).collect())
    }
    fn vjp(&self, _: &Vjp<'_>) -> Vec<Option<Tensor>> {
        vec![None, None]
    }
    /// Only the indices are used.
    fn active_results(&self, _: &[bool], count: usize) -> Vec<bool> {
        vec![false; count]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let dtype = cx.operand_type(0).dtype;
        let start = cx.constant(dtype, &self.reducer.identity(dtype));
        let nowhere = cx.constant(DType::I32, &i32::MAX.to_string());
        let scalar = TensorType::scalar(dtype).stablehlo();
        let index = TensorType::scalar(DType::I32).stablehlo();
        let from = [0, 1].map(|i| cx.operand_type(i).stablehlo()).join(", ");
        let to: Vec<_> = cx.results().iter().map(TensorType::stablehlo).collect();
        format!(
            "\"stablehlo.reduce\"({}, {start}, {nowhere}) ({{ ^bb0(%a: {scalar}, %i: {index}, %b: {scalar}, \
             %j: {index}): {}\"stablehlo.return\"(%r, %k) : ({scalar}, {index}) -> () }}) \
             {{dimensions = array<i64: {}>}} : ({from}, {scalar}, {index}) -> ({})",
            cx.operands(),
            selection(dtype, self.reducer),
            self.axis,
            to.join(", ")
        )
    }
}

reductions! {
    /// The index (i32) of the largest element along one axis (PyTorch's `argmax`). If several
    /// elements are the largest, the first of their indices is returned. If there is a NaN, the
    /// index of the first NaN is returned.
    ///
    /// Poisoned if the axis is empty.
    argmax, argmax_keepdim(axis: isize) -> Tensor, |x, keepdim| x.arg("argmax", axis, keepdim, Reducer::Max);

    /// The index (i32) of the smallest element along one axis (PyTorch's `argmin`). If several
    /// elements are the smallest, the first of their indices is returned. If there is a NaN, the
    /// index of the first NaN is returned.
    ///
    /// Poisoned if the axis is empty.
    argmin, argmin_keepdim(axis: isize) -> Tensor, |x, keepdim| x.arg("argmin", axis, keepdim, Reducer::Min);
}

methods! {
    /// The index (i32) of the largest of all elements, in row-major order: a scalar.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1.0f32, 5.0, 7.0, 2.0], [2, 2]);
    /// assert_eq!(x.argmax_all().eval()?.to_vec::<i32>()?, [2]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    argmax_all() -> Tensor, |x| x.flat().arg("argmax_all", 0, false, Reducer::Max);

    /// The index (i32) of the smallest of all elements, in row-major order: a scalar.
    argmin_all() -> Tensor, |x| x.flat().arg("argmin_all", 0, false, Reducer::Min);
}

impl Tensor {
    fn flat(&self) -> Tensor {
        self.reshape([self.shape().num_elements()])
    }

    fn arg(
        &self,
        method: &'static str,
        axis: isize,
        keepdim: bool,
        reducer: Reducer,
    ) -> Result<Tensor, Refusal> {
        let shape = self.shape();
        let at = shape.axis(axis)?;
        let size = shape[at];
        if size == 0 {
            return Err(format!("{shape} has no element along axis {axis}").into());
        }
        if size > i32::MAX as usize {
            return Err(
                format!("axis {axis} of {shape} has more elements than an i32 can count").into()
            );
        }
        // `true` is larger than `false`.
        let x = if self.dtype() == DType::Bool { self.to_dtype(DType::U8) } else { self.clone() };
        let index = Tensor::iota(DType::I32, shape, axis);
        let operation = ArgReduce { method, reducer, axis: at };
        let [_, index] = Tensor::apply_many(operation, &[&x, &index]);
        Ok(if keepdim { index.unsqueeze(axis) } else { index })
    }
}
