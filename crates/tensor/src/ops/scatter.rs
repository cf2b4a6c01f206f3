//! Writing by index: elements are set, added, multiplied, or combined by minimum or maximum.
//!
//! [`Scatter`] is StableHLO's `scatter` for windows that span whole axes. It drops updates out of
//! range. Out of scope: reading by index (`gather.rs`), and slices at positions that a program
//! computes (`dynamic_slice.rs`).

use super::bounds::{self, ClampedIndices, OutOfBounds};
use super::common_dtype::common_dtype;
use super::dtype_set::DTypeSet;
use super::gather::{Dimensions, Gather, check_points, fits_into, indexed_axis};
use super::optimization_barrier::computed_once;
use super::unary::methods;
use crate::Mesh;
use crate::autocast::wide;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::scope::Refusal;
use crate::whole_axes::WholeAxes;
use crate::{AsTensor, DType, Tensor, TensorType};

/// How an element and its updates are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Combine {
    /// The update replaces the element. If several updates have one index, the device selects one
    /// of them, which gets the gradient.
    Set,
    /// The sum (PyTorch's `sum`). 16-bit floats are summed as f32.
    Add,
    /// The product (PyTorch's `prod`). 16-bit floats are multiplied as f32.
    Mul,
    /// The minimum (PyTorch's `amin`); NaN if any is NaN. Tied elements share the gradient.
    Min,
    /// The maximum (PyTorch's `amax`); NaN if any is NaN. Tied elements share the gradient.
    Max,
}

impl Combine {
    /// The StableHLO statements that combine the element `%a` and the update `%b`, and the name of
    /// the result.
    fn body(self, scalar: &str) -> (String, &'static str) {
        let operation = match self {
            Combine::Set => return (String::new(), "%b"),
            Combine::Add => "add",
            Combine::Mul => "multiply",
            Combine::Min => "minimum",
            Combine::Max => "maximum",
        };
        (format!("%r = stablehlo.{operation} %a, %b : {scalar} "), "%r")
    }

    /// Whether 16-bit floats must be combined as f32.
    fn is_wide(self) -> bool {
        matches!(self, Combine::Add | Combine::Mul)
    }
}

#[derive(Debug)]
pub(crate) struct Scatter {
    pub(crate) method: &'static str,
    pub(crate) combine: Combine,
    pub(crate) dimensions: Dimensions,
}

impl Scatter {
    fn scatter(
        &self,
        combine: Combine,
        operand: &Tensor,
        indices: &Tensor,
        updates: &Tensor,
    ) -> Tensor {
        let operation =
            Scatter { method: self.method, combine, dimensions: self.dimensions.clone() };
        Tensor::apply(operation, &[operand, indices, updates])
    }
    fn gather(&self, from: &Tensor, indices: &Tensor) -> Tensor {
        Tensor::apply(
            Gather { method: self.method, dimensions: self.dimensions.clone() },
            &[from, indices],
        )
    }

    /// Whether rows, the third operand, are added at indices, the second operand, to the first
    /// operand, along the first axis.
    pub(super) fn adds_rows(&self) -> bool {
        self.combine == Combine::Add && self.dimensions.are_along_first_axis()
    }

    /// True for the updates that were written.
    fn written_updates(&self, operand: &Tensor, indices: &Tensor, updates: &Tensor) -> Tensor {
        let count = updates.shape().num_elements();
        let dtype = if i32::try_from(count).is_ok() { DType::I32 } else { DType::I64 };
        let numbers = Tensor::arange(dtype, count).reshape(updates.shape());
        let no_update = Tensor::full(dtype, operand.shape(), -1.0);
        let last = self.scatter(Combine::Set, &no_update, indices, &numbers);
        self.gather(&last, indices).eq(numbers)
    }

    /// The derivative of a product with respect to a factor: the product of all other factors.
    fn product_vjp(
        &self,
        operand: &Tensor,
        indices: &Tensor,
        updates: &Tensor,
        g: &Tensor,
    ) -> [Tensor; 2] {
        let to_operand = g * self.scatter(Combine::Mul, &operand.ones_like(), indices, updates);
        // A division by the factor fails where it is 0. So zeros are counted and left out of the
        // product.
        let is_zero = updates.eq(0.0);
        let zeros = self.scatter(
            Combine::Add,
            &operand.zeros_like(),
            indices,
            &is_zero.to_dtype(updates.dtype()),
        );
        let factors = is_zero.select(&updates.ones_like(), updates);
        let product =
            self.gather(&(g * self.scatter(Combine::Mul, operand, indices, &factors)), indices);
        let others = self.gather(&zeros, indices) - is_zero.to_dtype(updates.dtype());
        let to_updates = others.gt(0.0).select(&product.zeros_like(), &(product / factors));
        [to_operand, to_updates]
    }

    /// The derivative of an extreme. The elements and updates that equal it share the gradient.
    fn extreme_vjp(&self, inputs: &[Tensor], g: &Tensor) -> [Tensor; 2] {
        let [operand, indices, updates] = inputs else { return [g.clone(), g.clone()] };
        let known = computed_once(&[operand, updates]);
        let [operand, updates] = &known[..] else { return [g.clone(), g.clone()] };
        let y = &self.scatter(self.combine, operand, indices, updates);
        // A NaN is selected too, although it equals nothing.
        let mask = |x: &Tensor, y: &Tensor| x.eq(y).or(x.ne(x)).to_dtype(g.dtype());
        let operand_mask = mask(operand, y);
        let updates_mask = mask(updates, &self.gather(y, indices));
        let share = g / self.scatter(Combine::Add, &operand_mask, indices, &updates_mask);
        [operand_mask * &share, updates_mask * self.gather(&share, indices)]
    }
}

impl Operation for Scatter {
    fn name(&self) -> &'static str {
        self.method
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        one(inputs[0].clone())
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let operand = cx.input(0);
        let indices = cx.input(1);
        let updates = cx.input(2);
        let cotangent = cx.cotangent();
        let dtype = cotangent.dtype();
        let g = wide(&cotangent);
        let [to_operand, to_updates] = match self.combine {
            Combine::Add => [g.clone(), self.gather(&g, indices)],
            Combine::Set => {
                let is_written = self.written_updates(operand, indices, updates);
                let to_updates = self.gather(&g, indices);
                let zeros = to_updates.zeros_like();
                [
                    self.scatter(Combine::Set, &g, indices, &zeros),
                    is_written.select(&to_updates, &zeros),
                ]
            }
            Combine::Mul => self.product_vjp(operand, indices, updates, &g),
            Combine::Min | Combine::Max => self.extreme_vjp(cx.inputs, &g),
        };
        vec![Some(to_operand.to_dtype(dtype)), None, Some(to_updates.to_dtype(dtype))]
    }
    /// If the devices do not divide the number of updates, XLA pads their parts, and combines what
    /// the program computes from the padding, too. A sum is the derivative of a look-up, so its
    /// updates are whole only if no single axis of the mesh could split them evenly.
    fn check(&self, mesh: &Mesh, inputs: &[&TensorType]) -> Result<WholeAxes, String> {
        let is_uneven = |size: usize| match self.combine {
            Combine::Add | Combine::Set => {
                mesh.axes().iter().any(|(_, devices)| !size.is_multiple_of(*devices))
            }
            Combine::Mul | Combine::Min | Combine::Max => !size.is_multiple_of(mesh.num_devices()),
        };
        let mut whole = self.dimensions.whole_axes_of_scatter(&inputs[1].shape);
        let lists = self.dimensions.list_axes(&inputs[1].shape, &inputs[2].shape);
        for ((axes, list), ty) in whole.operands[1..].iter_mut().zip(lists).zip(&inputs[1..]) {
            axes.extend(list.into_iter().filter(|&axis| is_uneven(ty.shape[axis])));
        }
        Ok(whole)
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let scalar = TensorType::scalar(cx.result().dtype).stablehlo();
        let (body, result) = self.combine.body(&scalar);
        format!(
            "\"stablehlo.scatter\"({}) ({{ ^bb0(%a: {scalar}, %b: {scalar}): {body}\
             \"stablehlo.return\"({result}) : ({scalar}) -> () }}) {{scatter_dimension_numbers = {}}} : {}",
            cx.operands(),
            self.dimensions.attribute(true),
            cx.signature()
        )
    }
}

/// Converts both to their common dtype, or to the wider dtype in which `combine` computes.
fn operands(
    combine: Combine,
    operand: &Tensor,
    updates: &Tensor,
) -> Result<(DType, Tensor, Tensor), Refusal> {
    let dtype = common_dtype(operand, updates)?;
    if combine != Combine::Set {
        DTypeSet::Numbers.check(dtype)?;
    }
    let operand = operand.to_dtype(dtype);
    let updates = updates.to_dtype(dtype);
    Ok(if combine.is_wide() {
        (dtype, wide(&operand), wide(&updates))
    } else {
        (dtype, operand, updates)
    })
}

/// Checks that the updates have the shape that a gather with these indices would return.
fn check_updates(
    updates: &Tensor,
    expected: Vec<usize>,
    target: impl Fn() -> String,
) -> Result<(), String> {
    if updates.shape().dims() == expected {
        return Ok(());
    }
    Err(format!(
        "the updates have the shape {}; for {} it must be {expected:?}",
        updates.shape(),
        target()
    ))
}

methods! {
    /// Adds `updates` at `indices` along `axis`; repeated indices accumulate (JAX's
    /// `x.at[indices].add`, PyTorch's `index_add` for indices of any shape). `updates` must have
    /// the shape that [`Tensor::take`] returns. Updates with an index outside of `0..size` are
    /// dropped.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let counts = Tensor::from_slice(&[0i32; 3], [3]);
    /// let counts = counts.index_add(0, &Tensor::from_slice(&[2i32, 0, 2], [3]), &Tensor::from_slice(&[1i32; 3], [3]));
    /// assert_eq!(counts.eval()?.to_vec::<i32>()?, [1, 0, 2]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    index_add(axis: isize, indices: impl AsTensor, updates: impl AsTensor) -> Tensor, |x| {
        x.write_along("index_add", Combine::Add, axis, indices.as_tensor(), updates.as_tensor())
    };

    /// Replaces the elements at `indices` along `axis` by `updates` (JAX's `x.at[indices].set`,
    /// PyTorch's `index_copy` for indices of any shape). `updates` must have the shape that
    /// [`Tensor::take`] returns. Updates with an index outside of `0..size` are dropped. If several
    /// updates have one index, one of them is written.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3]);
    /// let y = x.index_copy(0, &Tensor::from_slice(&[2i32, 9], [2]), &Tensor::from_slice(&[7.0f32, 8.0], [2]));
    /// assert_eq!(y.eval()?.to_vec::<f32>()?, [1.0, 2.0, 7.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    index_copy(axis: isize, indices: impl AsTensor, updates: impl AsTensor) -> Tensor, |x| {
        x.write_along("index_copy", Combine::Set, axis, indices.as_tensor(), updates.as_tensor())
    };

    /// Like [`Tensor::index_add`] and [`Tensor::index_copy`], for any [`Combine`] (PyTorch's
    /// `index_reduce` with `include_self=True`).
    index_reduce(axis: isize, indices: impl AsTensor, updates: impl AsTensor, combine: Combine) -> Tensor, |x| {
        x.write_along("index_reduce", combine, axis, indices.as_tensor(), updates.as_tensor())
    };

    /// Writes `updates` where [`Tensor::gather`] would read: `y[i, indices[i, j]] = updates[i, j]`
    /// for `axis` 1 (PyTorch's `scatter`). `indices` has the rank of this tensor. Along the other
    /// axes it must not be larger than this tensor, and along no axis larger than `updates`.
    ///
    /// Updates with an index outside of `0..size` are dropped. If several updates have one index,
    /// one of them is written and gets the gradient.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor};
    /// let classes = Tensor::from_slice(&[2i32, 0], [2, 1]);
    /// let hot = Tensor::zeros(DType::F32, [2, 3]).scatter(1, &classes, &Tensor::ones(DType::F32, [2, 1]));
    /// assert_eq!(hot.eval()?.to_vec::<f32>()?, [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    scatter(axis: isize, indices: impl AsTensor, updates: impl AsTensor) -> Tensor, |x| {
        x.write_elements("scatter", Combine::Set, axis, indices.as_tensor(), updates.as_tensor())
    };

    /// Like [`Tensor::scatter`], but adds `updates`; repeated indices accumulate (PyTorch's
    /// `scatter_add`).
    scatter_add(axis: isize, indices: impl AsTensor, updates: impl AsTensor) -> Tensor, |x| {
        x.write_elements("scatter_add", Combine::Add, axis, indices.as_tensor(), updates.as_tensor())
    };

    /// Like [`Tensor::scatter`], for any [`Combine`] (PyTorch's `scatter_reduce` with
    /// `include_self=True`).
    ///
    /// ```
    /// use fulmen_tensor::{Combine, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 5.0], [2]);
    /// let at = Tensor::from_slice(&[0i32, 0, 1], [3]);
    /// let new = Tensor::from_slice(&[3.0f32, 2.0, 4.0], [3]);
    /// assert_eq!(x.scatter_reduce(0, &at, &new, Combine::Max).eval()?.to_vec::<f32>()?, [3.0, 5.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    scatter_reduce(axis: isize, indices: impl AsTensor, updates: impl AsTensor, combine: Combine) -> Tensor, |x| {
        x.write_elements("scatter_reduce", combine, axis, indices.as_tensor(), updates.as_tensor())
    };
}

impl Tensor {
    /// Writes `updates` at clamped indices. Their shape matches the dimensions.
    fn scatter_at(
        &self,
        method: &'static str,
        combine: Combine,
        dimensions: Dimensions,
        clamped: &ClampedIndices,
        updates: &Tensor,
    ) -> Result<Tensor, Refusal> {
        // Every index is out of range, and in XLA a window of size 1 does not fit an axis of size
        // 0.
        if self.shape().num_elements() == 0 {
            return Ok(self.clone());
        }
        // The operation drops updates out of range; the mask drops their gradient.
        let mask = dimensions.spread(&clamped.inside, updates.shape());
        let updates = mask.select(updates, &updates.zeros_like());
        Tensor::try_apply(
            Scatter { method, combine, dimensions },
            &[self, &clamped.indices, &updates],
        )
    }

    fn write_along(
        &self,
        method: &'static str,
        combine: Combine,
        axis: isize,
        indices: &Tensor,
        updates: &Tensor,
    ) -> Result<Tensor, Refusal> {
        let (dtype, to, updates) = operands(combine, self, updates)?;
        let axis = indexed_axis(self, axis, indices)?;
        let clamped = bounds::along(self.shape(), axis, indices, OutOfBounds::PastEnd)?;
        let dimensions = Dimensions::along(axis, self.rank(), indices.rank());
        let target =
            || format!("indices {} along axis {axis} of {}", indices.shape(), self.shape());
        check_updates(&updates, dimensions.gathered_shape(self.shape(), indices.shape()), target)?;
        Ok(to.scatter_at(method, combine, dimensions, &clamped, &updates)?.to_dtype(dtype))
    }

    fn write_elements(
        &self,
        method: &'static str,
        combine: Combine,
        axis: isize,
        indices: &Tensor,
        updates: &Tensor,
    ) -> Result<Tensor, Refusal> {
        let (dtype, to, updates) = operands(combine, self, updates)?;
        let axis = indexed_axis(self, axis, indices)?;
        fits_into("the indices", indices, self, axis)?;
        let part = indices.shape();
        let updates_shape = updates.shape();
        if updates_shape.rank() != part.rank()
            || part
                .iter()
                .zip(updates_shape.iter())
                .any(|(part, updates_shape)| part > updates_shape)
        {
            return Err(format!(
                "the indices {} have more elements along an axis than the updates, {}",
                indices.ty(),
                updates_shape
            )
            .into());
        }
        let clamped = bounds::along(self.shape(), axis, indices, OutOfBounds::PastEnd)?;
        let zeros = vec![0; part.rank()];
        let step = vec![1; part.rank()];
        let updates = updates.slice(&zeros, part, &step);
        // Pad the indices to the size of this tensor along the other axes. The padding is out of
        // range.
        let low = vec![0; part.rank()];
        let high: Vec<i64> = (0..part.rank())
            .map(|a| if a == axis { 0 } else { self.shape()[a].saturating_sub(part[a]) as i64 })
            .collect();
        let beyond = Tensor::full(clamped.indices.dtype(), [], self.shape()[axis] as f64);
        let padded = ClampedIndices {
            indices: clamped.indices.pad(&beyond, &low, &high, &zeros),
            inside: clamped.inside.pad(&Tensor::zeros(DType::Bool, []), &low, &high, &zeros),
        };
        let updates = updates.pad(&Tensor::zeros(updates.dtype(), []), &low, &high, &zeros);
        let dimensions = Dimensions::elements(axis, self.rank());
        Ok(to.scatter_at(method, combine, dimensions, &padded, &updates)?.to_dtype(dtype))
    }

    /// Writes `updates` at points (JAX's `x.at[i, j]`, TensorFlow's `tensor_scatter_nd_*`).
    /// `indices` is `[…, k]`; `updates` is `[…, rest]`, the shape that [`Tensor::gather_nd`]
    /// returns. Updates at a point out of range are dropped.
    ///
    /// ```
    /// use fulmen_tensor::{Combine, DType, Tensor};
    /// let points = Tensor::from_slice(&[0i32, 1, 1, 0, 0, 1], [3, 2]);
    /// let counts = Tensor::zeros(DType::I32, [2, 2]);
    /// let counts = counts.scatter_nd(&points, &Tensor::ones(DType::I32, [3]), Combine::Add);
    /// assert_eq!(counts.eval()?.to_vec::<i32>()?, [0, 2, 1, 0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn scatter_nd(
        &self,
        indices: impl AsTensor,
        updates: impl AsTensor,
        combine: Combine,
    ) -> Tensor {
        Tensor::record("scatter_nd", || {
            let indices = indices.as_tensor();
            let updates = updates.as_tensor();
            let (dtype, to, updates) = operands(combine, self, updates)?;
            check_points(self, indices)?;
            if indices.size(-1) == 0 {
                return Err(
                    format!("the points {} name no axis of {}", indices.ty(), self.ty()).into()
                );
            }
            let dimensions = Dimensions::points(indices.size(-1), self.rank(), indices.rank());
            let target = || format!("points {} in {}", indices.shape(), self.shape());
            check_updates(
                &updates,
                dimensions.gathered_shape(self.shape(), indices.shape()),
                target,
            )?;
            let clamped = bounds::points(self.shape(), indices, OutOfBounds::PastEnd)?;
            Ok(to
                .scatter_at("scatter_nd", combine, dimensions, &clamped, &updates)?
                .to_dtype(dtype))
        })
    }
}
