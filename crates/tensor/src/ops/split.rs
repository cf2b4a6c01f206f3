//! Splitting a tensor into parts along an axis.
//!
//! Each part is a slice. Out of scope: single slices (`slice.rs`).

use crate::Tensor;

/// The largest number of parts.
const MAX_PARTS: usize = 1 << 16;

impl Tensor {
    /// Splits `axis` into consecutive parts of `size` elements; the last one is smaller if they do
    /// not divide the axis (PyTorch's `split` with a number). An empty axis gives one empty part.
    ///
    /// See [`Tensor::split_with_sizes`] for a list of sizes, and [`Tensor::chunk`] for a number of
    /// parts. A single poisoned tensor is returned if `size` is 0, if there would be more than 65536
    /// parts, or if there is no such axis.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1i32, 2, 3, 4, 5], [5]);
    /// let parts = x.split(2, 0);
    /// assert_eq!(parts.len(), 3);
    /// assert_eq!(parts[1].eval()?.to_vec::<i32>()?, [3, 4]);
    /// assert_eq!(parts[2].eval()?.to_vec::<i32>()?, [5]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn split(&self, size: usize, axis: isize) -> Vec<Tensor> {
        Tensor::record("split", || {
            let shape = self.live()?.shape();
            let length = shape[shape.axis(axis)?];
            if size == 0 {
                return Err("a part must have at least one element, but the size is 0".into());
            }
            if length.div_ceil(size) > MAX_PARTS {
                return Err(format!(
                    "parts of {size} elements of axis {axis} of {shape} are more than {MAX_PARTS}"
                )
                .into());
            }
            Ok(self.parts(size, axis, length))
        })
    }

    /// Splits `axis` into consecutive parts of these sizes (PyTorch's `split` with a list, and its
    /// `split_with_sizes`). The sizes must add up to the size of the axis.
    ///
    /// Returns one tensor for each size. All are poisoned if the sizes do not fit.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1i32, 2, 3, 4], [4]);
    /// let [head, tail] = &x.split_with_sizes(&[1, 3], 0)[..] else { unreachable!() };
    /// assert_eq!((head.size(0), tail.eval()?.to_vec::<i32>()?), (1, vec![2, 3, 4]));
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn split_with_sizes(&self, sizes: &[usize], axis: isize) -> Vec<Tensor> {
        Tensor::record_many("split_with_sizes", sizes.len(), || {
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

    /// The parts of `size` elements of `axis`, which has `length`; an empty axis is one part.
    fn parts(&self, size: usize, axis: isize, length: usize) -> Vec<Tensor> {
        let starts = (0..length.max(1)).step_by(size);
        starts.map(|start| self.narrow(axis, start, size.min(length - start))).collect()
    }

    /// Splits `axis` into `chunks` parts of equal size; the last one is smaller if they do not
    /// divide the axis (PyTorch's `chunk`). As in PyTorch, fewer parts are returned if fewer hold
    /// all elements: 6 elements in 4 chunks give 3 parts of 2. An empty axis gives `chunks` empty parts.
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
            Ok(match size.div_ceil(chunks) {
                0 => vec![self.clone(); chunks],
                each => self.parts(each, axis, size),
            })
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
