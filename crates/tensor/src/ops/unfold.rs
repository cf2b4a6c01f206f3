//! Overlapping windows along an axis: `unfold`.

use super::gather::{Dimensions, Gather};
use super::resample::greatest_common_divisor;
use crate::{DType, Tensor};

impl Tensor {
    /// The windows of `size` elements along `axis`, each `step` elements after the last (PyTorch's
    /// `Tensor.unfold`): frames of a signal, for example. `axis` becomes the windows, of which
    /// there are `(n − size) / step + 1`, and a new last axis holds the elements of each. Elements
    /// after the last whole window are left out. Gradients of an element that is in several windows
    /// are added up.
    ///
    /// Poisoned if there is no such axis, if `size` or `step` is 0, or if the axis is shorter than
    /// a window.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor};
    /// let frames = Tensor::arange(DType::I32, 8).unfold(0, 4, 3);
    /// assert_eq!(frames.ty().to_string(), "i32[2, 4]");
    /// assert_eq!(frames.eval()?.to_vec::<i32>()?, [0, 1, 2, 3, 3, 4, 5, 6]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn unfold(&self, axis: isize, size: usize, step: usize) -> Tensor {
        Tensor::record("unfold", || {
            let shape = self.live()?.shape();
            let axis = shape.axis(axis)?;
            if size == 0 || step == 0 {
                return Err(format!(
                    "the size of a window and the step must be at least 1, but they are {size} and {step}"
                )
                .into());
            }
            let Some(rest) = shape[axis].checked_sub(size) else {
                return Err(format!(
                    "axis {axis} of {shape} is shorter than a window of {size} elements"
                )
                .into());
            };
            let count = rest / step + 1;
            // Windows begin and end at multiples of this, so whole blocks are read.
            let block = greatest_common_divisor(size, step);
            let used = (count - 1) * step + size;
            let mut split_shape = shape.to_vec();
            split_shape.splice(axis..=axis, [used / block, block]);
            let blocks = self.narrow(axis as isize, 0, used).reshape(split_shape);
            let dtype = if i32::try_from(used).is_ok() { DType::I32 } else { DType::I64 };
            let first = Tensor::arange(dtype, count).unsqueeze(1) * (step / block) as f64;
            let indices = first + Tensor::arange(dtype, size / block);
            let dimensions = Dimensions::along(axis, blocks.rank(), 2);
            let gather = Gather { method: "unfold", dimensions };
            let windows = Tensor::try_apply(gather, &[&blocks, &indices])?;
            let axis = axis as isize;
            Ok(windows.movedim([axis + 1, axis + 2], [-2, -1]).flatten(-2, -1))
        })
    }
}
