//! Reading elements by index: slices along an axis, single elements, points.
//!
//! [`Gather`] is StableHLO's `gather` for windows that span whole axes; its derivative is a
//! scatter. It takes indices within range, which the methods ensure. Out of scope: writing by index
//! (`scatter.rs`), and slices at positions that a program computes (`dynamic_slice.rs`).

use fulmen_durable::messages::quantity;

use super::bounds::{self, ClampedIndices, OutOfBounds};
use super::scatter::{Combine, Scatter};
use crate::Mesh;
use crate::autocast::wide;
use crate::index_checks::{IndexRule, check_indices};
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::scope::Refusal;
use crate::tensor::all_live;
use crate::whole_axes::WholeAxes;
use crate::{AsTensor, DType, Shape, Tensor, TensorType};

/// How the axes of an operand, of indices and of the gathered elements (or the updates) correspond.
/// Each index names an element along the axes `mapped`, which the result lacks. Along all other
/// axes it covers the whole axis.
#[derive(Clone, Debug)]
pub(crate) struct Dimensions {
    /// The axes of the gathered elements that come from the operand.
    window: Vec<usize>,
    /// The operand's axes along which an index names an element.
    mapped: Vec<usize>,
    /// The paired batch axes: of the operand here, of the indices in the next field.
    operand_batch: Vec<usize>,
    indices_batch: Vec<usize>,
    /// The axis of the indices that holds the components of an index, or their rank if an index is
    /// a single number.
    vector: usize,
}

impl Dimensions {
    /// Indices of any shape replace `axis`.
    pub(super) fn along(axis: usize, operand_rank: usize, indices_rank: usize) -> Dimensions {
        Dimensions {
            window: (0..axis)
                .chain(axis + indices_rank..(operand_rank + indices_rank).saturating_sub(1))
                .collect(),
            mapped: vec![axis],
            operand_batch: Vec::new(),
            indices_batch: Vec::new(),
            vector: indices_rank,
        }
    }

    /// Whether each index names an element of the first axis.
    pub(super) fn are_along_first_axis(&self) -> bool {
        self.mapped == [0]
            && self.operand_batch.is_empty()
            && self.window.first().is_none_or(|&first| first == self.vector)
            && self.window.windows(2).all(|pair| pair[0] + 1 == pair[1])
    }

    /// Indices of the operand's rank. Each selects one element along `axis`.
    pub(super) fn elements(axis: usize, rank: usize) -> Dimensions {
        let others: Vec<usize> = (0..rank).filter(|&a| a != axis).collect();
        Dimensions {
            window: Vec::new(),
            mapped: vec![axis],
            operand_batch: others.clone(),
            indices_batch: others,
            vector: rank,
        }
    }

    /// Indices `[batch…, n]`, each a row, an element along the axis after the batch axes.
    pub(super) fn rows(batch: usize, operand_rank: usize) -> Dimensions {
        Dimensions {
            window: (batch + 1..operand_rank).collect(),
            mapped: vec![batch],
            operand_batch: (0..batch).collect(),
            indices_batch: (0..batch).collect(),
            vector: batch + 1,
        }
    }

    /// Indices `[…, k]`, each a point in the first `k` axes.
    pub(super) fn points(k: usize, operand_rank: usize, indices_rank: usize) -> Dimensions {
        let batch = indices_rank - 1;
        Dimensions {
            window: (batch..batch + operand_rank - k).collect(),
            mapped: (0..k).collect(),
            operand_batch: Vec::new(),
            indices_batch: Vec::new(),
            vector: batch,
        }
    }

    /// The axes that must be whole: that of an index's components; and with several indices in each
    /// batch, the axis along which they name elements, of the operand, the indices and the gathered
    /// elements or updates. If XLA splits it, sums, products, extremes and their derivatives can be
    /// wrong. One index in each batch is right, and common: the logit of a label, with the classes
    /// split.
    fn whole_axes(&self, indices: &Shape) -> [Vec<usize>; 3] {
        if self.indices_batch.is_empty() {
            let components = (0..indices.rank()).filter(|&axis| axis == self.vector).collect();
            return [Vec::new(), components, Vec::new()];
        }
        let lists: Vec<usize> =
            (0..indices.rank()).filter(|axis| !self.indices_batch.contains(axis)).collect();
        if lists.iter().all(|&axis| indices[axis] == 1) {
            return [Vec::new(), Vec::new(), Vec::new()];
        }
        [self.mapped.clone(), lists.clone(), lists]
    }

    /// The axes that must be whole in a gather.
    fn whole_axes_of_gather(&self, indices: &Shape) -> WholeAxes {
        let [operand, indices, elements] = self.whole_axes(indices);
        WholeAxes {
            operands: vec![operand, indices],
            results: vec![elements],
            ..WholeAxes::default()
        }
    }

    /// The axes that must be whole in a scatter.
    pub(super) fn whole_axes_of_scatter(&self, indices: &Shape) -> WholeAxes {
        let [operand, indices, updates] = self.whole_axes(indices);
        WholeAxes {
            operands: vec![operand.clone(), indices, updates],
            results: vec![operand],
            ..WholeAxes::default()
        }
    }

    /// The axes over which there are several indices: of the indices, and of the updates.
    pub(super) fn list_axes(&self, indices: &Shape, updates: &Shape) -> [Vec<usize>; 2] {
        [
            (0..indices.rank()).filter(|&axis| axis != self.vector).collect(),
            (0..updates.rank()).filter(|axis| !self.window.contains(axis)).collect(),
        ]
    }

    /// The operand's axes along which an index names an element, one for each of its components.
    pub(crate) fn mapped_axes(&self) -> &[usize] {
        &self.mapped
    }

    /// Whether these indices are a single one.
    pub(crate) fn has_one_index(&self, indices: &Shape) -> bool {
        (0..indices.rank()).all(|axis| axis == self.vector || indices[axis] == 1)
    }

    /// If each batch has one index, an axis of the indices along which another one can follow, and
    /// the axis of the updates that belongs to it.
    pub(crate) fn axes_of_one_index(&self, indices: &Shape) -> Option<[usize; 2]> {
        let is_index = |axis: &usize| *axis != self.vector && !self.indices_batch.contains(axis);
        let axes: Vec<usize> = (0..indices.rank()).filter(is_index).collect();
        if axes.iter().any(|&axis| indices[axis] != 1) {
            return None;
        }
        let axis = *axes.first()?;
        let earlier = (0..axis).filter(|&other| other != self.vector).count();
        let of_updates = (0..).filter(|axis| !self.window.contains(axis)).nth(earlier)?;
        Some([axis, of_updates])
    }

    /// The dimensions for a list of the same indices, `[n, k]`, and the sizes of the operand's
    /// axes that each covers. There are no batches of more than one index.
    pub(crate) fn for_list(&self, operand: &Shape) -> (Dimensions, Vec<usize>) {
        let others = (0..operand.rank()).filter(|axis| !self.mapped.contains(axis));
        let rest: Vec<usize> = others.map(|axis| operand[axis]).collect();
        let dimensions = Dimensions {
            window: (1..=rest.len()).collect(),
            mapped: self.mapped.clone(),
            operand_batch: Vec::new(),
            indices_batch: Vec::new(),
            vector: 1,
        };
        (dimensions, rest)
    }

    /// The shape of the gathered elements, or of the updates.
    pub(super) fn gathered_shape(&self, operand: &Shape, indices: &Shape) -> Vec<usize> {
        let whole = |a: &usize| !self.mapped.contains(a) && !self.operand_batch.contains(a);
        let mut windows = (0..operand.rank()).filter(whole).map(|a| operand[a]);
        let mut batches = (0..indices.rank()).filter(|&a| a != self.vector).map(|a| indices[a]);
        let rank = self.window.len() + indices.rank() - usize::from(self.vector < indices.rank());
        let size =
            |axis: usize| if self.window.contains(&axis) { windows.next() } else { batches.next() };
        (0..rank).map_while(size).collect()
    }

    /// The sizes of one window, in MLIR's syntax.
    fn sizes(&self, operand: &Shape) -> String {
        let one = |a: usize| self.mapped.contains(&a) || self.operand_batch.contains(&a);
        let sizes: Vec<String> =
            (0..operand.rank()).map(|a| if one(a) { 1 } else { operand[a] }.to_string()).collect();
        // MLIR rejects a colon before an empty list.
        if sizes.is_empty() {
            "array<i64>".into()
        } else {
            format!("array<i64: {}>", sizes.join(", "))
        }
    }

    /// The dimension numbers of a scatter, or else of a gather.
    pub(super) fn attribute(&self, scatter: bool) -> String {
        let [operation, window, collapsed, operand_batch, indices_batch, map] = if scatter {
            [
                "scatter",
                "update_window_dims",
                "inserted_window_dims",
                "input_batching_dims",
                "scatter_indices_batching_dims",
                "scatter_dims_to_operand_dims",
            ]
        } else {
            [
                "gather",
                "offset_dims",
                "collapsed_slice_dims",
                "operand_batching_dims",
                "start_indices_batching_dims",
                "start_index_map",
            ]
        };
        let batches = if self.operand_batch.is_empty() {
            String::new()
        } else {
            format!(
                "{operand_batch} = {:?}, {indices_batch} = {:?}, ",
                self.operand_batch, self.indices_batch
            )
        };
        format!(
            "#stablehlo.{operation}<{window} = {:?}, {collapsed} = {:?}, {batches}{map} = {:?}, \
             index_vector_dim = {}>",
            self.window, self.mapped, self.mapped, self.vector
        )
    }

    /// Broadcasts one value for each index to the shape of the gathered elements.
    pub(super) fn spread(&self, values: &Tensor, shape: &Shape) -> Tensor {
        let axes: Vec<usize> =
            (0..shape.rank()).filter(|axis| !self.window.contains(axis)).collect();
        values.broadcast_along(shape, &axes)
    }
}

#[derive(Debug)]
pub(super) struct Gather {
    pub(super) method: &'static str,
    pub(super) dimensions: Dimensions,
}

impl Operation for Gather {
    fn name(&self) -> &'static str {
        self.method
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        one(TensorType::new(
            inputs[0].dtype,
            self.dimensions.gathered_shape(&inputs[0].shape, &inputs[1].shape),
        ))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let operand = cx.input(0);
        let indices = cx.input(1);
        // A frequent index makes a long sum.
        let g = wide(&cx.cotangent());
        let zeros = Tensor::zeros(g.dtype(), operand.shape());
        let scatter = Scatter {
            method: self.method,
            combine: Combine::Add,
            dimensions: self.dimensions.clone(),
        };
        let sum = Tensor::apply(scatter, &[&zeros, indices, &g]);
        vec![Some(sum.to_dtype(operand.dtype())), None]
    }
    fn check(&self, _: &Mesh, inputs: &[&TensorType]) -> Result<WholeAxes, String> {
        Ok(self.dimensions.whole_axes_of_gather(&inputs[1].shape))
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        if cx.result().shape.num_elements() == 0 {
            // A window of size 1 does not fit an axis of size 0.
            return format!("stablehlo.constant dense<> : {}", cx.result().stablehlo());
        }
        let gather = format!(
            "\"stablehlo.gather\"({}) {{dimension_numbers = {}, slice_sizes = {}}} : {}",
            cx.operands(),
            self.dimensions.attribute(false),
            self.dimensions.sizes(&cx.operand_type(0).shape),
            cx.signature()
        );
        // On a mesh of several axes, XLA's partitioner refuses its own program, if the windows are
        // split over one axis, the indices over another, and a later value asks for another split
        // (JAX, too: 9 of 300 random shardings; none this way). So the operands alone decide how
        // the result is split; then it is moved.
        if cx.split_mesh_axes() < 2 {
            return gather;
        }
        let gathered = cx.statement(gather);
        cx.split_by_operands(&gathered)
    }
}

/// The element for an index out of range: NaN, the smallest signed or largest unsigned integer, or
/// `true`.
fn out_of_range_element(dtype: DType) -> Tensor {
    // Infinities saturate to the extremes of integers.
    let value = match dtype {
        DType::Bool => f64::INFINITY,
        _ if dtype.is_unsigned() => f64::INFINITY,
        _ if dtype.is_integer() => f64::NEG_INFINITY,
        _ => f64::NAN,
    };
    Tensor::full(dtype, [], value)
}

/// The indices of an axis of this size, marked for a training step. An index out of range is a
/// mistake if it makes the loss NaN; a program may also mask the element.
fn marked(
    method: &'static str,
    indices: &Tensor,
    size: usize,
    axis: usize,
) -> Result<Tensor, Refusal> {
    let reason = format!("axis {axis} has {}", quantity(size, "element"));
    let rule = IndexRule::below(method, "an index", size, reason);
    check_indices(indices, IndexRule { needs_nan: true, ..rule })
}

/// The axis of `x` that the indices refer to. An error if either tensor is poisoned.
pub(super) fn indexed_axis(x: &Tensor, axis: isize, indices: &Tensor) -> Result<usize, Refusal> {
    all_live([x, indices])?;
    Ok(x.shape().axis(axis)?)
}

impl Tensor {
    /// The elements at the clamped indices, and [`out_of_range_element`] where the index was out of range.
    fn gather_at(
        &self,
        method: &'static str,
        dimensions: Dimensions,
        clamped: &ClampedIndices,
    ) -> Result<Tensor, Refusal> {
        let gather = Gather { method, dimensions: dimensions.clone() };
        let elements = Tensor::try_apply(gather, &[self, &clamped.indices])?;
        Ok(dimensions
            .spread(&clamped.inside, elements.shape())
            .select(&elements, &out_of_range_element(self.dtype())))
    }

    fn take_along(
        &self,
        method: &'static str,
        axis: isize,
        indices: &Tensor,
    ) -> Result<Tensor, Refusal> {
        let axis = indexed_axis(self, axis, indices)?;
        let indices = &marked(method, indices, self.shape()[axis], axis)?;
        let clamped = bounds::along(self.shape(), axis, indices, OutOfBounds::ToZero)?;
        self.gather_at(method, Dimensions::along(axis, self.rank(), indices.rank()), &clamped)
    }

    /// The elements at `indices` along `axis`, for example rows of an embedding table (JAX's and
    /// NumPy's `take`; PyTorch's `index_select` for indices of any shape). The axes of `indices`
    /// replace `axis`.
    ///
    /// An index outside of `0..size` gives NaN, the smallest signed or largest unsigned integer, or
    /// `true`, since a device cannot raise an error. This matches JAX, except that negative indices
    /// do not count from the end. The gradient is added up at the elements that were read; the
    /// gradient of an index out of range is dropped.
    ///
    /// Poisoned if the indices are not integers, if the axis does not exist, or if it is empty.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let table = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [3, 2]);
    /// let tokens = Tensor::from_slice(&[2i32, 0], [1, 2]);
    /// let embedded = table.take(0, &tokens);
    /// assert_eq!(embedded.ty().to_string(), "f32[1, 2, 2]");
    /// assert_eq!(embedded.eval()?.to_vec::<f32>()?, [5.0, 6.0, 1.0, 2.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn take(&self, axis: isize, indices: impl AsTensor) -> Tensor {
        Tensor::record("take", || self.take_along("take", axis, indices.as_tensor()))
    }

    /// The slices at `indices`, a vector, along `axis` (PyTorch's `index_select`). Like
    /// [`Tensor::take`], which accepts indices of any shape.
    ///
    /// Poisoned under the same conditions, and if the rank of `indices` is above 1.
    #[track_caller]
    pub fn index_select(&self, axis: isize, indices: impl AsTensor) -> Tensor {
        Tensor::record("index_select", || {
            let indices = indices.as_tensor();
            all_live([self, indices])?;
            match indices.rank() {
                0 => self.take_along("index_select", axis, &indices.reshape([1])),
                1 => self.take_along("index_select", axis, indices),
                _ => Err(format!(
                    "the indices {} are not a vector; take() accepts indices of any shape",
                    indices.ty()
                )
                .into()),
            }
        })
    }

    /// One element for each index: `y[i, j, …] = x[i, j, …]`, except that `indices[i, j, …]`
    /// replaces the position along `axis` (PyTorch's `gather`). `indices` has the rank of this
    /// tensor. Along the other axes it must not be larger than this tensor. The result has the
    /// shape of `indices`.
    ///
    /// An index out of range gives NaN, like [`Tensor::take`]. Gradients of elements that were read
    /// several times are added up.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2]);
    /// let columns = Tensor::from_slice(&[0i32, 0, 1, 0], [2, 2]);
    /// assert_eq!(x.gather(1, &columns).eval()?.to_vec::<f32>()?, [1.0, 1.0, 4.0, 3.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn gather(&self, axis: isize, indices: impl AsTensor) -> Tensor {
        Tensor::record("gather", || {
            let indices = indices.as_tensor();
            let axis = indexed_axis(self, axis, indices)?;
            fits_into("the indices", indices, self, axis)?;
            let mut part = indices.shape().to_vec();
            part[axis] = self.shape()[axis];
            let from = self.slice(&vec![0; self.rank()], &part, &vec![1; self.rank()]);
            from.elements("gather", axis, indices)
        })
    }

    /// Like [`Tensor::gather`], but axes of size 1 other than `axis` broadcast, of this tensor and
    /// of `indices` (NumPy's `take_along_axis`, PyTorch's `take_along_dim`).
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let scores = Tensor::from_slice(&[0.1f32, 0.9, 0.8, 0.2], [2, 2]);
    /// let best = scores.take_along_axis(1, &scores.argmax_keepdim(1));
    /// assert_eq!(best.eval()?.to_vec::<f32>()?, [0.9, 0.8]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn take_along_axis(&self, axis: isize, indices: impl AsTensor) -> Tensor {
        Tensor::record("take_along_axis", || {
            let indices = indices.as_tensor();
            let axis = indexed_axis(self, axis, indices)?;
            let mut shape = self.shape().to_vec();
            let mut indices_shape = indices.shape().to_vec();
            let fits = shape.len() == indices_shape.len()
                && (0..shape.len()).all(|a| {
                    a == axis
                        || shape[a] == indices_shape[a]
                        || shape[a] == 1
                        || indices_shape[a] == 1
                });
            if !fits {
                return Err(format!(
                    "the indices {} do not match {}: the ranks must be equal, and along every axis except {axis} the \
                     sizes must be equal or 1",
                    indices.ty(),
                    self.ty()
                )
                .into());
            }
            for a in (0..shape.len()).filter(|&a| a != axis) {
                let size = if shape[a] == 1 { indices_shape[a] } else { shape[a] };
                (shape[a], indices_shape[a]) = (size, size);
            }
            self.broadcast_to(shape).elements(
                "take_along_axis",
                axis,
                &indices.broadcast_to(indices_shape),
            )
        })
    }

    fn elements(
        &self,
        method: &'static str,
        axis: usize,
        indices: &Tensor,
    ) -> Result<Tensor, Refusal> {
        let indices = &marked(method, indices, self.shape()[axis], axis)?;
        let clamped = bounds::along(self.shape(), axis, indices, OutOfBounds::ToZero)?;
        self.gather_at(method, Dimensions::elements(axis, self.rank()), &clamped)
    }

    /// The elements at points. `indices` is `[…, k]`; each index names a point in the first `k`
    /// axes. The result is `[…, rest]`, where `rest` are the remaining axes (TensorFlow's
    /// `gather_nd`; NumPy's `x[i, j]` with lists).
    ///
    /// A point out of range gives NaN, like [`Tensor::take`]. Gradients of elements that were read
    /// several times are added up.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2]);
    /// let corners = Tensor::from_slice(&[0i32, 0, 1, 0], [2, 2]);
    /// assert_eq!(x.gather_nd(&corners).eval()?.to_vec::<f32>()?, [1.0, 3.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn gather_nd(&self, indices: impl AsTensor) -> Tensor {
        Tensor::record("gather_nd", || {
            let indices = indices.as_tensor();
            check_points(self, indices)?;
            if indices.size(-1) == 0 {
                // Compilers do not support points without components.
                let batch = &indices.shape()[..indices.rank() - 1];
                return Ok(self.broadcast_to([batch, self.shape()].concat()));
            }
            let mut components = Vec::new();
            for axis in 0..indices.size(-1) {
                let component = indices.narrow(-1, axis, 1);
                components.push(marked("gather_nd", &component, self.shape()[axis], axis)?);
            }
            let indices = &Tensor::concatenate(&components, -1);
            let clamped = bounds::points(self.shape(), indices, OutOfBounds::ToZero)?;
            let dimensions = Dimensions::points(indices.size(-1), self.rank(), indices.rank());
            self.gather_at("gather_nd", dimensions, &clamped)
        })
    }
}

/// Checks that `part` has the rank of `whole` and is not larger along any axis except `axis`.
pub(super) fn fits_into(
    name: &str,
    part: &Tensor,
    whole: &Tensor,
    axis: usize,
) -> Result<(), String> {
    let small = part.shape();
    let large = whole.shape();
    if small.rank() == large.rank() && (0..small.rank()).all(|a| a == axis || small[a] <= large[a])
    {
        return Ok(());
    }
    Err(format!(
        "{name} {} must have the rank of {} and may be larger along axis {axis} only",
        part.ty(),
        whole.ty()
    ))
}

/// Checks that `indices` can be points in `x`.
pub(super) fn check_points(x: &Tensor, indices: &Tensor) -> Result<(), Refusal> {
    all_live([x, indices])?;
    if indices.rank() > 0 && indices.size(-1) <= x.rank() {
        return Ok(());
    }
    Err(format!(
        "the indices {} must have the shape […, k] and name points in the first k of the {} axes of {}",
        indices.ty(),
        x.rank(),
        x.ty()
    )
    .into())
}
