//! Elements by their index along an axis: rows of an embedding table taken, and rows added where they came from.
//!
//! The two operations are each other's derivative. They take indices that lie within the axis; the methods see to that,
//! since a device cannot refuse one.

use super::constant::holds;
use super::promote::common_dtype;
use super::takes::Takes;
use crate::autocast::wide;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::{DType, Tensor, TensorType};

/// `operand[:axis] + indices + operand[axis + 1:]`, the shape of what is taken.
fn taken(operand: &TensorType, axis: usize, indices: &TensorType) -> Vec<usize> {
    [&operand.shape[..axis], &indices.shape[..], &operand.shape[axis + 1..]].concat()
}

/// The axes of what is taken that stem from the operand, in MLIR's spelling.
fn window_axes(operand_rank: usize, axis: usize, indices_rank: usize) -> String {
    let axes: Vec<usize> = (0..axis).chain(axis + indices_rank..operand_rank - 1 + indices_rank).collect();
    format!("{axes:?}")
}

#[derive(Debug)]
struct Gather {
    axis: usize,
}

impl Operation for Gather {
    fn name(&self) -> &'static str {
        "take"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        one(TensorType::new(inputs[0].dtype, taken(inputs[0], self.axis, inputs[1])))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let (operand, indices) = (cx.input(0), cx.input(1));
        // An index that occurs often makes a long sum.
        let g = wide(&cx.cotangent());
        let zeros = Tensor::zeros(g.dtype(), operand.shape());
        let sum = Tensor::apply(ScatterAdd { axis: self.axis }, &[&zeros, indices, &g]);
        vec![Some(sum.to_dtype(operand.dtype())), None]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let (operand, indices) = (cx.operand_type(0), cx.operand_type(1));
        let (axis, rank) = (self.axis, indices.shape.rank());
        let mut sizes = operand.shape.to_vec();
        sizes[axis] = 1;
        let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
        format!(
            "\"stablehlo.gather\"({}) {{dimension_numbers = #stablehlo.gather<offset_dims = {}, \
             collapsed_slice_dims = [{axis}], start_index_map = [{axis}], index_vector_dim = {rank}>, \
             slice_sizes = array<i64: {}>}} : {}",
            cx.operands(),
            window_axes(operand.shape.rank(), axis, rank),
            sizes.join(", "),
            cx.signature()
        )
    }
}

#[derive(Debug)]
struct ScatterAdd {
    axis: usize,
}

impl Operation for ScatterAdd {
    fn name(&self) -> &'static str {
        "index_add"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let [operand, indices, updates] = inputs else { return Err("takes three tensors".into()) };
        let expected = taken(operand, self.axis, indices);
        if updates.shape.dims() != expected {
            return Err(format!(
                "what is added has the shape {}; for indices {} along axis {} of {} it must be {expected:?}",
                updates.shape, indices.shape, self.axis, operand.shape
            ));
        }
        one((*operand).clone())
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let g = cx.cotangent();
        let to_updates = Tensor::apply(Gather { axis: self.axis }, &[&g, cx.input(1)]);
        vec![Some(g), None, Some(to_updates)]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let (axis, rank) = (self.axis, cx.operand_type(1).shape.rank());
        let scalar = TensorType::scalar(cx.result().dtype).stablehlo();
        format!(
            "\"stablehlo.scatter\"({}) ({{ ^bb0(%a: {scalar}, %b: {scalar}): %r = stablehlo.add %a, %b : {scalar} \
             \"stablehlo.return\"(%r) : ({scalar}) -> () }}) {{scatter_dimension_numbers = #stablehlo.scatter<\
             update_window_dims = {}, inserted_window_dims = [{axis}], scatter_dims_to_operand_dims = [{axis}], \
             index_vector_dim = {rank}>}} : {}",
            cx.operands(),
            window_axes(cx.operand_type(0).shape.rank(), axis, rank),
            cx.signature()
        )
    }
}

/// Indices along an axis, made safe: 0 where they lie outside, and where they do not.
struct Places {
    axis: usize,
    indices: Tensor,
    /// Booleans of the shape of `indices`.
    inside: Tensor,
}

impl Places {
    #[track_caller]
    fn new(method: &str, of: &Tensor, axis: isize, indices: &Tensor) -> Result<Places, Tensor> {
        if let Some(poisoned) = [of, indices].into_iter().find(|t| t.fault().is_some()) {
            return Err(poisoned.clone());
        }
        let axis = match of.shape().axis(axis) {
            Ok(axis) => axis,
            Err(message) => return Err(Tensor::poison(method, message)),
        };
        if let Err(message) = Takes::Integers.check(indices.dtype()) {
            return Err(Tensor::poison(method, format!("as indices {message}")));
        }
        let size = of.shape()[axis];
        if size == 0 {
            return Err(Tensor::poison(method, format!("{} has no element along axis {axis}", of.shape())));
        }
        let mut inside = indices.ge(0.0);
        // No index of a dtype that does not reach the size lies beyond it.
        if holds(indices.dtype(), size as f64) {
            inside = inside.and(indices.lt(size as f64));
        }
        // Devices compute with 32 bits faster than with 64.
        let dtype = if i32::try_from(size).is_ok() { DType::I32 } else { DType::I64 };
        let indices = inside.select(indices, &indices.zeros_like()).to_dtype(dtype);
        Ok(Places { axis, indices, inside })
    }

    /// `inside`, repeated along the axes of what is taken that stem from the operand.
    #[track_caller]
    fn mask(&self, taken: &Tensor) -> Tensor {
        let axes: Vec<usize> = (self.axis..self.axis + self.indices.rank()).collect();
        self.inside.broadcast_in_dim(taken.shape(), &axes)
    }
}

impl Tensor {
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
    pub fn take(&self, axis: isize, indices: &Tensor) -> Tensor {
        let places = match Places::new("take", self, axis, indices) {
            Ok(places) => places,
            Err(poisoned) => return poisoned,
        };
        let found = Tensor::apply(Gather { axis: places.axis }, &[self, &places.indices]);
        if found.fault().is_some() {
            return found;
        }
        let nothing = match self.dtype() {
            dtype if dtype.is_float() => f64::NAN,
            dtype if dtype == DType::Bool || dtype.is_unsigned() => f64::INFINITY,
            _ => f64::NEG_INFINITY,
        };
        // Infinities saturate: the largest and the least integer, true.
        places.mask(&found).select(&found, &Tensor::full(self.dtype(), [], nothing))
    }

    /// This tensor with `updates` added at `indices` along `axis`, as often as an index occurs (JAX's
    /// `x.at[indices].add`, PyTorch's `index_add` for indices of any shape). `updates` has the shape that
    /// [`Tensor::take`] gives. What an index outside `0..size` would add is dropped.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let counts = Tensor::from_slice(&[0i32; 3], [3]);
    /// let counts = counts.index_add(0, &Tensor::from_slice(&[2i32, 0, 2], [3]), &Tensor::from_slice(&[1i32; 3], [3]));
    /// assert_eq!(counts.eval()?.to_vec::<i32>()?, [1, 0, 2]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn index_add(&self, axis: isize, indices: &Tensor, updates: &Tensor) -> Tensor {
        let dtype = match common_dtype("index_add", self, updates) {
            Ok(dtype) => dtype,
            Err(poisoned) => return poisoned,
        };
        if let Err(message) = Takes::Numbers.check(dtype) {
            return Tensor::poison("index_add", message);
        }
        let places = match Places::new("index_add", self, axis, indices) {
            Ok(places) => places,
            Err(poisoned) => return poisoned,
        };
        let (to, updates) = (wide(&self.to_dtype(dtype)), wide(&updates.to_dtype(dtype)));
        // Where the shape is another, the operation says so.
        let fits = updates.shape().dims() == taken(to.ty(), places.axis, indices.ty());
        let kept = if fits { places.mask(&updates).select(&updates, &updates.zeros_like()) } else { updates };
        Tensor::apply(ScatterAdd { axis: places.axis }, &[&to, &places.indices, &kept]).to_dtype(dtype)
    }
}
