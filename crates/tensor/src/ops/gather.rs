//! Elements by their index: rows of a table, one element a row, points.
//!
//! [`Gather`] is StableHLO's `gather` for windows that span whole axes; its derivative is a scatter. It takes indices that
//! lie inside; the methods see to that. Not here: writing by index (`scatter.rs`), boxes whose place a program computes
//! (`dynamic_slice.rs`).

use super::bounds::{self, ClampedIndices, OutOfBounds};
use super::scatter::{Combine, Scatter};
use crate::autocast::wide;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::scope::Refusal;
use crate::tensor::all_live;
use crate::{AsTensor, DType, Shape, Tensor, TensorType};

/// How the axes of an operand, of indices and of what is taken (or written) belong together. Each index names an element
/// along the axes `mapped`, which the result does not have; along all other axes it is the whole axis.
#[derive(Clone, Debug)]
pub(super) struct Dimensions {
    /// The axes of what is taken that stem from the operand.
    window: Vec<usize>,
    /// The axes of the operand that an index names.
    mapped: Vec<usize>,
    /// The axes of the operand, and of the indices, that go along with each other.
    operand_batch: Vec<usize>,
    indices_batch: Vec<usize>,
    /// The axis of the indices that holds the components of one index; their rank where each is one number.
    vector: usize,
}

impl Dimensions {
    /// Indices of any shape take the place of `axis`.
    pub(super) fn along(axis: usize, operand_rank: usize, indices_rank: usize) -> Dimensions {
        Dimensions {
            window: (0..axis).chain(axis + indices_rank..(operand_rank + indices_rank).saturating_sub(1)).collect(),
            mapped: vec![axis],
            operand_batch: vec![],
            indices_batch: vec![],
            vector: indices_rank,
        }
    }

    /// Indices with the operand's axes, each an element along `axis`.
    pub(super) fn elements(axis: usize, rank: usize) -> Dimensions {
        let others: Vec<usize> = (0..rank).filter(|&a| a != axis).collect();
        Dimensions {
            window: vec![],
            mapped: vec![axis],
            operand_batch: others.clone(),
            indices_batch: others,
            vector: rank,
        }
    }

    /// Indices `[…, k]`, each a point in the first `k` axes.
    pub(super) fn points(k: usize, operand_rank: usize, indices_rank: usize) -> Dimensions {
        let batch = indices_rank - 1;
        Dimensions {
            window: (batch..batch + operand_rank - k).collect(),
            mapped: (0..k).collect(),
            operand_batch: vec![],
            indices_batch: vec![],
            vector: batch,
        }
    }

    /// The shape of what is taken, or written.
    pub(super) fn taken(&self, operand: &Shape, indices: &Shape) -> Vec<usize> {
        let whole = |a: &usize| !self.mapped.contains(a) && !self.operand_batch.contains(a);
        let mut windows = (0..operand.rank()).filter(whole).map(|a| operand[a]);
        let mut batches = (0..indices.rank()).filter(|&a| a != self.vector).map(|a| indices[a]);
        let rank = self.window.len() + indices.rank() - usize::from(self.vector < indices.rank());
        let of = |axis: usize| if self.window.contains(&axis) { windows.next() } else { batches.next() };
        (0..rank).map_while(of).collect()
    }

    /// The sizes of one window, in MLIR's spelling.
    fn sizes(&self, operand: &Shape) -> String {
        let one = |a: usize| self.mapped.contains(&a) || self.operand_batch.contains(&a);
        let sizes: Vec<String> = (0..operand.rank()).map(|a| if one(a) { 1 } else { operand[a] }.to_string()).collect();
        // MLIR takes no colon before nothing.
        if sizes.is_empty() { "array<i64>".into() } else { format!("array<i64: {}>", sizes.join(", ")) }
    }

    /// The dimension numbers of a gather, or those of a scatter.
    pub(super) fn attribute(&self, scatter: bool) -> String {
        let [operation, window, collapsed, operand_batch, indices_batch, map] = match scatter {
            false => [
                "gather",
                "offset_dims",
                "collapsed_slice_dims",
                "operand_batching_dims",
                "start_indices_batching_dims",
                "start_index_map",
            ],
            true => [
                "scatter",
                "update_window_dims",
                "inserted_window_dims",
                "input_batching_dims",
                "scatter_indices_batching_dims",
                "scatter_dims_to_operand_dims",
            ],
        };
        let batches = match self.operand_batch.is_empty() {
            true => String::new(),
            false => {
                format!("{operand_batch} = {:?}, {indices_batch} = {:?}, ", self.operand_batch, self.indices_batch)
            }
        };
        format!(
            "#stablehlo.{operation}<{window} = {:?}, {collapsed} = {:?}, {batches}{map} = {:?}, \
             index_vector_dim = {}>",
            self.window, self.mapped, self.mapped, self.vector
        )
    }

    /// Booleans or numbers, one an index, repeated to the shape of what is taken.
    pub(super) fn spread(&self, of_indices: &Tensor, taken: &Shape) -> Tensor {
        let axes: Vec<usize> = (0..taken.rank()).filter(|axis| !self.window.contains(axis)).collect();
        of_indices.broadcast_in_dim(taken, &axes)
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
        one(TensorType::new(inputs[0].dtype, self.dimensions.taken(&inputs[0].shape, &inputs[1].shape)))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let (operand, indices) = (cx.input(0), cx.input(1));
        // An index that occurs often makes a long sum.
        let g = wide(&cx.cotangent());
        let zeros = Tensor::zeros(g.dtype(), operand.shape());
        let scatter = Scatter { method: self.method, combine: Combine::Add, dimensions: self.dimensions.clone() };
        let sum = Tensor::apply(scatter, &[&zeros, indices, &g]);
        vec![Some(sum.to_dtype(operand.dtype())), None]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        if cx.result().shape.num_elements() == 0 {
            // Windows of size 1 are not within an axis of size 0.
            return format!("stablehlo.constant dense<> : {}", cx.result().stablehlo());
        }
        format!(
            "\"stablehlo.gather\"({}) {{dimension_numbers = {}, slice_sizes = {}}} : {}",
            cx.operands(),
            self.dimensions.attribute(false),
            self.dimensions.sizes(&cx.operand_type(0).shape),
            cx.signature()
        )
    }
}

/// The element for an index out of range: NaN, or for integers the least signed or the largest unsigned one,
/// or `true`.
fn nothing(dtype: DType) -> Tensor {
    // Infinities saturate.
    let value = match dtype {
        DType::Bool => f64::INFINITY,
        _ if dtype.is_unsigned() => f64::INFINITY,
        _ if dtype.is_integer() => f64::NEG_INFINITY,
        _ => f64::NAN,
    };
    Tensor::full(dtype, [], value)
}

/// The axis of `of` that indices name, unless one of the two is poisoned.
pub(super) fn indexed_axis(of: &Tensor, axis: isize, indices: &Tensor) -> Result<usize, Refusal> {
    all_live([of, indices])?;
    Ok(of.shape().axis(axis)?)
}

impl Tensor {
    /// What the indices of `clamped` find, and nothing where they lay outside.
    fn found(&self, method: &'static str, dimensions: Dimensions, clamped: &ClampedIndices) -> Result<Tensor, Refusal> {
        let gather = Gather { method, dimensions: dimensions.clone() };
        let found = Tensor::try_apply(gather, &[self, &clamped.indices])?;
        Ok(dimensions.spread(&clamped.inside, found.shape()).select(&found, &nothing(self.dtype())))
    }

    fn taken(&self, method: &'static str, axis: isize, indices: &Tensor) -> Result<Tensor, Refusal> {
        let axis = indexed_axis(self, axis, indices)?;
        let clamped = bounds::along(self.shape(), axis, indices, OutOfBounds::ToZero)?;
        self.found(method, Dimensions::along(axis, self.rank(), indices.rank()), &clamped)
    }

    /// The elements at `indices` along `axis`: the rows of an embedding table, say (JAX's `take`, PyTorch's
    /// `index_select` for indices of any shape). The axes of `indices` take the place of `axis`.
    ///
    /// An index outside `0..size`, which a device cannot refuse, gives NaN, or where there is none the least signed or
    /// the largest unsigned integer, or `true`: JAX's choice, but that negative indices do not count from the end. The
    /// gradient is added up where the elements came from, and that of an index outside is dropped.
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
        Tensor::record("take", || self.taken("take", axis, indices.as_tensor()))
    }

    /// The slices at `indices`, a list, along `axis` (PyTorch's `index_select`). As [`Tensor::take`], which takes indices
    /// of any shape.
    #[track_caller]
    pub fn index_select(&self, axis: isize, indices: impl AsTensor) -> Tensor {
        Tensor::record("index_select", || {
            let indices = indices.as_tensor();
            all_live([self, indices])?;
            match indices.rank() {
                0 => self.taken("index_select", axis, &indices.reshape([1])),
                1 => self.taken("index_select", axis, indices),
                _ => Err(format!("the indices {} are not a vector; take() accepts indices of any shape", indices.ty())
                    .into()),
            }
        })
    }

    /// One element an index: `y[i, j, …] = x[i, j, …]` except that `index[i, j, …]` replaces the position along `axis`
    /// (PyTorch's `gather`). `indices` has the rank of this tensor, and along the other axes at most its sizes; the
    /// result has the shape of `indices`.
    ///
    /// An index outside `0..size` gives what [`Tensor::take`] gives there, NaN. The gradient is added up.
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

    /// One element an index, as [`Tensor::gather`], where sizes of 1 along the other axes broadcast, both of this tensor
    /// and of `indices` (NumPy's `take_along_axis`, PyTorch's `take_along_dim`).
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
            let (mut from, mut to) = (self.shape().to_vec(), indices.shape().to_vec());
            let fits = from.len() == to.len()
                && (0..from.len()).all(|a| a == axis || from[a] == to[a] || from[a] == 1 || to[a] == 1);
            if !fits {
                return Err(format!(
                    "the indices {} do not match {}: the ranks must be equal, and along every axis except {axis} the \
                     sizes must be equal or 1",
                    indices.ty(),
                    self.ty()
                )
                .into());
            }
            for a in (0..from.len()).filter(|&a| a != axis) {
                let size = if from[a] == 1 { to[a] } else { from[a] };
                (from[a], to[a]) = (size, size);
            }
            self.broadcast_to(from).elements("take_along_axis", axis, &indices.broadcast_to(to))
        })
    }

    fn elements(&self, method: &'static str, axis: usize, indices: &Tensor) -> Result<Tensor, Refusal> {
        let clamped = bounds::along(self.shape(), axis, indices, OutOfBounds::ToZero)?;
        self.found(method, Dimensions::elements(axis, self.rank()), &clamped)
    }

    /// The elements at points: `indices` is `[…, k]`, each index names a place in the first `k` axes, and the result is
    /// `[…, rest]` with the axes after them (TensorFlow's `gather_nd`, `x[i, j]` with lists in NumPy).
    ///
    /// A point outside gives what [`Tensor::take`] gives there, NaN. The gradient is added up.
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
                // Compilers do not expect such points.
                let batch = &indices.shape()[..indices.rank() - 1];
                return Ok(self.broadcast_to([batch, self.shape()].concat()));
            }
            let clamped = bounds::points(self.shape(), indices, OutOfBounds::ToZero)?;
            let dimensions = Dimensions::points(indices.size(-1), self.rank(), indices.rank());
            self.found("gather_nd", dimensions, &clamped)
        })
    }
}

/// Whether `part` has the rank of `whole` and is within it along all axes except `axis`.
pub(super) fn fits_into(what: &str, part: &Tensor, whole: &Tensor, axis: usize) -> Result<(), String> {
    let (small, large) = (part.shape(), whole.shape());
    if small.rank() == large.rank() && (0..small.rank()).all(|a| a == axis || small[a] <= large[a]) {
        return Ok(());
    }
    Err(format!("{what} {} must have the rank of {} and may be larger along axis {axis} only", part.ty(), whole.ty()))
}

/// Whether `indices` can be points in `of`.
pub(super) fn check_points(of: &Tensor, indices: &Tensor) -> Result<(), Refusal> {
    all_live([of, indices])?;
    if indices.rank() > 0 && indices.size(-1) <= of.rank() {
        return Ok(());
    }
    Err(format!(
        "the indices {} must have the shape […, k] and name points in the first k of the {} axes of {}",
        indices.ty(),
        of.rank(),
        of.ty()
    )
    .into())
}
