//! Products of tensors: `dot_general`, and `matmul` built on it.

use super::common_dtype::common_dtype;
use super::dtype_set::DTypeSet;
use super::gradient_order::after_weight_gradient;
use crate::autocast::product_operand;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::scope::Refusal;
use crate::tensor::all_live;
use crate::{AsAxes, AsTensor, Shape, Tensor, TensorType};

/// The paired axes of both operands. An axis in neither list is free: it stays in the result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DotGeneral {
    /// The public method, for messages.
    pub(crate) method: &'static str,
    pub(crate) lhs_batch: Vec<usize>,
    pub(crate) rhs_batch: Vec<usize>,
    pub(crate) lhs_contracting: Vec<usize>,
    pub(crate) rhs_contracting: Vec<usize>,
}

/// The axes that are in neither list.
pub(crate) fn free_axes(rank: usize, batch: &[usize], contracting: &[usize]) -> Vec<usize> {
    (0..rank).filter(|a| !batch.contains(a) && !contracting.contains(a)).collect()
}

impl DotGeneral {
    pub(crate) fn lhs_free(&self, rank: usize) -> Vec<usize> {
        free_axes(rank, &self.lhs_batch, &self.lhs_contracting)
    }
    pub(crate) fn rhs_free(&self, rank: usize) -> Vec<usize> {
        free_axes(rank, &self.rhs_batch, &self.rhs_contracting)
    }

    /// For each operand, the axis of the result that each of its axes becomes; `None` for an axis that
    /// the result does not have.
    pub(crate) fn result_axes(&self, inputs: &[&TensorType]) -> Vec<Vec<Option<usize>>> {
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

    /// Whether the product is over the first axes of both operands, each of which has others.
    pub(crate) fn sums_over_first_axes(&self, operands: &[&TensorType]) -> bool {
        let contracted = self.lhs_contracting.len();
        let first: Vec<usize> = (0..contracted).collect();
        self.lhs_contracting == first
            && self.rhs_contracting == first
            && operands.iter().all(|operand| operand.shape.rank() > contracted)
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
        let g = if self.rhs_batch.is_empty() {
            after_weight_gradient(cx, g, &of_rhs, &self.rhs_contracting)
        } else {
            g
        };
        let of_lhs = left.product(&g, rhs);
        vec![Some(left.in_operands_order(&of_lhs)), Some(right.in_operands_order(&of_rhs))]
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
    pub(crate) fn product(
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
