//! Counting along an axis, and one-hot vectors.

use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::scope::Refusal;
use crate::{DType, Shape, Tensor, TensorType};

#[derive(Debug)]
struct Iota {
    ty: TensorType,
    axis: usize,
}

impl Operation for Iota {
    fn name(&self) -> &'static str {
        "iota"
    }
    fn infer(&self, _: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        one(self.ty.clone())
    }
    fn vjp(&self, _: &Vjp<'_>) -> Vec<Option<Tensor>> {
        Vec::new()
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!("stablehlo.iota dim = {} : {}", self.axis, cx.result().stablehlo())
    }
}

impl Tensor {
    /// A tensor whose element at index `i` along `axis` is `i` (JAX's `lax.broadcasted_iota`).
    /// Poisoned for `bool`.
    #[track_caller]
    pub fn iota(dtype: DType, shape: impl Into<Shape>, axis: isize) -> Tensor {
        Tensor::record("iota", || Tensor::try_iota(TensorType::new(dtype, shape), axis))
    }

    pub(super) fn try_iota(ty: TensorType, axis: isize) -> Result<Tensor, Refusal> {
        if ty.dtype == DType::Bool {
            return Err("bool cannot count; use an integer or floating-point dtype".into());
        }
        if !ty.is_addressable() {
            return Err(ty.too_large().into());
        }
        let axis = ty.shape.axis(axis)?;
        // XLA confuses the dtype of a complex iota with the dtype of its magnitude, and aborts the
        // process. So the iota is real.
        let real = TensorType::new(ty.dtype.real(), &ty.shape);
        Ok(Tensor::try_apply(Iota { ty: real, axis }, &[])?.to_dtype(ty.dtype))
    }

    /// The vector `0, 1, …, n − 1` (PyTorch's and NumPy's `arange`). Poisoned for `bool`.
    #[track_caller]
    pub fn arange(dtype: DType, n: usize) -> Tensor {
        Tensor::record("arange", || Tensor::try_iota(TensorType::new(dtype, [n]), 0))
    }

    /// One-hot vectors of the integers on a new last axis of size `classes`: `true` at the index,
    /// else `false` (PyTorch's `nn.functional.one_hot`). An integer outside of `0..classes` gives a
    /// vector of `false`. Poisoned if the tensor is not of integers.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor};
    /// let y = Tensor::from_slice(&[2i32, 0], [2]).one_hot(3).to_dtype(DType::F32);
    /// assert_eq!(y.eval()?.to_vec::<f32>()?, [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn one_hot(&self, classes: usize) -> Tensor {
        Tensor::record("one_hot", || {
            self.live()?;
            if !self.dtype().is_integer() {
                return Err(format!(
                    "class indices must be integers, not {}; convert with to_dtype()",
                    self.ty()
                )
                .into());
            }
            // Narrow integers cannot count many classes: a u8 would wrap at 256.
            let index = if self.dtype().size_in_bytes() < 4 {
                self.to_dtype(DType::I32)
            } else {
                self.clone()
            };
            let mut shape = self.shape().to_vec();
            shape.push(classes);
            let classes = Tensor::try_iota(TensorType::new(index.dtype(), shape.clone()), -1)?;
            Ok(index.unsqueeze(-1).broadcast_to(shape).eq(classes))
        })
    }
}
