//! Decides in which order a program has the axes of each value.
//!
//! Under a rule, a transpose is not an instruction. Its value is the operand's, with another order of
//! axes. Later operations use this order if they can; for the others, a transpose is added.

use std::panic::Location;
use std::sync::Arc;

use super::Orders;
use crate::axis_order::{AxisOrder, in_order};
use crate::graph::{Graph, Instruction, Value};
use crate::operation::Operation;
use crate::ops::broadcast::BroadcastInDim;
use crate::ops::concatenate::Concatenate;
use crate::ops::constant::Constant;
use crate::ops::dot::{DotGeneral, free_axes};
use crate::ops::elementwise::is_elementwise;
use crate::ops::pad::Pad;
use crate::ops::pooling::ReduceWindow;
use crate::ops::reduce::Reduce;
use crate::ops::slice::Slice;
use crate::ops::transpose::Transpose;
use crate::tensor::Kind;
use crate::{Tensor, TensorType};

/// Which operations take operands in another order than the tensor's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// Operations all of whose operands have one order. XLA's CPU compiler computes convolutions with
    /// the features last, so values that pass from one convolution to the next need no transpose.
    CommonOrder,
    /// Products of stacks of matrices, which name their operands' axes. On a TPU, the heads of an
    /// attention then need no transpose.
    ProductAxes,
}

/// The graph with its axes ordered by a rule. Without a rule, only leaves and results have orders.
pub(super) fn run(
    graph: &Graph,
    rule: Option<Rule>,
    results: &[Tensor],
    orders: &Orders<'_>,
) -> Graph {
    let mut orderer = Orderer { from: graph, rule, to: graph.emptied(), placed: Vec::new() };
    for instruction in &graph.instructions {
        let outputs = orderer.add(instruction, orders);
        orderer.placed.push(outputs);
    }
    for ((&v, t), order) in graph.results.iter().zip(results).zip(&orders.of_results) {
        let value = orderer.placed(v).clone();
        let result = orderer.result(&value, t, order.as_ref());
        orderer.to.results.push(result);
    }
    orderer.to
}

/// A value in the new graph.
#[derive(Clone)]
struct Placed {
    value: Value,
    /// The order of its axes; `None` for the tensor's own order.
    order: Option<AxisOrder>,
    /// The same value in the tensor's own order, if it was added too.
    standard: Option<Value>,
}

impl Placed {
    fn standard(value: Value) -> Placed {
        Placed { value, order: None, standard: None }
    }
}

/// An operation that takes all operands in one order, and the order of its result.
struct Reordered {
    operation: Arc<dyn Operation>,
    result: Option<AxisOrder>,
}

struct Orderer<'a> {
    from: &'a Graph,
    rule: Option<Rule>,
    to: Graph,
    /// The results of the instructions of `from` that were added.
    placed: Vec<Vec<Placed>>,
}

impl Orderer<'_> {
    fn placed(&self, v: Value) -> &Placed {
        &self.placed[v.instruction][v.output]
    }

    /// Adds an instruction of `from`, and returns its results.
    fn add(&mut self, instruction: &Instruction, orders: &Orders<'_>) -> Vec<Placed> {
        let Kind::Operation(operation) = &instruction.kind else {
            return vec![self.leaf(instruction, orders)];
        };
        if self.rule.is_some()
            && let Some(transpose) = operation.downcast::<Transpose>()
        {
            let operand = self.placed(instruction.operands[0]);
            let order = AxisOrder::after_transpose(operand.order.as_ref(), &transpose.permutation);
            return vec![Placed { value: operand.value, order, standard: None }];
        }
        if self.rule == Some(Rule::CommonOrder)
            && let Some(value) = self.in_common_order(operation, instruction)
        {
            return vec![value];
        }
        let mut operation = operation.clone();
        let mut operands = Vec::with_capacity(instruction.operands.len());
        for (i, &v) in instruction.operands.iter().enumerate() {
            let order = self.placed(v).order.clone();
            let order = order.filter(|_| self.rule == Some(Rule::ProductAxes));
            match order.and_then(|order| with_operand_reordered(operation.as_ref(), i, &order)) {
                Some(other) => {
                    operation = other;
                    operands.push(self.placed(v).value);
                }
                None => operands.push(self.in_standard_order(v)),
            }
        }
        let outputs = instruction.outputs.clone();
        let added = self.push(Kind::Operation(operation), instruction, operands, outputs);
        let value = |output| Placed::standard(Value { instruction: added, output });
        (0..instruction.outputs.len()).map(value).collect()
    }

    /// Adds a leaf. A parameter of a replacement is its operand.
    fn leaf(&mut self, instruction: &Instruction, orders: &Orders<'_>) -> Placed {
        if let [operand] = instruction.operands[..] {
            return self.placed(operand).clone();
        }
        let order = (orders.of_leaf)(instruction);
        let outputs = vec![in_order(&instruction.outputs[0], order.as_ref())];
        let added = self.push(instruction.kind.clone(), instruction, Vec::new(), outputs);
        let value = Value { instruction: added, output: 0 };
        Placed { value, order, standard: None }
    }

    /// Adds an operation whose operands have their axes in a common order, without a transpose.
    /// `None` if no operand is reordered, or if one would have to be transposed.
    fn in_common_order(
        &mut self,
        operation: &Arc<dyn Operation>,
        instruction: &Instruction,
    ) -> Option<Placed> {
        let operands = &instruction.operands;
        let order = operands.iter().find_map(|&v| self.placed(v).order.clone())?;
        let [result] = &instruction.outputs[..] else { return None };
        let reordered = if is_elementwise(operation.as_ref()) {
            let is_same = |&v: &Value| self.from.ty(v).shape == result.shape;
            if !operands.iter().all(is_same) {
                return None;
            }
            Reordered { operation: operation.clone(), result: Some(order.clone()) }
        } else {
            with_operands_reordered(operation.as_ref(), &order)?
        };
        // For each operand: the operation that computes it in the common order, unless it has that
        // order already or is a scalar.
        let mut sources: Vec<Option<Arc<dyn Operation>>> = Vec::with_capacity(operands.len());
        for &v in operands {
            sources.push(match &self.placed(v).order {
                Some(other) if *other != order => return None,
                Some(_) => None,
                None if self.from.ty(v).shape.rank() == 0 => None,
                None => Some(self.with_result_reordered(v, &order)?),
            });
        }
        let mut values = Vec::with_capacity(operands.len());
        for (&v, source) in operands.iter().zip(sources) {
            values.push(match source {
                Some(source) => self.add_source(v, source, &order),
                None => self.placed(v).value,
            });
        }
        let outputs = vec![in_order(result, reordered.result.as_ref())];
        let kind = Kind::Operation(reordered.operation);
        let added = self.push(kind, instruction, values, outputs);
        let value = Value { instruction: added, output: 0 };
        Some(Placed { value, order: reordered.result, standard: None })
    }

    /// The operation that computes this value with its axes in a different order.
    fn with_result_reordered(&self, v: Value, order: &AxisOrder) -> Option<Arc<dyn Operation>> {
        match &self.from.instructions[v.instruction].kind {
            Kind::Operation(operation) => with_result_reordered(operation.as_ref(), order),
            _ => None,
        }
    }

    /// Adds the operation that computes a value with its axes in this order.
    fn add_source(&mut self, v: Value, source: Arc<dyn Operation>, order: &AxisOrder) -> Value {
        let from = self.from;
        let instruction = &from.instructions[v.instruction];
        let operands = instruction.operands.iter().map(|&v| self.in_standard_order(v)).collect();
        let outputs = vec![in_order(from.ty(v), Some(order))];
        let added = self.push(Kind::Operation(source), instruction, operands, outputs);
        Value { instruction: added, output: 0 }
    }

    /// A value with its axes in the tensor's order.
    fn in_standard_order(&mut self, v: Value) -> Value {
        let placed = self.placed(v).clone();
        let location = self.from.instructions[v.instruction].location;
        let value = self.standard(&placed, &self.from.ty(v).clone(), location);
        if placed.order.is_some() {
            self.placed[v.instruction][v.output].standard = Some(value);
        }
        value
    }

    /// A value with its axes in the order of its tensor, whose type is `ty`. Adds a transpose if it
    /// has a different order.
    fn standard(
        &mut self,
        placed: &Placed,
        ty: &TensorType,
        location: &'static Location<'static>,
    ) -> Value {
        match (&placed.order, placed.standard) {
            (None, _) => placed.value,
            (Some(_), Some(standard)) => standard,
            (Some(order), None) => self.transpose(placed.value, order.positions(), ty, location),
        }
    }

    /// A result of the program in the order that is asked for.
    fn result(&mut self, placed: &Placed, t: &Tensor, order: Option<&AxisOrder>) -> Value {
        if placed.order.as_ref() == order {
            return placed.value;
        }
        let location = t.node.location;
        let standard = self.standard(placed, t.ty(), location);
        match order {
            Some(order) => {
                let to = in_order(t.ty(), Some(order));
                self.transpose(standard, order.axes().to_vec(), &to, location)
            }
            None => standard,
        }
    }

    fn transpose(
        &mut self,
        operand: Value,
        permutation: Vec<usize>,
        to: &TensorType,
        location: &'static Location<'static>,
    ) -> Value {
        self.to.instructions.push(Instruction {
            id: self.to.instructions[operand.instruction].id,
            kind: Kind::Operation(Arc::new(Transpose { permutation })),
            operands: vec![operand],
            outputs: vec![to.clone()],
            location,
        });
        Value { instruction: self.to.instructions.len() - 1, output: 0 }
    }

    /// Adds an instruction in the place of one of `from`, and returns its index.
    fn push(
        &mut self,
        kind: Kind,
        like: &Instruction,
        operands: Vec<Value>,
        outputs: Vec<TensorType>,
    ) -> usize {
        let location = like.location;
        self.to.instructions.push(Instruction { id: like.id, kind, operands, outputs, location });
        self.to.instructions.len() - 1
    }
}

/// The same operation for operands whose axes are in this order. `None` if it needs its operands in
/// their own order.
fn with_operands_reordered(operation: &dyn Operation, order: &AxisOrder) -> Option<Reordered> {
    let positions = order.positions();
    let same_order = Some(order.clone());
    if let Some(reduce) = operation.downcast::<Reduce>() {
        let mut axes: Vec<_> = reduce.axes.iter().map(|&axis| positions[axis]).collect();
        axes.sort_unstable();
        let operation = Arc::new(Reduce { axes, ..*reduce });
        return Some(Reordered { operation, result: order.without(&reduce.axes) });
    }
    let operation: Arc<dyn Operation> = if let Some(pool) = operation.downcast::<ReduceWindow>() {
        Arc::new(ReduceWindow { windows: pool.windows.reordered(order), ..*pool })
    } else if let Some(concatenate) = operation.downcast::<Concatenate>() {
        Arc::new(Concatenate { axis: positions[concatenate.axis] })
    } else if let Some(Slice { start, limit, stride }) = operation.downcast::<Slice>() {
        Arc::new(Slice {
            start: order.reorder(start),
            limit: order.reorder(limit),
            stride: order.reorder(stride),
        })
    } else if let Some(Pad { low, high, interior }) = operation.downcast::<Pad>() {
        Arc::new(Pad {
            low: order.reorder(low),
            high: order.reorder(high),
            interior: order.reorder(interior),
        })
    } else {
        return None;
    };
    Some(Reordered { operation, result: same_order })
}

/// The operation with the same result if operand number `operand` has its axes in this order. `None`
/// if there is none.
///
/// A product names other axes of the operand, instead of a transpose before it. A product of two
/// matrices stays as it is: XLA makes their transposes a part of it anyway.
fn with_operand_reordered(
    operation: &dyn Operation,
    operand: usize,
    order: &AxisOrder,
) -> Option<Arc<dyn Operation>> {
    let positions = order.positions();
    let mut reordered = operation.downcast::<DotGeneral>()?.clone();
    let (batch, contracting) = match operand {
        0 => (&mut reordered.lhs_batch, &mut reordered.lhs_contracting),
        _ => (&mut reordered.rhs_batch, &mut reordered.rhs_contracting),
    };
    let free = free_axes(positions.len(), batch, contracting);
    let keeps_result = free.is_sorted_by_key(|&axis| positions[axis]);
    if batch.is_empty() || !keeps_result {
        return None;
    }
    for axis in batch.iter_mut().chain(contracting) {
        *axis = positions[*axis];
    }
    Some(Arc::new(reordered))
}

/// The operation that computes the result with its axes in this order, from the same operands. `None`
/// if that would cost more or is not possible.
fn with_result_reordered(
    operation: &dyn Operation,
    order: &AxisOrder,
) -> Option<Arc<dyn Operation>> {
    if let Some(BroadcastInDim { to, axes }) = operation.downcast() {
        let positions = order.positions();
        let axes = axes.iter().map(|&axis| positions[axis]).collect();
        return Some(Arc::new(BroadcastInDim { to: order.reorder(to).into(), axes }));
    }
    let constant = operation.downcast::<Constant>()?;
    constant.filled_in_order(order).map(|constant| Arc::new(constant) as _)
}

#[cfg(test)]
mod tests {
    use fulmen_pjrt::locate::Platform;

    use super::*;
    use crate::passes::tests::{count, text, texts};
    use crate::{Convolution, DType, Function, Pooling};

    #[test]
    fn a_product_of_transposed_stacks_names_their_axes() -> crate::Result<()> {
        let types = [[2, 9, 3, 5], [2, 7, 3, 5]].map(|shape| TensorType::new(DType::F32, shape));
        let function = Function::trace("scores", types, |[x, w]| {
            let [queries, keys] = [&x, &w].map(|heads| heads.transpose(1, 2));
            queries.matmul(keys.transpose(-1, -2))
        });
        let tpu = texts(&function, 1, Platform::Tpu, "product-axes")?;
        assert!(tpu.with.contains("batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3]"));
        assert_eq!(count(&tpu.with, "transpose "), 0);
        assert_eq!(count(&tpu.without, "transpose "), 3);
        assert!(count(&text(&function, Some(Platform::Cpu))?, "transpose ") > 0);
        assert!(count(&text(&function, None)?, "transpose ") > 0);
        Ok(())
    }

    #[test]
    fn a_product_is_the_same_for_each_order_of_an_operands_axes() {
        // All sizes differ, so that wrong axes do not fit.
        let types = [[2, 3, 5, 7], [2, 3, 7, 11]].map(|shape| TensorType::new(DType::F32, shape));
        let product = DotGeneral {
            method: "dot_general",
            lhs_batch: vec![0, 1],
            rhs_batch: vec![0, 1],
            lhs_contracting: vec![3],
            rhs_contracting: vec![2],
        };
        let result = product.infer(&[&types[0], &types[1]]).unwrap();
        let mut orders = 0;
        for code in 0..256 {
            let axes = (0..4).map(|i| code >> (2 * i) & 3).collect();
            let Some(order) = AxisOrder::new(axes).filter(|order| order.fits(4)) else { continue };
            for operand in 0..2 {
                let reordered = with_operand_reordered(&product, operand, &order).unwrap();
                let mut types = types.clone();
                types[operand].shape = order.reorder(&types[operand].shape).into();
                assert_eq!(reordered.infer(&[&types[0], &types[1]]).unwrap(), result, "{order:?}");
                orders += 1;
            }
        }
        assert_eq!(orders, 2 * 23);
    }

    #[test]
    fn values_between_convolutions_are_not_transposed() -> crate::Result<()> {
        let types = [[4, 8, 8, 8], [16, 8, 3, 3], [1, 16, 1, 1], [4, 16, 3, 3]]
            .map(|s| TensorType::new(DType::F32, s));
        let function = Function::trace("f", types, |[x, kernel, bias, last]| {
            let options = Convolution::new(2).padding([(1, 1); 2]);
            let y = x.convolution(&kernel, &options);
            let y = &y - y.mean_keepdim([0, 2, 3]);
            let y = (y + &bias).relu().max_pool(&Pooling::new([2; 2]).stride([2; 2]));
            y.convolution(&last, &options)
        });
        let cpu = texts(&function, 1, Platform::Cpu, "axis-order")?;
        // The input, both kernels and the result.
        assert_eq!(count(&cpu.with, "transpose "), 4);
        assert_eq!(count(&cpu.without, "transpose "), 6);
        assert_eq!(count(&text(&function, Some(Platform::Tpu))?, "transpose "), 0);
        Ok(())
    }
}
