//! The places of the largest and the smallest elements. Indices have no gradient.
//!
//! Composed: the extreme, then the least index of an element that equals it. XLA makes two reductions of it, which read
//! what a variadic one would read.

use super::reduce::Reducer;
use crate::{DType, Shape, Tensor};

impl Tensor {
    /// The index (i32) of the largest element along one axis: the first of several, the first NaN if there is one.
    ///
    /// Poisoned if there is no element along the axis.
    #[track_caller]
    pub fn argmax(&self, axis: isize, keepdims: bool) -> Tensor {
        self.arg("argmax", axis, keepdims, Reducer::Max)
    }

    /// The index (i32) of the smallest element along one axis: the first of several, the first NaN if there is one.
    ///
    /// Poisoned if there is no element along the axis.
    #[track_caller]
    pub fn argmin(&self, axis: isize, keepdims: bool) -> Tensor {
        self.arg("argmin", axis, keepdims, Reducer::Min)
    }

    /// The index (i32) of the largest of all elements, counted in row-major order: a scalar.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1.0f32, 5.0, 7.0, 2.0], [2, 2]);
    /// assert_eq!(x.argmax_all().eval()?.to_vec::<i32>()?, [2]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn argmax_all(&self) -> Tensor {
        self.arg_all("argmax_all", Reducer::Max)
    }

    /// The index (i32) of the smallest of all elements, counted in row-major order: a scalar.
    #[track_caller]
    pub fn argmin_all(&self) -> Tensor {
        self.arg_all("argmin_all", Reducer::Min)
    }

    #[track_caller]
    fn arg_all(&self, method: &'static str, reducer: Reducer) -> Tensor {
        if self.fault().is_some() {
            return self.clone();
        }
        self.reshape([self.shape().num_elements()]).arg(method, 0, false, reducer)
    }

    #[track_caller]
    fn arg(&self, method: &'static str, axis: isize, keepdims: bool, reducer: Reducer) -> Tensor {
        if self.fault().is_some() {
            return self.clone();
        }
        let size = match self.shape().axis(axis) {
            Ok(a) if self.shape()[a] > 0 => self.shape()[a],
            Ok(_) => return Tensor::poison(method, format!("{} has no element along axis {axis}", self.shape())),
            Err(message) => return Tensor::poison(method, message),
        };
        let extreme = self.extreme(method, reducer, &[axis], true);
        if extreme.fault().is_some() {
            return extreme;
        }
        if size > i32::MAX as usize {
            return Tensor::poison(method, format!("axis {axis} of {} is longer than an i32 counts", self.shape()));
        }
        let index = Tensor::iota(DType::I32, self.shape(), axis);
        let wanted = self.eq(extreme).or(self.ne(self));
        wanted.select(&index, &Tensor::full(DType::I32, Shape::scalar(), size as f64)).min(&[axis], keepdims)
    }
}
