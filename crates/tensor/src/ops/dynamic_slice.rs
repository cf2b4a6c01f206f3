//! Boxes whose place a program computes: cut out, or written over.
//!
//! Their sizes are known while recording. Not here: boxes at a known place (`slice.rs`).

use super::constant::holds;
use super::takes::Takes;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::{AsTensor, DType, Shape, Tensor, TensorType};

#[derive(Debug)]
struct DynamicSlice {
    sizes: Vec<usize>,
}

/// No derivative flows to the starts.
fn nothing_for(starts: usize) -> impl Iterator<Item = Option<Tensor>> {
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
        let (g, zeros) = (cx.cotangent(), cx.input(0).zeros_like());
        let inputs: Vec<&Tensor> = [&zeros, &g].into_iter().chain(&cx.inputs[1..]).collect();
        let placed = Tensor::apply(DynamicUpdateSlice, &inputs);
        [Some(placed)].into_iter().chain(nothing_for(cx.inputs.len() - 1)).collect()
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!("stablehlo.dynamic_slice {}, sizes = {:?} : {}", cx.operands(), self.sizes, cx.signature())
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
        let (g, update) = (cx.cotangent(), cx.input(1));
        let zeros = update.zeros_like();
        let starts = &cx.inputs[2..];
        let to_operand: Vec<&Tensor> = [&g, &zeros].into_iter().chain(starts).collect();
        let to_update: Vec<&Tensor> = std::iter::once(&g).chain(starts).collect();
        let sizes = update.shape().to_vec();
        [Some(Tensor::apply(DynamicUpdateSlice, &to_operand)), Some(Tensor::apply(DynamicSlice { sizes }, &to_update))]
            .into_iter()
            .chain(nothing_for(starts.len()))
            .collect()
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!("stablehlo.dynamic_update_slice {} : {}", cx.operands(), cx.signature())
    }
}

/// The starts of a box of `sizes` in `of`, as the operations take them: scalars of one dtype.
#[track_caller]
fn starts_in(method: &str, of: &Tensor, starts: &[Tensor], sizes: &[usize]) -> Result<Vec<Tensor>, Tensor> {
    if let Some(poisoned) = std::iter::once(of).chain(starts).find(|t| t.fault().is_some()) {
        return Err(poisoned.clone());
    }
    let shape = of.shape();
    if starts.len() != shape.rank() || sizes.len() != shape.rank() {
        let message = format!(
            "{} starts and {} sizes were given; {} has {} axes",
            starts.len(),
            sizes.len(),
            of.ty(),
            shape.rank()
        );
        return Err(Tensor::poison(method, message));
    }
    if (0..shape.rank()).any(|a| sizes[a] > shape[a]) {
        let message = format!("a box of {} does not lie within {}", Shape::from(sizes), of.ty());
        return Err(Tensor::poison(method, message));
    }
    let narrow = shape.iter().all(|&size| i32::try_from(size).is_ok());
    let dtype = if narrow { DType::I32 } else { DType::I64 };
    let mut found = Vec::with_capacity(starts.len());
    for (axis, start) in starts.iter().enumerate() {
        if start.rank() != 0 || Takes::Integers.check(start.dtype()).is_err() {
            let message = format!("the start of axis {axis} must be an integer scalar, it is {}", start.ty());
            return Err(Tensor::poison(method, message));
        }
        // One of more bits would wrap around when it becomes an i32.
        let last = (shape[axis] - sizes[axis]) as f64;
        let wraps = start.dtype().size_in_bytes() > 4 || start.dtype() == DType::U32;
        let start = if wraps && holds(start.dtype(), last) { start.maximum(0.0).minimum(last) } else { start.clone() };
        found.push(start.to_dtype(dtype));
    }
    Ok(found)
}

impl Tensor {
    /// The box of these sizes that begins at `starts`, one integer scalar an axis, which the program computes (JAX's
    /// `dynamic_slice`). A start that would let the box end outside is moved to the nearest place where it does not.
    ///
    /// The gradient is put where the box was.
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
    pub fn dynamic_slice(&self, starts: &[Tensor], sizes: &[usize]) -> Tensor {
        match starts_in("dynamic_slice", self, starts, sizes) {
            Ok(starts) => {
                let inputs: Vec<&Tensor> = std::iter::once(self).chain(&starts).collect();
                Tensor::apply(DynamicSlice { sizes: sizes.to_vec() }, &inputs)
            }
            Err(poisoned) => poisoned,
        }
    }

    /// This tensor with `update` written over the box that begins at `starts`, one integer scalar an axis, which the
    /// program computes (JAX's `dynamic_update_slice`). A start that would let the box end outside is moved to the nearest
    /// place where it does not. `update` has the dtype of this tensor.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, [4]);
    /// let y = x.dynamic_update_slice(&Tensor::ones(DType::F32, [2]), &[Tensor::scalar(1i32)]);
    /// assert_eq!(y.eval()?.to_vec::<f32>()?, [0.0, 1.0, 1.0, 0.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn dynamic_update_slice(&self, update: impl AsTensor, starts: &[Tensor]) -> Tensor {
        let update = update.as_tensor();
        const METHOD: &str = "dynamic_update_slice";
        if let Some(poisoned) = [self, update].into_iter().find(|t| t.fault().is_some()) {
            return poisoned.clone();
        }
        if self.dtype() != update.dtype() {
            let message = format!("the dtypes differ: {} and {}; convert one with to_dtype()", self.ty(), update.ty());
            return Tensor::poison(METHOD, message);
        }
        match starts_in(METHOD, self, starts, update.shape()) {
            Ok(starts) => {
                let inputs: Vec<&Tensor> = [self, update].into_iter().chain(&starts).collect();
                Tensor::apply(DynamicUpdateSlice, &inputs)
            }
            Err(poisoned) => poisoned,
        }
    }
}
