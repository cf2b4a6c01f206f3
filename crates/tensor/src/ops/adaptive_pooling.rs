//! Average and max pooling to a given output size.
//!
//! Of `m` windows over an axis of size `n`, window `i` covers `⌊i·n/m⌋` to `⌈(i + 1)·n/m⌉`. Windows
//! overlap where `m` does not divide `n`. A window over several axes is a box, so the axes are
//! reduced one after the other.

use super::dtype_set::DTypeSet;
use super::gather::{Dimensions, Gather};
use super::resample::greatest_common_divisor;
use crate::autocast::wide;
use crate::{DType, Tensor};

/// The start and the end of each of the `m` windows over an axis of size `n`.
fn edges(n: usize, m: usize) -> (Vec<usize>, Vec<usize>) {
    // The product of two sizes fits 128 bits.
    let edge = |i: usize| i as u128 * n as u128;
    let starts = (0..m).map(|i| (edge(i) / m as u128) as usize).collect();
    let ends = (0..m).map(|i| edge(i + 1).div_ceil(m as u128) as usize).collect();
    (starts, ends)
}

/// The largest number of distinct windows along an axis that are taken as slices.
const MAX_SLICES: usize = 64;

/// The largest output size of an axis: its windows are listed while recording.
const MAX_WINDOWS: usize = 1 << 20;

/// The first pooled axis, or a message that says why the sizes are invalid.
fn first_axis(x: &Tensor, sizes: &[usize]) -> Result<usize, String> {
    let Some(first) = x.rank().checked_sub(sizes.len()) else {
        return Err(format!("the sizes {sizes:?} name more axes than {} has", x.ty()));
    };
    if sizes.iter().any(|size| !(1..=MAX_WINDOWS).contains(size)) {
        return Err(format!("the sizes {sizes:?} must be from 1 to {MAX_WINDOWS}"));
    }
    match (first..x.rank())
        .find(|&axis| x.shape()[axis] == 0 || i32::try_from(x.shape()[axis]).is_err())
    {
        Some(axis) => {
            Err(format!("axis {axis} of {} must have from 1 to 2147483647 elements", x.ty()))
        }
        None => Ok(first),
    }
}

fn count(list: &[usize]) -> Tensor {
    Tensor::from_slice(&list.iter().map(|&i| i as i32).collect::<Vec<_>>(), [list.len()])
}

impl Tensor {
    /// Splits each pooled axis into windows and elements. `None` if the windows overlap.
    fn tiles(&self, first: usize, sizes: &[usize]) -> Option<(Tensor, Vec<isize>)> {
        let divides = |i: usize| self.shape()[first + i].checked_rem(sizes[i]) == Some(0);
        if !(0..sizes.len()).all(divides) {
            return None;
        }
        let mut split_shape = self.shape()[..first].to_vec();
        let mut within = Vec::new();
        for (i, &size) in sizes.iter().enumerate() {
            split_shape.extend([size, self.shape()[first + i] / size]);
            within.push(split_shape.len() as isize - 1);
        }
        Some((self.reshape(split_shape), within))
    }

    /// The windows along one axis, padded to one length: `[…, windows, elements, …]`, and the
    /// number of valid elements in each. Valid elements come first; a shorter window repeats its
    /// last element.
    fn windows(&self, method: &'static str, axis: usize, size: usize) -> (Tensor, Tensor) {
        let (starts, ends) = edges(self.shape()[axis], size);
        let length = starts.iter().zip(&ends).map(|(start, end)| end - start).max().unwrap_or(1);
        let offsets = Tensor::arange(DType::I32, length).broadcast_to([size, length]);
        let start = count(&starts).reshape([size, 1]);
        let end = count(&ends).reshape([size, 1]);
        let dimensions = Dimensions::along(axis, self.rank(), 2);
        let indices = (offsets + &start).minimum(&end - 1.0);
        (Tensor::apply(Gather { method, dimensions }, &[self, &indices]), end - start)
    }

    /// The mean of each window along one axis, for floats of at least 32 bits. Each mean reads only
    /// its own elements: in a product with a matrix of weights, one infinity times 0 would turn
    /// every mean into NaN.
    fn window_means(&self, method: &'static str, axis: usize, size: usize) -> Tensor {
        let n = self.shape()[axis];
        // The pattern of windows repeats this many times along the axis.
        let tiles = greatest_common_divisor(n, size);
        let within = axis as isize + 1;
        if size / tiles <= MAX_SLICES {
            let mut split_shape = self.shape().to_vec();
            split_shape.splice(axis..=axis, [tiles, n / tiles]);
            let tiled = self.reshape(split_shape);
            let (starts, ends) = edges(n / tiles, size / tiles);
            let mut means = Vec::new();
            for (&start, &end) in starts.iter().zip(&ends) {
                means.push(tiled.narrow(within, start, end - start).mean(within));
            }
            let mut shape = self.shape().to_vec();
            shape[axis] = size;
            return Tensor::stack(&means, within).reshape(shape);
        }
        let (windows, lengths) = self.windows(method, axis, size);
        let length = windows.shape()[axis + 1];
        let is_valid = Tensor::arange(DType::I32, length)
            .broadcast_to([size, length])
            .lt(&lengths)
            .broadcast_along(windows.shape(), &[axis, axis + 1]);
        let sums = is_valid.select(&windows, &windows.zeros_like()).sum(within);
        let mut shape = vec![1; sums.rank() - axis];
        shape[0] = size;
        sums / lengths.to_dtype(self.dtype()).reshape(shape)
    }

    /// Averages windows over the last `sizes.len()` axes so that the results have the given sizes
    /// (PyTorch's `adaptive_avg_pool1d`, `adaptive_avg_pool2d` and `adaptive_avg_pool3d`). 16-bit
    /// floats are summed as f32.
    ///
    /// Poisoned if the elements are not floats, if a size is not from 1 to 2²⁰, or if a pooled axis
    /// is empty.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0], [1, 1, 5]);
    /// assert_eq!(x.adaptive_avg_pool(&[2]).eval()?.to_vec::<f32>()?, [2.0, 4.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn adaptive_avg_pool(&self, sizes: &[usize]) -> Tensor {
        Tensor::record("adaptive_avg_pool", || {
            self.live()?;
            let first =
                DTypeSet::Floats.check(self.dtype()).and_then(|()| first_axis(self, sizes))?;
            let from = wide(self);
            if let Some((tiles, within)) = from.tiles(first, sizes) {
                return Ok(tiles.mean(&within).to_dtype(self.dtype()));
            }
            let mut pooled = from;
            for (i, &size) in sizes.iter().enumerate() {
                let n = pooled.shape()[first + i];
                if n != size {
                    pooled = pooled.window_means("adaptive_avg_pool", first + i, size);
                }
            }
            Ok(pooled.to_dtype(self.dtype()))
        })
    }

    /// Takes the maximum of windows over the last `sizes.len()` axes so that the results have the
    /// given sizes (PyTorch's `adaptive_max_pool1d`, `adaptive_max_pool2d` and
    /// `adaptive_max_pool3d`). Tied elements share the gradient.
    ///
    /// Poisoned for booleans and complex numbers, if a size is not from 1 to 2²⁰, or if a pooled
    /// axis is empty.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 5.0, 4.0, 3.0], [1, 1, 5]);
    /// assert_eq!(x.adaptive_max_pool(&[2]).eval()?.to_vec::<f32>()?, [5.0, 5.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn adaptive_max_pool(&self, sizes: &[usize]) -> Tensor {
        Tensor::record("adaptive_max_pool", || {
            self.live()?;
            let first =
                DTypeSet::Numbers.check(self.dtype()).and_then(|()| first_axis(self, sizes))?;
            if let Some((tiles, within)) = self.tiles(first, sizes) {
                return Ok(tiles.max(&within));
            }
            let mut pooled = self.clone();
            for (i, &size) in sizes.iter().enumerate() {
                let axis = first + i;
                let n = pooled.shape()[first + i];
                if n == size {
                    continue;
                }
                // A shorter window repeats its last element, which does not change the maximum.
                let (windows, _) = pooled.windows("adaptive_max_pool", axis, size);
                pooled = windows.max(axis as isize + 1);
            }
            Ok(pooled)
        })
    }
}
