//! Splitting a tensor into parts along an axis.
//!
//! Each part is a slice. Out of scope: single slices (`slice.rs`).

use crate::Tensor;

/// The largest number of parts.
const MAX_PARTS: usize = 1 << 16;

impl Tensor {
    /// Splits `axis` into consecutive parts of these sizes (PyTorch's `split` with a list). The
    /// sizes must add up to the size of the axis.
    ///
    /// Returns one tensor for each size. All are poisoned if the sizes do not fit.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1i32, 2, 3, 4], [4]);
    /// let [head, tail] = &x.split(&[1, 3], 0)[..] else { unreachable!() };
    /// assert_eq!((head.size(0), tail.eval()?.to_vec::<i32>()?), (1, vec![2, 3, 4]));
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn split(&self, sizes: &[usize], axis: isize) -> Vec<Tensor> {
        Tensor::record_many("split", sizes.len(), || {
            let shape = self.live()?.shape();
            let size = shape[shape.axis(axis)?];
            let total = sizes.iter().fold(0usize, |sum, &size| sum.saturating_add(size));
            if total != size {
                return Err(format!(
                    "the sizes {sizes:?} add up to {total}; axis {axis} of {shape} has {size}"
                )
                .into());
            }
            let mut start = 0;
            let part = |&size: &usize| {
                start += size;
                self.narrow(axis, start - size, size)
            };
            Ok(sizes.iter().map(part).collect())
        })
    }

    /// Splits `axis` into `chunks` parts of equal size; the last one is smaller if they do not
    /// divide the axis (PyTorch's `chunk`). As in PyTorch, fewer parts are returned if fewer hold
    /// all elements: 6 elements in 4 chunks give 3 parts of 2.
    ///
    /// A single poisoned tensor is returned if `chunks` is not from 1 to 65536.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor};
    /// let sizes = |n, chunks| Tensor::arange(DType::I32, n).chunk(chunks, 0).iter().map(|t| t.size(0)).collect::<Vec<_>>();
    /// assert_eq!(sizes(8, 3), [3, 3, 2]);
    /// assert_eq!(sizes(6, 4), [2, 2, 2]);
    /// ```
    #[track_caller]
    pub fn chunk(&self, chunks: usize, axis: isize) -> Vec<Tensor> {
        let is_valid = (1..=MAX_PARTS).contains(&chunks);
        Tensor::record_many("chunk", if is_valid { chunks } else { 1 }, || {
            if !is_valid {
                return Err(format!(
                    "the number of chunks must be from 1 to {MAX_PARTS}, not {chunks}"
                )
                .into());
            }
            let shape = self.live()?.shape();
            let size = shape[shape.axis(axis)?];
            let each = size.div_ceil(chunks);
            let sizes: Vec<usize> = match each {
                0 => vec![0; chunks],
                _ => (0..size).step_by(each).map(|start| each.min(size - start)).collect(),
            };
            Ok(self.split(&sizes, axis))
        })
    }

    /// The slices along `axis`, which is removed (PyTorch's `unbind`). A single poisoned tensor is
    /// returned if there is no such axis, or if it has more than 65536 slices.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let rows = Tensor::from_slice(&[1i32, 2, 3, 4], [2, 2]).unbind(0);
    /// assert_eq!(rows[1].eval()?.to_vec::<i32>()?, [3, 4]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn unbind(&self, axis: isize) -> Vec<Tensor> {
        Tensor::record("unbind", || {
            let shape = self.live()?.shape();
            let index = shape.axis(axis)?;
            if shape[index] > MAX_PARTS {
                return Err(format!(
                    "axis {index} of {shape} would give more than {MAX_PARTS} tensors"
                )
                .into());
            }
            Ok((0..shape[index]).map(|i| self.narrow(axis, i, 1).squeeze(axis)).collect())
        })
    }
}
