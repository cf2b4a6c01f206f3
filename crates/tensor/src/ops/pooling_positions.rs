//! The position of the largest element of each window, by a `reduce_window` of numbers and their
//! positions.
//!
//! Out of scope: the maximum alone, and its derivative by `select_and_scatter`, for which TPUs have
//! an instruction (`pooling.rs`).

use super::dtype_set::DTypeSet;
use super::gather::{Dimensions, Gather};
use super::pooling::Windows;
use super::reduce::Reducer;
use super::scatter::{Combine, Scatter};
use crate::autocast::wide;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp};
use crate::whole_axes::WholeAxes;
use crate::{DType, Mesh, Tensor, TensorType};

/// Takes numbers and their positions, and returns the largest number of each window with its
/// position. Of tied numbers, the one with the smallest position is selected. NaN is larger than
/// all other numbers.
#[derive(Debug)]
struct MaxPoolWithIndices {
    method: &'static str,
    windows: Windows,
}

impl Operation for MaxPoolWithIndices {
    fn name(&self) -> &'static str {
        self.method
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        DTypeSet::Numbers.check(inputs[0].dtype)?;
        let largest = self.windows.result(inputs[0])?;
        let positions = TensorType::new(DType::I32, &largest.shape);
        Ok(vec![largest, positions])
    }
    fn check(&self, _: &Mesh, _: &[&TensorType]) -> Result<WholeAxes, String> {
        let Windows { size, stride, padding, .. } = &self.windows;
        // A window of one element has a stride too.
        let is_plain =
            |axis: usize| size[axis] == 1 && stride[axis] == 1 && padding[axis] == (0, 0);
        let axes: Vec<usize> = (0..size.len()).filter(|&axis| !is_plain(axis)).collect();
        Ok(WholeAxes {
            operands: vec![axes.clone(), axes.clone()],
            results: vec![axes.clone(), axes],
            ..WholeAxes::default()
        })
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        vec![Some(scatter_to_max(cx.input(0), &cx.outputs[1], &cx.cotangent())), None]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let dtype = cx.operand_type(0).dtype;
        let least = cx.constant(dtype, &Reducer::Max.identity(dtype));
        let nowhere = cx.constant(DType::I32, &i32::MAX.to_string());
        let scalar = TensorType::scalar(dtype).stablehlo();
        let position = TensorType::scalar(DType::I32).stablehlo();
        let body = selection(dtype, Reducer::Max);
        let types: Vec<String> =
            [cx.operand_type(0), cx.operand_type(1)].iter().map(|ty| ty.stablehlo()).collect();
        let result = cx.result();
        let positions = TensorType::new(DType::I32, &result.shape);
        format!(
            "\"stablehlo.reduce_window\"({}, {least}, {nowhere}) ({{ ^bb0(%a: {scalar}, %i: {position}, %b: {scalar}, \
             %j: {position}): {body}\"stablehlo.return\"(%r, %k) : ({scalar}, {position}) -> () }}) {{{}}} : \
             ({}, {scalar}, {position}) -> ({}, {})",
            cx.operands(),
            self.windows.attributes(),
            types.join(", "),
            result.stablehlo(),
            positions.stablehlo()
        )
    }
}

/// The StableHLO statements that select one of the elements `%a` at `%i` and `%b` at `%j`: the
/// extreme, a NaN, or the first of tied elements. The results are `%r` at `%k`.
pub(super) fn selection(dtype: DType, reducer: Reducer) -> String {
    let scalar = TensorType::scalar(dtype).stablehlo();
    let position = TensorType::scalar(DType::I32).stablehlo();
    let compare = |name: &str, direction: &str, a: &str, b: &str, ty: &str| {
        format!("%{name} = stablehlo.compare {direction}, %{a}, %{b} : ({ty}, {ty}) -> tensor<i1> ")
    };
    let join = |name: &str, operation: &str, a: &str, b: &str| {
        format!("%{name} = stablehlo.{operation} %{a}, %{b} : tensor<i1> ")
    };
    let choose = |name: &str, a: &str, b: &str, ty: &str| {
        format!("%{name} = stablehlo.select %wins, %{a}, %{b} : tensor<i1>, {ty} ")
    };
    let larger = if reducer == Reducer::Max { "GT" } else { "LT" };
    [
        compare("larger", larger, "a", "b", &scalar),
        compare("equal", "EQ", "a", "b", &scalar),
        compare("a_nan", "NE", "a", "a", &scalar),
        compare("b_nan", "NE", "b", "b", &scalar),
        compare("b_number", "EQ", "b", "b", &scalar),
        compare("before", "LT", "i", "j", &position),
        join("only_nan", "and", "a_nan", "b_number"),
        join("both_nan", "and", "a_nan", "b_nan"),
        join("tie", "or", "equal", "both_nan"),
        join("first", "and", "tie", "before"),
        join("above", "or", "larger", "only_nan"),
        join("wins", "or", "above", "first"),
        choose("r", "a", "b", &scalar),
        choose("k", "i", "j", &position),
    ]
    .concat()
}

/// The largest element of each window over `[batch, channels, spatial…]`, and its position within
/// its channel.
pub(super) fn max_pool_with_indices(
    method: &'static str,
    x: &Tensor,
    windows: &Windows,
) -> [Tensor; 2] {
    Tensor::record(method, || {
        let spatial = &x.shape()[2..];
        let count = spatial.iter().fold(1usize, |n, &size| n.saturating_mul(size));
        if i32::try_from(count).is_err() {
            return Err(
                format!("a channel of {} has more elements than an i32 can count", x.ty()).into()
            );
        }
        let axes: Vec<usize> = (2..x.rank()).collect();
        let positions =
            Tensor::arange(DType::I32, count).reshape(spatial).broadcast_along(x.shape(), &axes);
        Ok(Tensor::apply_many(
            MaxPoolWithIndices { method, windows: windows.clone() },
            &[x, &positions],
        ))
    })
}

/// The positions of the largest elements.
pub(super) fn max_indices(x: &Tensor, windows: &Windows) -> Tensor {
    let [_, positions] = max_pool_with_indices("max_pool", x, windows);
    positions
}

/// Flattens the spatial axes: `[batch, channels, elements]`.
fn flat(x: &Tensor) -> Tensor {
    x.flatten(2, -1)
}

/// Adds the element of `g` for each window at the position of the largest element of that window in
/// `x`.
pub(super) fn scatter_to_max(x: &Tensor, positions: &Tensor, g: &Tensor) -> Tensor {
    if g.shape().num_elements() == 0 {
        return x.zeros_like();
    }
    // An element may be the largest of many windows.
    let g = wide(g);
    let zeros = Tensor::zeros(g.dtype(), flat(x).shape());
    let scatter = Scatter {
        method: "max_pool",
        combine: Combine::Add,
        dimensions: Dimensions::elements(2, 3),
    };
    let sum = Tensor::apply(scatter, &[&zeros, &flat(positions), &flat(&g)]);
    sum.reshape(x.shape()).to_dtype(x.dtype())
}

/// The elements of `g` at the positions of the largest elements.
pub(super) fn gather_at_max(g: &Tensor, positions: &Tensor) -> Tensor {
    let gather = Gather { method: "max_pool", dimensions: Dimensions::elements(2, 3) };
    Tensor::apply(gather, &[&flat(g), &flat(positions)]).reshape(positions.shape())
}
