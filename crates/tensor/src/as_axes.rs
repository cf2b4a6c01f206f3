//! [`AsAxes`]: the trait of arguments that are one axis or several.

/// One axis or several: an integer, an array, a slice or a vector of integers. Negative axes count
/// from the end: −1 is the last.
///
/// Operations along one axis take an `isize`, so the same numbers name axes everywhere. A list may
/// be empty.
///
/// ```
/// use fulmen_tensor::{DType, Tensor};
///
/// let x = Tensor::ones(DType::F32, [2, 3, 4]);
/// assert_eq!(x.sum(-1).ty().to_string(), "f32[2, 3]");
/// assert_eq!(x.sum([0, 1]).ty().to_string(), "f32[4]");
/// assert_eq!(x.flip(vec![0, 2]).permute([2, 0, 1]).softmax(-1).ty().to_string(), "f32[4, 2, 3]");
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither an axis nor a list of axes",
    label = "expected an `isize`, such as `-1`, or a list of them, such as `[0, 1]`"
)]
pub trait AsAxes {
    /// The axes.
    fn as_axes(&self) -> &[isize];
}

impl AsAxes for isize {
    fn as_axes(&self) -> &[isize] {
        std::slice::from_ref(self)
    }
}

impl AsAxes for [isize] {
    fn as_axes(&self) -> &[isize] {
        self
    }
}

impl<const N: usize> AsAxes for [isize; N] {
    fn as_axes(&self) -> &[isize] {
        self
    }
}

impl AsAxes for Vec<isize> {
    fn as_axes(&self) -> &[isize] {
        self
    }
}

impl<T: AsAxes + ?Sized> AsAxes for &T {
    fn as_axes(&self) -> &[isize] {
        (**self).as_axes()
    }
}
