//! The derivative of a maximum or minimum over windows: `select_and_scatter`.

use super::pooling::Windows;
use super::pooling_positions::{gather_at_max, max_indices};
use super::reduce::Reducer;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::whole_axes::WholeAxes;
use crate::{Mesh, Tensor, TensorType};

/// Adds each element of the second operand at the position of the selected element of its window in
/// the first.
#[derive(Debug)]
pub(crate) struct SelectAndScatter {
    pub(crate) reducer: Reducer,
    pub(crate) windows: Windows,
}

impl Operation for SelectAndScatter {
    fn name(&self) -> &'static str {
        "select_and_scatter"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        one(inputs[0].clone())
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        // Small changes of the operand do not change the selected positions.
        let positions = max_indices(cx.input(0), &self.windows);
        vec![None, Some(gather_at_max(&cx.cotangent(), &positions))]
    }
    fn check(&self, _: &Mesh, inputs: &[&TensorType]) -> Result<WholeAxes, String> {
        let Windows { size, stride, padding, .. } = &self.windows;
        let axes: Vec<usize> = (0..inputs[0].shape.rank())
            .filter(|&axis| size[axis] != 1 || stride[axis] != 1 || padding[axis] != (0, 0))
            .collect();
        Ok(WholeAxes {
            operands: vec![axes.clone(); 2],
            results: vec![axes],
            ..WholeAxes::default()
        })
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let dtype = cx.result().dtype;
        let scalar = TensorType::scalar(dtype).stablehlo();
        let zero = cx.constant(dtype, &Reducer::Sum.identity(dtype));
        let wins = if self.reducer == Reducer::Max { "GE" } else { "LE" };
        format!(
            "\"stablehlo.select_and_scatter\"({}, {zero}) ({{ ^bb0(%a: {scalar}, %b: {scalar}): \
             %r = stablehlo.compare {wins}, %a, %b : ({scalar}, {scalar}) -> tensor<i1> \
             \"stablehlo.return\"(%r) : (tensor<i1>) -> () }}, {{ ^bb0(%a: {scalar}, %b: {scalar}): \
             %r = stablehlo.add %a, %b : {scalar} \"stablehlo.return\"(%r) : ({scalar}) -> () }}) {{{}}} : \
             ({}, {}, {scalar}) -> {}",
            cx.operands(),
            self.windows.attributes(),
            cx.operand_type(0).stablehlo(),
            cx.operand_type(1).stablehlo(),
            cx.result().stablehlo()
        )
    }
}
