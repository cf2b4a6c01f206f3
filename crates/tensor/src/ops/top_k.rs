//! The largest or smallest elements along an axis, in order: `chlo.top_k` for few elements, a sort
//! for many. Each moves elements and indices together, as in `sort.rs`.

use super::exponential::function_name;
use super::reduce::Reducer;
use super::sort::nan;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp};
use crate::{DType, Tensor, TensorType};

/// For a larger `k` a sort is used. The size of its derivative does not depend on `k`.
const MAX_K: usize = 64;

/// The `k` largest elements along the last axis, and their indices.
#[derive(Debug)]
pub(crate) struct TopK {
    pub(crate) k: usize,
}

impl Operation for TopK {
    fn name(&self) -> &'static str {
        "topk"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let mut to = inputs[0].shape.to_vec();
        if let Some(last) = to.last_mut() {
            *last = self.k;
        }
        Ok(vec![TensorType::new(inputs[0].dtype, to.clone()), TensorType::new(DType::I32, to)])
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        // A one-hot vector for each of the `k` elements times its cotangent. This needs no scatter,
        // and XLA does not materialize the vectors.
        let from = cx.input(0).shape();
        let indices = &cx.outputs[1];
        let mut to = indices.shape().to_vec();
        to.push(from[from.rank() - 1]);
        let position = Tensor::iota(DType::I32, to.clone(), -1);
        let one_hot = indices.unsqueeze(-1).broadcast_to(to.clone()).eq(position);
        let g = cx.cotangent();
        let spread =
            one_hot.select(&g.unsqueeze(-1).broadcast_to(to), &Tensor::zeros(g.dtype(), []));
        vec![Some(spread.reduce("topk", Reducer::Sum, &[-2], false))]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let from = cx.operand_type(0).clone();
        let values = cx.result().stablehlo();
        let indices = TensorType::new(DType::I32, &cx.result().shape).stablehlo();
        let t = from.stablehlo();
        let k = self.k;
        let Some(nan) = nan(from.dtype) else {
            return format!(
                "chlo.top_k({}, k = {k}) : {t} -> ({values}, {indices})",
                cx.operand(0)
            );
        };
        // `chlo.top_k` uses the total order, where −0 comes before 0 and a negative NaN before all
        // numbers. So every zero becomes 0, and every NaN the same NaN.
        let name = function_name(&format!("top_{k}"), &from);
        let name = cx.helper(&name, |name| {
            let mask = TensorType::new(DType::Bool, &from.shape).stablehlo();
            format!(
                "  func.func private @{name}(%x: {t}) -> ({values}, {indices}) {{\n    \
                 %zero = stablehlo.constant dense<0.0> : {t}\n    \
                 %nan = stablehlo.constant dense<{nan}> : {t}\n    \
                 %is_zero = stablehlo.compare EQ, %x, %zero : ({t}, {t}) -> {mask}\n    \
                 %is_nan = stablehlo.compare NE, %x, %x : ({t}, {t}) -> {mask}\n    \
                 %one_zero = stablehlo.select %is_zero, %zero, %x : {mask}, {t}\n    \
                 %one_nan = stablehlo.select %is_nan, %nan, %one_zero : {mask}, {t}\n    \
                 %values, %indices = chlo.top_k(%one_nan, k = {k}) : {t} -> ({values}, {indices})\n    \
                 return %values, %indices : {values}, {indices}\n  }}\n"
            )
        });
        format!("func.call @{name}({}) : ({t}) -> ({values}, {indices})", cx.operand(0))
    }
}

impl Tensor {
    /// The `k` largest elements along the last axis and their indices (i32), in descending order:
    /// `(values, indices)` (PyTorch's `topk` with its defaults). See [`Tensor::topk_along`] for
    /// another axis, or for the smallest elements.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[0.1f32, 0.6, 0.3, 0.6], [4]);
    /// let (values, indices) = x.topk(2);
    /// assert_eq!(values.eval()?.to_vec::<f32>()?, [0.6, 0.6]);
    /// assert_eq!(indices.eval()?.to_vec::<i32>()?, [1, 3]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn topk(&self, k: usize) -> (Tensor, Tensor) {
        self.topk_along(k, -1, true)
    }

    /// The `k` largest elements along `axis` and their indices (i32), in descending order:
    /// `(values, indices)` (PyTorch's `topk(k, dim, largest)`). Without `largest`, the smallest elements in
    /// ascending order. Equal elements, also −0 and 0, are ordered by index. NaN counts as larger
    /// than all other elements. A −0 among the values may become 0. Gradients flow to the original
    /// elements.
    ///
    /// Poisoned if the axis has fewer than `k` elements, or if there is no such axis.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[0.1f32, 0.6, 0.3, 0.6], [4]);
    /// let (values, indices) = x.topk_along(2, 0, false);
    /// assert_eq!(values.eval()?.to_vec::<f32>()?, [0.1, 0.3]);
    /// assert_eq!(indices.eval()?.to_vec::<i32>()?, [0, 2]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn topk_along(&self, k: usize, axis: isize, largest: bool) -> (Tensor, Tensor) {
        Tensor::record("topk", || {
            let shape = self.live()?.shape();
            let size = shape[shape.axis(axis)?];
            if size > i32::MAX as usize {
                return Err("the axis has more elements than an i32 can count".into());
            }
            if k > size {
                return Err(format!("axis {axis} of {shape} has fewer than {k} elements").into());
            }
            let simple = self.dtype().is_float() || self.dtype().is_integer();
            if !largest || k > MAX_K || k == 0 || !simple || shape.num_elements() == 0 {
                let (values, indices) = self.sort(axis, largest);
                return Ok((values.narrow(axis, 0, k), indices.narrow(axis, 0, k)));
            }
            let [values, indices] = Tensor::apply_many(TopK { k }, &[&self.transpose(axis, -1)]);
            Ok((values.transpose(axis, -1), indices.transpose(axis, -1)))
        })
    }
}
