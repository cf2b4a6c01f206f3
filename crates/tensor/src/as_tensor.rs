//! [`AsTensor`]: the trait of arguments that are read as tensors.

use crate::Tensor;

/// A tensor or a reference to one. Operations, layers and losses take either.
///
/// A tensor is a cheap handle to an expression. Pass `&x` if you use `x` again. Otherwise, pass `x`
/// itself, for example the result of another call.
///
/// ```
/// use fulmen_tensor::{DType, Tensor};
///
/// let x = Tensor::ones(DType::F32, [2, 3]);
/// let w = Tensor::ones(DType::F32, [4, 3]);
/// let y = x.matmul(w.t());
/// let z = x.matmul(&w.t());
/// assert_eq!(y.eval()?.to_vec::<f32>()?, z.eval()?.to_vec::<f32>()?);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
///
/// A list of tensors is a slice of either, such as `&[&x, &w]` or a `&Vec<Tensor>`. An empty list
/// needs a type: `&[] as &[Tensor]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tensor",
    label = "expected a tensor, such as `x` or `&x`"
)]
pub trait AsTensor {
    /// The tensor.
    fn as_tensor(&self) -> &Tensor;
}

impl AsTensor for Tensor {
    fn as_tensor(&self) -> &Tensor {
        self
    }
}

impl<T: AsTensor + ?Sized> AsTensor for &T {
    fn as_tensor(&self) -> &Tensor {
        (**self).as_tensor()
    }
}

impl<T: AsTensor + ?Sized> AsTensor for &mut T {
    fn as_tensor(&self) -> &Tensor {
        (**self).as_tensor()
    }
}

/// The tensors of a list.
pub(crate) fn as_tensors<T: AsTensor>(tensors: &[T]) -> Vec<&Tensor> {
    tensors.iter().map(AsTensor::as_tensor).collect()
}
