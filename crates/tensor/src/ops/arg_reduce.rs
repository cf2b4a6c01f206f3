//! `argmax` and `argmin`: the indices of the largest and the smallest elements. Indices have no
//! gradient.
//!
//! Composed of the extreme and the smallest index whose element equals it. XLA compiles this to two
//! reductions, which read as much memory as one variadic reduction.

use super::reduce::{Reducer, reductions};
use super::unary::methods;
use crate::scope::Refusal;
use crate::{DType, Tensor};

reductions! {
    /// The index (i32) of the largest element along one axis (PyTorch's `argmax`). If several
    /// elements are the largest, the first of their indices is returned. If there is a NaN, the
    /// index of the first NaN is returned.
    ///
    /// Poisoned if the axis is empty.
    argmax, argmax_keepdim(axis: isize) -> Tensor, |x, keepdim| x.arg("argmax", axis, keepdim, Reducer::Max);

    /// The index (i32) of the smallest element along one axis (PyTorch's `argmin`). If several
    /// elements are the smallest, the first of their indices is returned. If there is a NaN, the
    /// index of the first NaN is returned.
    ///
    /// Poisoned if the axis is empty.
    argmin, argmin_keepdim(axis: isize) -> Tensor, |x, keepdim| x.arg("argmin", axis, keepdim, Reducer::Min);
}

methods! {
    /// The index (i32) of the largest of all elements, in row-major order: a scalar.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1.0f32, 5.0, 7.0, 2.0], [2, 2]);
    /// assert_eq!(x.argmax_all().eval()?.to_vec::<i32>()?, [2]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    argmax_all() -> Tensor, |x| x.flat().arg("argmax_all", 0, false, Reducer::Max);

    /// The index (i32) of the smallest of all elements, in row-major order: a scalar.
    argmin_all() -> Tensor, |x| x.flat().arg("argmin_all", 0, false, Reducer::Min);
}

impl Tensor {
    fn flat(&self) -> Tensor {
        self.reshape([self.shape().num_elements()])
    }

    fn arg(
        &self,
        method: &'static str,
        axis: isize,
        keepdim: bool,
        reducer: Reducer,
    ) -> Result<Tensor, Refusal> {
        let shape = self.shape();
        let size = shape[shape.axis(axis)?];
        if size == 0 {
            return Err(format!("{shape} has no element along axis {axis}").into());
        }
        let extreme = self.extreme(method, reducer, &[axis], true)?;
        extreme.live()?;
        if size > i32::MAX as usize {
            return Err(
                format!("axis {axis} of {shape} has more elements than an i32 can count").into()
            );
        }
        let index = Tensor::iota(DType::I32, shape, axis);
        let is_extreme = self.eq(extreme).or(self.ne(self));
        Ok(is_extreme.select(&index, &Tensor::full(DType::I32, [], size as f64)).reduce(
            "min",
            Reducer::Min,
            &[axis],
            keepdim,
        ))
    }
}
