//! Products with merged axes, for the CPU.

use super::Replacement;
use crate::operation::Operation;
use crate::ops::dot::DotGeneral;
use crate::region::{Region, parameters};
use crate::{DType, Tensor, TensorType};

/// A product over several axes, or of stacks with several axes for rows or columns, as one with a
/// single axis for each.
pub(super) fn rule(operation: &dyn Operation, operands: &[&TensorType]) -> Option<Replacement> {
    let product = operation.downcast::<DotGeneral>()?;
    if operands[0].dtype != DType::F32 || product.lhs_contracting.is_empty() {
        return None;
    }
    let parameters = parameters(product.method, "operand", operands.iter().copied());
    let lhs = &parameters[0];
    let rhs = &parameters[1];
    let contracted = product.lhs_contracting.len();
    let result = if !product.lhs_batch.is_empty() {
        product_of_stacks(product, lhs, rhs)?
    } else if contracted > 1 && product.sums_over_first_axes(operands) {
        product_of_matrices(lhs, rhs, contracted)
    } else {
        return None;
    };
    Some(Replacement::Expression(Region { parameters, results: vec![result] }))
}

/// A product of stacks whose matrices have several axes for their rows or columns, as a product
/// of stacks of matrices, if that needs no transpose. XLA's CPU compiler takes a third more time
/// for the several axes of heads that share keys.
fn product_of_stacks(product: &DotGeneral, lhs: &Tensor, rhs: &Tensor) -> Option<Tensor> {
    let lhs_free = product.lhs_free(lhs.rank());
    let rhs_free = product.rhs_free(rhs.rank());
    let groups = [&lhs_free, &product.lhs_contracting, &rhs_free, &product.rhs_contracting];
    let is_run = |axes: &Vec<usize>| axes.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    if groups.iter().any(|axes| axes.is_empty() || !is_run(axes))
        || groups.iter().all(|axes| axes.len() == 1)
    {
        return None;
    }
    let sizes = |operand: &Tensor, axes: &[usize]| -> Vec<usize> {
        axes.iter().map(|&axis| operand.shape()[axis]).collect()
    };
    let shape = [sizes(lhs, &product.lhs_batch), sizes(lhs, &lhs_free), sizes(rhs, &rhs_free)];
    let (lhs, position) = merged(lhs, [&lhs_free, &product.lhs_contracting]);
    let lhs_batch: Vec<_> = product.lhs_batch.iter().map(|&axis| position(axis)).collect();
    let lhs_contracting = position(product.lhs_contracting[0]);
    let (rhs, position) = merged(rhs, [&rhs_free, &product.rhs_contracting]);
    let rhs_batch: Vec<_> = product.rhs_batch.iter().map(|&axis| position(axis)).collect();
    let contracting: (&[_], &[_]) = (&[lhs_contracting], &[position(product.rhs_contracting[0])]);
    let result = lhs.product("dot_general", &rhs, (&lhs_batch, &rhs_batch), contracting);
    Some(result.reshape(shape.concat()))
}

/// The product over `contracted` leading axes of both operands, as a product of matrices
/// `[contracted, free]`. XLA's CPU compiler multiplies such matrices in place, but copies an
/// operand of a higher rank to move its contracted axes to the end. That copy takes a sixth of the
/// product's time for 4096 × 256.
fn product_of_matrices(lhs: &Tensor, rhs: &Tensor, contracted: usize) -> Tensor {
    let shape = [&lhs.shape()[contracted..], &rhs.shape()[contracted..]].concat();
    let [lhs, rhs] =
        [lhs, rhs].map(|t| t.flatten(contracted as isize, -1).flatten(0, contracted as isize - 1));
    lhs.dot_general(rhs, ([], []), (0, 0)).reshape(shape)
}

/// A tensor with one axis for each of these runs of axes, and the new position of an axis.
fn merged<'a>(t: &Tensor, runs: [&'a [usize]; 2]) -> (Tensor, impl Fn(usize) -> usize + 'a) {
    let is_merged = move |axis: usize| runs.iter().any(|run| run[1..].contains(&axis));
    let mut sizes: Vec<usize> = Vec::new();
    for (axis, &size) in t.shape().iter().enumerate() {
        match sizes.last_mut().filter(|_| is_merged(axis)) {
            Some(merged) => *merged *= size,
            None => sizes.push(size),
        }
    }
    (t.reshape(sizes), move |axis| axis - (0..axis).filter(|&other| is_merged(other)).count())
}

#[cfg(test)]
mod tests {
    use fulmen_pjrt::locate::Platform;

    use super::*;
    use crate::Function;
    use crate::passes::tests::{count, texts};

    #[test]
    fn on_cpus_a_product_of_stacks_has_one_axis_for_rows_and_one_for_columns() -> crate::Result<()>
    {
        // The axes are b, k, l, m, n and o, p, b, k, l. Small whole numbers make every sum exact.
        let shapes = [[2, 3, 4, 2, 5], [3, 2, 2, 3, 4]];
        let operands = shapes.map(|shape| {
            let size: usize = shape.iter().product();
            let elements: Vec<f32> = (0..size).map(|i| (i * i % 7) as f32 - 3.0).collect();
            Tensor::from_slice(&elements, shape)
        });
        let product = |x: &[Tensor]| x[0].dot_general(&x[1], (0, 2), ([1, 2], [3, 4]));
        let spread = operands[1].permute([2, 3, 4, 0, 1]).reshape([2, 3, 4, 1, 1, 3, 2]);
        let sums = (operands[0].reshape([2, 3, 4, 2, 5, 1, 1]) * spread).sum([1, 2]);
        let product_of_operands = product(&operands).eval()?;
        let sums = sums.eval()?;
        assert_eq!(product_of_operands.to_vec::<f32>()?, sums.to_vec::<f32>()?);

        let types = shapes.map(|shape| TensorType::new(DType::F32, shape));
        let function = Function::trace("f", &types, |x| product(&x));
        let texts = texts(&function, 1, Platform::Cpu, "merged-axes")?;
        let one_axis_each = "(tensor<2x12x10xf32>, tensor<6x2x12xf32>) -> tensor<2x10x6xf32>";
        assert!(texts.with.contains(one_axis_each), "{}", texts.with);
        assert!(!texts.without.contains(one_axis_each), "{}", texts.without);
        assert_eq!(count(&texts.with, "transpose "), 0);
        Ok(())
    }
}
