//! Products of tensors: `dot_general`, and `matmul` built on it.

use fulmen_pjrt::locate::Platform;

use super::common_dtype::common_dtype;
use super::dtype_set::DTypeSet;
use super::optimization_barrier::computed_after;
use crate::autocast::product_operand;
use crate::axis_order::AxisOrder;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::region::{Region, parameters};
use crate::scope::Refusal;
use crate::tensor::all_live;
use crate::{AsAxes, AsTensor, DType, Shape, Tensor, TensorType};

/// The sizes of a contracted first axis for which transposing the left matrix pays.
const TRANSPOSED: std::ops::RangeInclusive<usize> = 256..=4096;

/// The least number of rows and columns of the product for which transposing the left matrix pays.
const LEAST_FREE: usize = 128;

/// The paired axes of both operands. An axis in neither list is free: it stays in the result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DotGeneral {
    /// The public method, for messages.
    method: &'static str,
    lhs_batch: Vec<usize>,
    rhs_batch: Vec<usize>,
    lhs_contracting: Vec<usize>,
    rhs_contracting: Vec<usize>,
}

fn free_axes(rank: usize, batch: &[usize], contracting: &[usize]) -> Vec<usize> {
    (0..rank).filter(|a| !batch.contains(a) && !contracting.contains(a)).collect()
}

impl DotGeneral {
    fn lhs_free(&self, rank: usize) -> Vec<usize> {
        free_axes(rank, &self.lhs_batch, &self.lhs_contracting)
    }
    fn rhs_free(&self, rank: usize) -> Vec<usize> {
        free_axes(rank, &self.rhs_batch, &self.rhs_contracting)
    }

    /// A product of stacks whose matrices have several axes for their rows or columns, as a product
    /// of stacks of matrices, if that needs no transpose. XLA's CPU compiler takes a third more time
    /// for the several axes of heads that share keys.
    fn product_of_stacks(&self, lhs: &Tensor, rhs: &Tensor) -> Option<Tensor> {
        let lhs_free = self.lhs_free(lhs.rank());
        let rhs_free = self.rhs_free(rhs.rank());
        let groups = [&lhs_free, &self.lhs_contracting, &rhs_free, &self.rhs_contracting];
        let is_run = |axes: &Vec<usize>| axes.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        if groups.iter().any(|axes| axes.is_empty() || !is_run(axes))
            || groups.iter().all(|axes| axes.len() == 1)
        {
            return None;
        }
        let sizes = |operand: &Tensor, axes: &[usize]| -> Vec<usize> {
            axes.iter().map(|&axis| operand.shape()[axis]).collect()
        };
        let shape = [sizes(lhs, &self.lhs_batch), sizes(lhs, &lhs_free), sizes(rhs, &rhs_free)];
        let (lhs, position) = merged(lhs, [&lhs_free, &self.lhs_contracting]);
        let lhs_batch: Vec<_> = self.lhs_batch.iter().map(|&axis| position(axis)).collect();
        let lhs_contracting = position(self.lhs_contracting[0]);
        let (rhs, position) = merged(rhs, [&rhs_free, &self.rhs_contracting]);
        let rhs_batch: Vec<_> = self.rhs_batch.iter().map(|&axis| position(axis)).collect();
        let contracting: (&[_], &[_]) = (&[lhs_contracting], &[position(self.rhs_contracting[0])]);
        let product = lhs.product("dot_general", &rhs, (&lhs_batch, &rhs_batch), contracting);
        Some(product.reshape(shape.concat()))
    }

    /// The right side of the statement for operands with these names and types.
    fn statement(&self, cx: &Lowering<'_>, operands: [&(String, TensorType); 2]) -> String {
        let [(lhs, lhs_type), (rhs, rhs_type)] = operands;
        let batching = if self.lhs_batch.is_empty() {
            String::new()
        } else {
            format!(", batching_dims = {:?} x {:?}", self.lhs_batch, self.rhs_batch)
        };
        let precision = cx.precision(cx.result().dtype);
        format!(
            "stablehlo.dot_general {lhs}, {rhs}{batching}, contracting_dims = {:?} x {:?}, precision = [{precision}, \
             {precision}] : ({}, {}) -> {}",
            self.lhs_contracting,
            self.rhs_contracting,
            lhs_type.stablehlo(),
            rhs_type.stablehlo(),
            cx.result().stablehlo()
        )
    }

    /// Whether the left operand's cotangent waits for the right one's. The right operand is then a
    /// weight with no more columns than rows. After its gradient, the activations on the left need
    /// no memory; libtpu would put off some of these gradients. The gradient of a weight with more
    /// columns, such as that of a language model's logits, needs more memory than it frees.
    fn weight_gradient_is_first(&self, cx: &Vjp<'_>) -> bool {
        let [lhs, rhs] = [0, 1].map(|i| &cx.input(i).ty().shape);
        let rows: usize = self.rhs_contracting.iter().map(|&axis| rhs[axis]).product();
        cx.keeps_activations
            && cx.needed == [true, true]
            && self.rhs_batch.is_empty()
            && rhs.num_elements() < lhs.num_elements()
            && rhs.num_elements() <= rows * rows
    }
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

/// An operand with its batch axes first, then its contracting axes as one, then its free axes.
/// Returns its name and type.
fn merge_contracting(
    cx: &mut Lowering<'_>,
    operand: usize,
    batch: &[usize],
    contracting: &[usize],
) -> (String, TensorType) {
    let ty = cx.operand_type(operand).clone();
    let dims = ty.shape.dims();
    let free = free_axes(dims.len(), batch, contracting);
    let order = [batch, contracting, &free].concat();
    let transposed: Vec<usize> = order.iter().map(|&axis| dims[axis]).collect();
    let contracted: usize = contracting.iter().map(|&axis| dims[axis]).product();
    let mut merged: Vec<usize> = transposed[..batch.len()].to_vec();
    merged.push(contracted);
    merged.extend(&transposed[batch.len() + contracting.len()..]);
    let transposed = TensorType::new(ty.dtype, transposed);
    let merged = TensorType::new(ty.dtype, merged);
    let [from, to] = [&ty, &transposed].map(TensorType::stablehlo);
    let name = cx.operand(operand).to_owned();
    let name =
        cx.statement(format!("stablehlo.transpose {name}, dims = {order:?} : ({from}) -> {to}"));
    let from = to;
    let to = merged.stablehlo();
    (cx.statement(format!("stablehlo.reshape {name} : ({from}) -> {to}")), merged)
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

/// The product over the first axes of two matrices, with the left one transposed in memory, if that
/// is faster.
fn product_of_transposed(lhs: &Tensor, rhs: &Tensor) -> Option<Tensor> {
    let ([contracted, rows], [_, columns]) = (&lhs.shape()[..], &rhs.shape()[..]) else {
        return None;
    };
    if !TRANSPOSED.contains(contracted) || rows.min(columns) < &LEAST_FREE {
        return None;
    }
    // Without the barrier, XLA would make the transpose a part of the product again.
    let lhs = Tensor::optimization_barrier(&[&lhs.transpose(0, 1)]);
    Some(lhs[0].dot_general(rhs, ([], []), (1, 0)))
}

/// The axes of one operand for its derivative.
struct Side<'a> {
    /// The operand's rank.
    rank: usize,
    batch: &'a [usize],
    contracting: &'a [usize],
    other_batch: &'a [usize],
    other_contracting: &'a [usize],
    /// The axes of the result that are the other operand's free axes.
    g_contracting: Vec<usize>,
}

impl Side<'_> {
    /// The operand's cotangent with its axes in another order: the cotangent of the result,
    /// contracted with the free axes of the other operand `y`.
    fn product(&self, g: &Tensor, y: &Tensor) -> Tensor {
        let product = DotGeneral {
            method: "dot_general",
            lhs_batch: (0..self.batch.len()).collect(),
            rhs_batch: self.other_batch.to_vec(),
            lhs_contracting: self.g_contracting.clone(),
            rhs_contracting: free_axes(y.rank(), self.other_batch, self.other_contracting),
        };
        Tensor::apply(product, &[g, y])
    }

    /// The operand's cotangent from [`Side::product`], whose axes are the batch axes, this operand's
    /// free axes, and the other operand's contracting axes in ascending order.
    fn in_operands_order(&self, product: &Tensor) -> Tensor {
        let mut order: Vec<usize> = self.batch.to_vec();
        order.extend(free_axes(self.rank, self.batch, self.contracting));
        let mut pairs: Vec<(usize, usize)> =
            self.other_contracting.iter().copied().zip(self.contracting.iter().copied()).collect();
        pairs.sort_unstable();
        order.extend(pairs.iter().map(|p| p.1));
        let mut permutation = vec![0; self.rank];
        for (position, &axis) in order.iter().enumerate() {
            permutation[axis] = position;
        }
        product.permute_axes(permutation)
    }
}

impl Operation for DotGeneral {
    fn name(&self) -> &'static str {
        self.method
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let lhs = inputs[0];
        let rhs = inputs[1];
        if lhs.dtype != rhs.dtype {
            return Err(format!(
                "the dtypes differ: {lhs} and {rhs}; convert one of them with to_dtype()"
            ));
        }
        DTypeSet::NumbersAndComplex.check(lhs.dtype)?;
        let check = |side: &str, shape: &Shape, batch: &[usize], contracting: &[usize]| {
            let mut axes: Vec<usize> = batch.iter().chain(contracting).copied().collect();
            axes.sort_unstable();
            if axes.windows(2).any(|p| p[0] == p[1])
                || axes.last().is_some_and(|&a| a >= shape.rank())
            {
                return Err(format!(
                    "the axes {batch:?} and {contracting:?} are not different axes of the {side} {shape}"
                ));
            }
            Ok(())
        };
        check("left side", &lhs.shape, &self.lhs_batch, &self.lhs_contracting)?;
        check("right side", &rhs.shape, &self.rhs_batch, &self.rhs_contracting)?;
        let pairs = |a: &[usize], b: &[usize], kind: &str| -> Result<(), String> {
            if a.len() != b.len() {
                return Err(format!("the two sides have {} and {} {kind} axes", a.len(), b.len()));
            }
            match a.iter().zip(b).find(|&(&i, &j)| lhs.shape[i] != rhs.shape[j]) {
                Some((&i, &j)) => Err(format!(
                    "cannot multiply {} by {}: the {kind} axes {i} and {j} have {} and {} elements",
                    lhs.shape, rhs.shape, lhs.shape[i], rhs.shape[j]
                )),
                None => Ok(()),
            }
        };
        pairs(&self.lhs_batch, &self.rhs_batch, "batch")?;
        pairs(&self.lhs_contracting, &self.rhs_contracting, "contracted")?;
        let mut shape: Vec<usize> = self.lhs_batch.iter().map(|&a| lhs.shape[a]).collect();
        shape.extend(self.lhs_free(lhs.shape.rank()).iter().map(|&a| lhs.shape[a]));
        shape.extend(self.rhs_free(rhs.shape.rank()).iter().map(|&a| rhs.shape[a]));
        one(TensorType::new(lhs.dtype, shape))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let lhs = cx.input(0);
        let rhs = cx.input(1);
        let g = cx.cotangent();
        let batch = self.lhs_batch.len();
        let lhs_free = self.lhs_free(lhs.rank()).len();
        let left = Side {
            rank: lhs.rank(),
            batch: &self.lhs_batch,
            contracting: &self.lhs_contracting,
            other_batch: &self.rhs_batch,
            other_contracting: &self.rhs_contracting,
            g_contracting: (batch + lhs_free..g.rank()).collect(),
        };
        let right = Side {
            rank: rhs.rank(),
            batch: &self.rhs_batch,
            contracting: &self.rhs_contracting,
            other_batch: &self.lhs_batch,
            other_contracting: &self.lhs_contracting,
            g_contracting: (batch..batch + lhs_free).collect(),
        };
        let of_rhs = right.product(&g, lhs);
        let g = if self.weight_gradient_is_first(cx) {
            computed_after(&[&g], &of_rhs, Some(Platform::Tpu)).remove(0)
        } else {
            g
        };
        let of_lhs = left.product(&g, rhs);
        vec![Some(left.in_operands_order(&of_lhs)), Some(right.in_operands_order(&of_rhs))]
    }
    fn result_axes(&self, inputs: &[&TensorType]) -> Vec<Vec<Option<usize>>> {
        let ranks = [0, 1].map(|i| inputs[i].shape.rank());
        let free = [self.lhs_free(ranks[0]), self.rhs_free(ranks[1])];
        let batch = [&self.lhs_batch, &self.rhs_batch];
        let first_free = [batch[0].len(), batch[0].len() + free[0].len()];
        let result_axis = |side: usize, axis: usize| {
            let position = |axes: &[usize]| axes.iter().position(|&other| other == axis);
            position(batch[side]).or_else(|| Some(first_free[side] + position(&free[side])?))
        };
        let axes = |side: usize| (0..ranks[side]).map(|axis| result_axis(side, axis)).collect();
        vec![axes(0), axes(1)]
    }
    fn rewritten_for(&self, platform: Platform, inputs: &[&TensorType]) -> Option<Region> {
        let contracted = self.lhs_contracting.len();
        let leading: Vec<usize> = (0..contracted).collect();
        let is_leading = self.lhs_contracting == leading && self.rhs_contracting == leading;
        let has_free_axes = inputs.iter().all(|operand| operand.shape.rank() > contracted);
        if platform != Platform::Cpu || inputs[0].dtype != DType::F32 {
            return None;
        }
        let parameters = parameters(self.method, "operand", [inputs[0], inputs[1]]);
        let product = match contracted {
            0 => None,
            _ if !self.lhs_batch.is_empty() => {
                self.product_of_stacks(&parameters[0], &parameters[1])
            }
            _ if !is_leading || !has_free_axes => None,
            1 => product_of_transposed(&parameters[0], &parameters[1]),
            _ => Some(product_of_matrices(&parameters[0], &parameters[1], contracted)),
        }?;
        Some(Region { parameters, results: vec![product] })
    }
    /// Names other axes of the operand, instead of a transpose before the product. A product of two
    /// matrices stays as it is: XLA makes their transposes a part of it anyway.
    fn with_operand_reordered(
        &self,
        operand: usize,
        order: &AxisOrder,
    ) -> Option<Box<dyn Operation>> {
        let positions = order.positions();
        let mut reordered = self.clone();
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
        Some(Box::new(reordered))
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        // On a mesh of three axes, XLA sums wrongly over several axes that the operands split
        // differently: in JAX, 27 of 487 random shardings of a product over three axes are wrong,
        // and none of the same product over one axis.
        if self.lhs_contracting.len() > 1 && cx.split_mesh_axes() >= 3 {
            let batch: Vec<usize> = (0..self.lhs_batch.len()).collect();
            let contracting = vec![batch.len()];
            let lhs = merge_contracting(cx, 0, &self.lhs_batch, &self.lhs_contracting);
            let rhs = merge_contracting(cx, 1, &self.rhs_batch, &self.rhs_contracting);
            let operation = DotGeneral {
                method: self.method,
                lhs_batch: batch.clone(),
                rhs_batch: batch,
                lhs_contracting: contracting.clone(),
                rhs_contracting: contracting,
            };
            let product = operation.statement(cx, [&lhs, &rhs]);
            return cx.split_product(product);
        }
        let operands = [0, 1].map(|i| (cx.operand(i).to_owned(), cx.operand_type(i).clone()));
        let product = self.statement(cx, [&operands[0], &operands[1]]);
        cx.split_product(product)
    }
}

impl Tensor {
    /// The general product (StableHLO's and JAX's `dot_general`). It sums over pairs of contracting
    /// axes and pairs up batch axes; all other axes are free. `batch` and `contracting` list the
    /// axes of this tensor, then those of `rhs`. The axes of the result are the batch axes, the
    /// free axes of this tensor, and the free axes of `rhs`.
    ///
    /// Poisoned if paired axes differ in number or size, for booleans, or if no common dtype
    /// exists.
    #[track_caller]
    pub fn dot_general(
        &self,
        rhs: impl AsTensor,
        batch: (impl AsAxes, impl AsAxes),
        contracting: (impl AsAxes, impl AsAxes),
    ) -> Tensor {
        Tensor::record("dot_general", || {
            let rhs = rhs.as_tensor();
            all_live([self, rhs])?;
            let left = self.shape();
            let right = rhs.shape();
            let batch = (left.indices(batch.0.as_axes())?, right.indices(batch.1.as_axes())?);
            let contracting =
                (left.indices(contracting.0.as_axes())?, right.indices(contracting.1.as_axes())?);
            let batch = (&batch.0[..], &batch.1[..]);
            let contracting = (&contracting.0[..], &contracting.1[..]);
            Ok(self.product("dot_general", rhs, batch, contracting))
        })
    }

    /// [`Tensor::dot_general`] under the name `method` in messages.
    #[track_caller]
    pub(super) fn product(
        &self,
        method: &'static str,
        rhs: &Tensor,
        batch: (&[usize], &[usize]),
        contracting: (&[usize], &[usize]),
    ) -> Tensor {
        let operation = DotGeneral {
            method,
            lhs_batch: batch.0.into(),
            rhs_batch: batch.1.into(),
            lhs_contracting: contracting.0.into(),
            rhs_contracting: contracting.1.into(),
        };
        Tensor::record(method, || {
            let (lhs, rhs) = product_operands(self, rhs)?;
            Tensor::try_apply(operation, &[&lhs, &rhs])
        })
    }

    /// The matrix product (PyTorch's and NumPy's `matmul`): `[…, n, k]` by `[…, k, m]` gives
    /// `[…, n, m]`, and leading axes broadcast. A vector on the left is a row and a vector on the
    /// right is a column; their axis of size 1 is removed from the result.
    ///
    /// Poisoned if the sizes do not fit, if either operand is a scalar, or for booleans.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, [32, 784]);
    /// let w = Tensor::zeros(DType::F32, [512, 10]);
    /// let fault = x.matmul(&w).fault().unwrap().to_string();
    /// assert!(fault.starts_with("matmul: cannot multiply [32, 784] by [512, 10]"));
    /// ```
    #[track_caller]
    pub fn matmul(&self, rhs: impl AsTensor) -> Tensor {
        Tensor::record("matmul", || {
            let (lhs, rhs) = product_operands(self, rhs.as_tensor())?;
            lhs.matmul_same_dtype(&rhs)
        })
    }

    /// [`Tensor::matmul`] for operands of one dtype.
    fn matmul_same_dtype(&self, rhs: &Tensor) -> Result<Tensor, Refusal> {
        if self.rank() == 0 || rhs.rank() == 0 {
            return Err(format!(
                "cannot multiply {} by {}: a scalar is not a matrix, use *",
                self.shape(),
                rhs.shape()
            )
            .into());
        }
        let inner = rhs.rank().saturating_sub(2);
        let k = self.size(-1);
        let l = rhs.shape()[inner];
        if k != l {
            return Err(format!(
                "cannot multiply {} by {}: the last axis of the left has {k} elements, the rows of the right are {l}",
                self.shape(),
                rhs.shape()
            )
            .into());
        }
        let contracted = self.rank() - 1;
        if rhs.rank() <= 2 {
            return Tensor::try_apply(matmul(Vec::new(), contracted, 0), &[self, rhs]);
        }
        // Broadcast both operands to the same leading axes.
        let leading = |t: &Tensor| Shape::from(&t.shape()[..t.rank().saturating_sub(2)]);
        let batch = leading(self).broadcast(&leading(rhs))?;
        let lhs = if self.rank() == 1 { self.unsqueeze(0) } else { self.clone() };
        let n = batch.rank();
        let product = Tensor::apply(
            matmul((0..n).collect(), n + 1, n),
            &[&spread(&lhs, &batch), &spread(rhs, &batch)],
        );
        Ok(if self.rank() == 1 { product.squeeze(-2) } else { product })
    }
}

/// Converts both operands to the dtype in which their product is computed.
pub(super) fn product_operands(lhs: &Tensor, rhs: &Tensor) -> Result<(Tensor, Tensor), Refusal> {
    let dtype = common_dtype(lhs, rhs)?;
    Ok((product_operand(lhs, dtype)?, product_operand(rhs, dtype)?))
}

/// Broadcasts a stack of matrices to the leading axes `batch`.
fn spread(t: &Tensor, batch: &Shape) -> Tensor {
    let matrix = &t.shape()[t.rank().saturating_sub(2)..];
    t.broadcast_to([batch.dims(), matrix].concat())
}

fn matmul(batch: Vec<usize>, lhs_contracting: usize, rhs_contracting: usize) -> DotGeneral {
    DotGeneral {
        method: "matmul",
        lhs_batch: batch.clone(),
        rhs_batch: batch,
        lhs_contracting: vec![lhs_contracting],
        rhs_contracting: vec![rhs_contracting],
    }
}

#[cfg(test)]
mod tests {
    use fulmen_pjrt::locate::Platform;

    use super::*;
    use crate::lower::lower;
    use crate::{Function, Mesh, checkpoint, grad};

    /// The text of a product over the first axes, for one device.
    fn text(lhs: [usize; 2], rhs: [usize; 2], platform: Platform) -> crate::Result<String> {
        let types = [lhs, rhs].map(|shape| TensorType::new(DType::F32, shape));
        let function =
            Function::trace("f", &types, |x| vec![x[0].dot_general(&x[1], ([], []), (0, 0))]);
        Ok(lower(&function, &Mesh::data(1), Some(platform))?.text)
    }

    #[test]
    fn the_cpus_left_matrix_is_transposed_only_if_that_pays() -> crate::Result<()> {
        let transposes = |lhs, rhs, platform| -> crate::Result<bool> {
            Ok(text(lhs, rhs, platform)?.contains("optimization_barrier"))
        };
        assert!(transposes([512, 128], [512, 256], Platform::Cpu)?);
        assert!(!transposes([512, 128], [512, 256], Platform::Tpu)?);
        assert!(!transposes([128, 128], [128, 256], Platform::Cpu)?);
        assert!(!transposes([8192, 128], [8192, 256], Platform::Cpu)?);
        assert!(!transposes([512, 64], [512, 256], Platform::Cpu)?);
        assert!(!transposes([512, 128], [512, 64], Platform::Cpu)?);
        Ok(())
    }

    #[test]
    fn a_product_of_transposed_stacks_names_their_axes() -> crate::Result<()> {
        let types = [[2, 9, 3, 5], [2, 7, 3, 5]].map(|shape| TensorType::new(DType::F32, shape));
        let function = Function::trace("scores", &types, |x| {
            let [queries, keys] = [&x[0], &x[1]].map(|heads| heads.transpose(1, 2));
            vec![queries.matmul(keys.transpose(-1, -2))]
        });
        let text =
            |platform| lower(&function, &Mesh::data(1), platform).map(|program| program.text);
        let tpu = text(Some(Platform::Tpu))?;
        assert!(tpu.contains("batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3]"));
        assert!(!tpu.contains("stablehlo.transpose"));
        assert!(text(Some(Platform::Cpu))?.contains("stablehlo.transpose"));
        assert!(text(None)?.contains("stablehlo.transpose"));
        Ok(())
    }

    #[test]
    fn on_tpus_the_gradient_of_a_narrow_weight_is_first() -> crate::Result<()> {
        // The number of barriers in the gradients of a product of 16 rows.
        let barriers = |weight: [usize; 2], platform, recompute| -> crate::Result<usize> {
            let types = [[16, weight[0]], weight].map(|shape| TensorType::new(DType::F32, shape));
            let function = Function::trace("gradients", &types, |x| {
                let product = |x: &[Tensor]| vec![x[0].matmul(&x[1]).sin().sum_all()];
                let both = [&x[0], &x[1]];
                let loss = if recompute { checkpoint(product, &both) } else { product(x) };
                grad(&loss[0], &both)
            });
            let text = lower(&function, &Mesh::data(1), Some(platform))?.text;
            Ok(text.matches("stablehlo.optimization_barrier").count())
        };
        assert_eq!(barriers([8, 4], Platform::Tpu, false)?, 1);
        assert_eq!(barriers([8, 8], Platform::Tpu, false)?, 1);
        assert_eq!(barriers([8, 9], Platform::Tpu, false)?, 0);
        assert_eq!(barriers([32, 16], Platform::Tpu, false)?, 0, "more weights than activations");
        assert_eq!(barriers([8, 4], Platform::Cpu, false)?, 0);
        // The one barrier is the checkpoint's.
        assert_eq!(barriers([8, 4], Platform::Tpu, true)?, 1);
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
                let reordered = product.with_operand_reordered(operand, &order).unwrap();
                let mut types = types.clone();
                types[operand].shape = order.reorder(&types[operand].shape).into();
                assert_eq!(reordered.infer(&[&types[0], &types[1]]).unwrap(), result, "{order:?}");
                orders += 1;
            }
        }
        assert_eq!(orders, 2 * 23);
    }

    #[test]
    fn a_product_with_a_transposed_matrix_equals_the_sum_over_rows() -> crate::Result<()> {
        // Small whole numbers, so that every sum is exact.
        let matrix = |columns: usize| {
            let elements: Vec<f32> =
                (0..256 * columns).map(|i| ((i * i + i / columns) % 7) as f32 - 3.0).collect();
            elements
        };
        let lhs = matrix(129);
        let rhs = matrix(128);
        let product = Tensor::from_slice(&lhs, [2, 128, 129]).dot_general(
            Tensor::from_slice(&rhs, [2, 128, 128]),
            ([], []),
            ([0, 1], [0, 1]),
        );
        let product = product.eval()?.to_vec::<f32>()?;
        for (i, j) in [(0, 0), (0, 127), (128, 0), (128, 127), (64, 31)] {
            let sum: f32 = (0..256).map(|k| lhs[k * 129 + i] * rhs[k * 128 + j]).sum();
            assert_eq!(product[i * 128 + j], sum);
        }
        Ok(())
    }

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
        let function = Function::trace("f", &types, |x| vec![product(x)]);
        let text = lower(&function, &Mesh::data(1), Some(Platform::Cpu))?.text;
        assert!(text.contains("(tensor<2x12x10xf32>, tensor<6x2x12xf32>) -> tensor<2x10x6xf32>"));
        assert!(!text.contains("stablehlo.transpose"));
        Ok(())
    }
}
