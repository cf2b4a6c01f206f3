//! Reads and updates slices at positions that the program computes.
//!
//! Only the sizes of the slices are known while recording. Out of scope: slices whose positions are
//! known too (`slice.rs`).

use fulmen_durable::messages::quantity;

use super::constant::holds;
use super::dtype_set::DTypeSet;
use crate::as_tensor::as_tensors;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::scope::Refusal;
use crate::tensor::all_live;
use crate::{AsTensor, DType, Shape, Tensor, TensorType};

#[derive(Debug)]
struct DynamicSlice {
    sizes: Vec<usize>,
}

/// The starts have no derivative.
fn no_cotangents(starts: usize) -> impl Iterator<Item = Option<Tensor>> {
    std::iter::repeat_with(|| None).take(starts)
}

impl Operation for DynamicSlice {
    fn name(&self) -> &'static str {
        "dynamic_slice"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        one(TensorType::new(inputs[0].dtype, self.sizes.as_slice()))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let g = cx.cotangent();
        let zeros = cx.input(0).zeros_like();
        let inputs: Vec<&Tensor> = [&zeros, &g].into_iter().chain(&cx.inputs[1..]).collect();
        let gradient = Tensor::apply(DynamicUpdateSlice, &inputs);
        [Some(gradient)].into_iter().chain(no_cotangents(cx.inputs.len() - 1)).collect()
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!(
            "stablehlo.dynamic_slice {}, sizes = {:?} : {}",
            cx.operands(),
            self.sizes,
            cx.signature()
        )
    }
}

#[derive(Debug)]
struct DynamicUpdateSlice;

impl Operation for DynamicUpdateSlice {
    fn name(&self) -> &'static str {
        "dynamic_update_slice"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        one(inputs[0].clone())
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let g = cx.cotangent();
        let update = cx.input(1);
        let zeros = update.zeros_like();
        let starts = &cx.inputs[2..];
        let to_operand: Vec<&Tensor> = [&g, &zeros].into_iter().chain(starts).collect();
        let to_update: Vec<&Tensor> = std::iter::once(&g).chain(starts).collect();
        let sizes = update.shape().to_vec();
        [
            Some(Tensor::apply(DynamicUpdateSlice, &to_operand)),
            Some(Tensor::apply(DynamicSlice { sizes }, &to_update)),
        ]
        .into_iter()
        .chain(no_cotangents(starts.len()))
        .collect()
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!("stablehlo.dynamic_update_slice {} : {}", cx.operands(), cx.signature())
    }
}

/// The start within `0..=last`.
///
/// XLA would clamp it too. But XLA merges a slice of a slice, also where it made one of them itself
/// to take a device's part, and forgets how the first start is clamped: in JAX,
/// `dynamic_slice(dynamic_slice(arange(8), 6, 4), 1, 2)` is `[6, 7]` instead of `[5, 6]`. Also, a
/// wider integer would wrap when it is converted to i32.
fn clamped(start: &Tensor, last: usize) -> Tensor {
    if last == 0 {
        return start.zeros_like();
    }
    if let Some([known]) = start.constant_elements::<i32>().as_deref()
        && usize::try_from(*known).is_ok_and(|known| known <= last)
    {
        return start.clone();
    }
    let start = start.maximum(0.0);
    // A dtype that cannot hold the last start has none after it.
    if holds(start.dtype(), last as f64) { start.minimum(last as f64) } else { start }
}

/// Checks the starts of a slice of `sizes` in `operand`, and converts them to scalars of one dtype.
fn starts_in(
    operand: &Tensor,
    starts: &[impl AsTensor],
    sizes: &[usize],
) -> Result<Vec<Tensor>, Refusal> {
    let starts = as_tensors(starts);
    all_live(std::iter::once(operand).chain(starts.iter().copied()))?;
    let shape = operand.shape();
    if starts.len() != shape.rank() || sizes.len() != shape.rank() {
        return Err(format!(
            "got {} and {}; {} has {} axes",
            quantity(starts.len(), "start"),
            quantity(sizes.len(), "size"),
            operand.ty(),
            shape.rank()
        )
        .into());
    }
    if (0..shape.rank()).any(|a| sizes[a] > shape[a]) {
        return Err(
            format!("a box of {} is not within {}", Shape::from(sizes), operand.ty()).into()
        );
    }
    let narrow = shape.iter().all(|&size| i32::try_from(size).is_ok());
    let dtype = if narrow { DType::I32 } else { DType::I64 };
    let mut scalars = Vec::with_capacity(starts.len());
    for (axis, start) in starts.iter().enumerate() {
        if start.rank() != 0 || DTypeSet::Integers.check(start.dtype()).is_err() {
            return Err(format!(
                "the start of axis {axis} must be an integer scalar, not {}",
                start.ty()
            )
            .into());
        }
        scalars.push(clamped(start, shape[axis] - sizes[axis]).to_dtype(dtype));
    }
    Ok(scalars)
}

impl Tensor {
    /// The slice of the given sizes that begins at `starts`: one integer scalar for each axis,
    /// which the program computes (JAX's `dynamic_slice`). Starts are clamped so that the slice
    /// lies within the tensor.
    ///
    /// The gradient flows to the elements of the slice. Poisoned if there is not one start and one
    /// size for each axis, or if a size is too large.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [4]);
    /// let from = |i: i32| x.dynamic_slice(&[Tensor::scalar(i)], &[2]).eval()?.to_vec::<f32>();
    /// assert_eq!(from(1)?, [2.0, 3.0]);
    /// assert_eq!(from(3)?, [3.0, 4.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn dynamic_slice(&self, starts: &[impl AsTensor], sizes: &[usize]) -> Tensor {
        Tensor::record("dynamic_slice", || {
            let starts = starts_in(self, starts, sizes)?;
            let inputs: Vec<&Tensor> = std::iter::once(self).chain(&starts).collect();
            Tensor::try_apply(DynamicSlice { sizes: sizes.to_vec() }, &inputs)
        })
    }

    /// This tensor with `update` written over the slice that begins at `starts`: one integer scalar
    /// for each axis, which the program computes (JAX's `dynamic_update_slice`). Starts are clamped
    /// so that the slice lies within the tensor.
    ///
    /// Poisoned if `update` has a different dtype than this tensor, if it is too large, or if there
    /// is not one start for each axis.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, [4]);
    /// let y = x.dynamic_update_slice(&Tensor::ones(DType::F32, [2]), &[Tensor::scalar(1i32)]);
    /// assert_eq!(y.eval()?.to_vec::<f32>()?, [0.0, 1.0, 1.0, 0.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn dynamic_update_slice(&self, update: impl AsTensor, starts: &[impl AsTensor]) -> Tensor {
        Tensor::record("dynamic_update_slice", || {
            let update = update.as_tensor();
            all_live([self, update])?;
            if self.dtype() != update.dtype() {
                return Err(format!(
                    "the dtypes differ: {} and {}; convert one with to_dtype()",
                    self.ty(),
                    update.ty()
                )
                .into());
            }
            let starts = starts_in(self, starts, update.shape())?;
            let inputs: Vec<&Tensor> = [self, update].into_iter().chain(&starts).collect();
            Tensor::try_apply(DynamicUpdateSlice, &inputs)
        })
    }
}
