//! Means and maxima over windows that are chosen so that the result has a given size.
//!
//! The `i`-th of `m` windows over an axis of size `n` goes from `⌊i·n/m⌋` to `⌈(i + 1)·n/m⌉`; they overlap where `m` does
//! not divide `n`. Windows of several axes are boxes, so that one axis after the other is reduced.

use super::gather::{Dimensions, Gather};
use super::resample::{along_axis, weights_dtype};
use super::takes::Takes;
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

/// As many windows as this are listed while recording.
const MOST_WINDOWS: usize = 1 << 20;

/// The first of the pooled axes, or why there are none of these sizes.
fn first_axis(x: &Tensor, sizes: &[usize]) -> Result<usize, String> {
    let Some(first) = x.rank().checked_sub(sizes.len()) else {
        return Err(format!("the sizes {sizes:?} name more axes than {} has", x.ty()));
    };
    if sizes.iter().any(|size| !(1..=MOST_WINDOWS).contains(size)) {
        return Err(format!("the sizes {sizes:?} must be from 1 to {MOST_WINDOWS}"));
    }
    match (first..x.rank()).find(|&axis| x.shape()[axis] == 0 || i32::try_from(x.shape()[axis]).is_err()) {
        Some(axis) => Err(format!("axis {axis} of {} has no elements, or more than an i32 counts", x.ty())),
        None => Ok(first),
    }
}

fn count(list: &[usize]) -> Tensor {
    Tensor::from_slice(&list.iter().map(|&i| i as i32).collect::<Vec<_>>(), [list.len()])
}

impl Tensor {
    /// This tensor with each of the last axes split in two, windows and the elements of one, where they do not overlap.
    #[track_caller]
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
        const METHOD: &str = "adaptive_avg_pool";
        if self.fault().is_some() {
            return self.clone();
        }
        let first = match Takes::Floats.check(self.dtype()).and_then(|()| first_axis(self, sizes)) {
            Ok(first) => first,
            Err(message) => return Tensor::poison(METHOD, message),
        };
        let from = wide(self);
        if let Some((tiles, within)) = from.tiles(first, sizes) {
            return tiles.mean(&within, false).to_dtype(self.dtype());
        }
        let mut pooled = from;
        for (i, &size) in sizes.iter().enumerate() {
            let n = pooled.shape()[first + i];
            if n != size {
                let weights = shares(n, size, weights_dtype(self));
                pooled = along_axis(METHOD, &pooled, first + i, &weights);
            }
        }
        pooled.to_dtype(self.dtype())
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
        const METHOD: &str = "adaptive_max_pool";
        if self.fault().is_some() {
            return self.clone();
        }
        let first = match Takes::Numbers.check(self.dtype()).and_then(|()| first_axis(self, sizes)) {
            Ok(first) => first,
            Err(message) => return Tensor::poison(METHOD, message),
        };
        if let Some((tiles, within)) = self.tiles(first, sizes) {
            return tiles.max(&within, false);
        }
        let mut pooled = self.clone();
        for (i, &size) in sizes.iter().enumerate() {
            let (axis, n) = (first + i, pooled.shape()[first + i]);
            if n == size {
                continue;
            }
            // Windows of one length: a shorter one has its last element twice, which changes no maximum.
            let (starts, ends) = edges(n, size);
            let length = starts.iter().zip(&ends).map(|(start, end)| end - start).max().unwrap_or(1);
            let at = Tensor::arange(DType::I32, length).broadcast_to([size, length]);
            let column = |list: &[usize]| count(list).reshape([size, 1]);
            let (start, last) = (column(&starts), column(&ends) - 1.0);
            let dimensions = Dimensions::along(axis, pooled.rank(), 2);
            let windows = Tensor::apply(Gather { method: METHOD, dimensions }, &[&pooled, &(at + start).minimum(last)]);
            pooled = windows.max(&[axis as isize + 1], false);
        }
        pooled
    }
}

/// The weights `[m, n]` of means over windows.
#[track_caller]
fn shares(n: usize, m: usize, dtype: DType) -> Tensor {
    let (starts, ends) = edges(n, m);
    let (start, end) = (count(&starts).reshape([m, 1]), count(&ends).reshape([m, 1]));
    let at = Tensor::arange(DType::I32, n).broadcast_to([m, n]);
    at.ge(&start).and(at.lt(&end)).to_dtype(dtype) / (end - start).to_dtype(dtype)
}
