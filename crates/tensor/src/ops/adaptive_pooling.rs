//! Means and maxima over windows that are chosen so that the result has a given size.
//!
//! The `i`-th of `m` windows over an axis of size `n` goes from `⌊i·n/m⌋` to `⌈(i + 1)·n/m⌉`; they overlap where `m` does
//! not divide `n`. Windows of several axes are boxes, so that one axis after the other is reduced.

use super::dtype_set::DTypeSet;
use super::gather::{Dimensions, Gather};
use super::resample::greatest_common_divisor;
use crate::autocast::wide;
use crate::{DType, Tensor};

/// Where the windows over an axis begin, and where they end.
fn edges(n: usize, m: usize) -> (Vec<usize>, Vec<usize>) {
    // In 128 bits the product of two sizes has room.
    let edge = |i: usize| i as u128 * n as u128;
    let starts = (0..m).map(|i| (edge(i) / m as u128) as usize).collect();
    let ends = (0..m).map(|i| edge(i + 1).div_ceil(m as u128) as usize).collect();
    (starts, ends)
}

/// As many windows as this are slices, where they repeat along an axis.
const MOST_SLICES: usize = 64;

/// As many windows as this are listed while recording.
const MOST_WINDOWS: usize = 1 << 20;

/// The first of the pooled axes, or why these sizes are not possible.
fn first_axis(x: &Tensor, sizes: &[usize]) -> Result<usize, String> {
    let Some(first) = x.rank().checked_sub(sizes.len()) else {
        return Err(format!("the sizes {sizes:?} name more axes than {} has", x.ty()));
    };
    if sizes.iter().any(|size| !(1..=MOST_WINDOWS).contains(size)) {
        return Err(format!("the sizes {sizes:?} must be from 1 to {MOST_WINDOWS}"));
    }
    match (first..x.rank()).find(|&axis| x.shape()[axis] == 0 || i32::try_from(x.shape()[axis]).is_err()) {
        Some(axis) => Err(format!("axis {axis} of {} must have from 1 to 2147483647 elements", x.ty())),
        None => Ok(first),
    }
}

fn count(list: &[usize]) -> Tensor {
    Tensor::from_slice(&list.iter().map(|&i| i as i32).collect::<Vec<_>>(), [list.len()])
}

impl Tensor {
    /// This tensor with each of the last axes split in two, windows and the elements of one, where they do not overlap.
    fn tiles(&self, first: usize, sizes: &[usize]) -> Option<(Tensor, Vec<isize>)> {
        let divides = |i: usize| self.shape()[first + i].checked_rem(sizes[i]) == Some(0);
        if !(0..sizes.len()).all(divides) {
            return None;
        }
        let mut split = self.shape()[..first].to_vec();
        let mut within = vec![];
        for (i, &size) in sizes.iter().enumerate() {
            split.extend([size, self.shape()[first + i] / size]);
            within.push(split.len() as isize - 1);
        }
        Some((self.reshape(split), within))
    }

    /// Windows along one axis, all of one length: `[…, windows, elements, …]`, and how many elements of each count, which
    /// are the first. A shorter one has its last element again.
    fn windows(&self, method: &'static str, axis: usize, size: usize) -> (Tensor, Tensor) {
        let (starts, ends) = edges(self.shape()[axis], size);
        let length = starts.iter().zip(&ends).map(|(start, end)| end - start).max().unwrap_or(1);
        let at = Tensor::arange(DType::I32, length).broadcast_to([size, length]);
        let (start, end) = (count(&starts).reshape([size, 1]), count(&ends).reshape([size, 1]));
        let dimensions = Dimensions::along(axis, self.rank(), 2);
        let places = (at + &start).minimum(&end - 1.0);
        (Tensor::apply(Gather { method, dimensions }, &[self, &places]), end - start)
    }

    /// The means of the windows along one axis, of floats that are wide enough. Each reads its elements alone: as a
    /// product with a matrix of shares, one infinity times 0 would make all of them NaN.
    fn window_means(&self, method: &'static str, axis: usize, size: usize) -> Tensor {
        let n = self.shape()[axis];
        // Windows repeat after this many elements.
        let tiles = greatest_common_divisor(n, size);
        let within = axis as isize + 1;
        if size / tiles <= MOST_SLICES {
            let mut split = self.shape().to_vec();
            split.splice(axis..=axis, [tiles, n / tiles]);
            let tiled = self.reshape(split);
            let (starts, ends) = edges(n / tiles, size / tiles);
            let mut means = vec![];
            for (&start, &end) in starts.iter().zip(&ends) {
                means.push(tiled.narrow(within, start, end - start).mean(&[within]));
            }
            let mut shape = self.shape().to_vec();
            shape[axis] = size;
            return Tensor::stack(&means.iter().collect::<Vec<_>>(), within).reshape(shape);
        }
        let (windows, lengths) = self.windows(method, axis, size);
        let length = windows.shape()[axis + 1];
        let counts = Tensor::arange(DType::I32, length).broadcast_to([size, length]).lt(&lengths);
        let counts = counts.broadcast_in_dim(windows.shape(), &[axis, axis + 1]);
        let sums = counts.select(&windows, &windows.zeros_like()).sum(&[within]);
        let mut shape = vec![1; sums.rank() - axis];
        shape[0] = size;
        sums / lengths.to_dtype(self.dtype()).reshape(shape)
    }

    /// The means of a grid of windows over the last `sizes.len()` axes, as many along each as `sizes` says (PyTorch's
    /// `adaptive_avg_pool2d` and its kin). 16-bit floats are summed as f32.
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
            let first = DTypeSet::Floats.check(self.dtype()).and_then(|()| first_axis(self, sizes))?;
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

    /// The largest elements of a grid of windows over the last `sizes.len()` axes, as many along each as `sizes` says
    /// (PyTorch's `adaptive_max_pool2d` and its kin). Elements that tie share the gradient.
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
            let first = DTypeSet::Numbers.check(self.dtype()).and_then(|()| first_axis(self, sizes))?;
            if let Some((tiles, within)) = self.tiles(first, sizes) {
                return Ok(tiles.max(&within));
            }
            let mut pooled = self.clone();
            for (i, &size) in sizes.iter().enumerate() {
                let (axis, n) = (first + i, pooled.shape()[first + i]);
                if n == size {
                    continue;
                }
                // A shorter window has its last element twice, which changes no maximum.
                let (windows, _) = pooled.windows("adaptive_max_pool", axis, size);
                pooled = windows.max(&[axis as isize + 1]);
            }
            Ok(pooled)
        })
    }
}
