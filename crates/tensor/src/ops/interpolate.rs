//! Resampling of images and other grids to finer or coarser grids (PyTorch's
//! `nn.functional.interpolate`).
//!
//! Axes are resampled one after the other. Nearest-neighbor resampling is a broadcast or a slice if
//! the step is regular, else a gather. Weighted sums are in `resample.rs`.

use super::dtype_set::DTypeSet;
use super::gather::{Dimensions, Gather};
use super::resample::{Taps, along_axis};
use crate::Tensor;
use crate::scope::Refusal;

/// The mode of [`Tensor::interpolate`]. These are PyTorch's modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpolation {
    /// The element at `⌊i·in/out⌋`: PyTorch's `nearest`.
    Nearest,
    /// The element whose center is nearest, at `⌊(i + ½)·in/out⌋`: PyTorch's `nearest-exact`.
    NearestExact,
    /// The two nearest elements along each axis, weighted by their distance: linear, bilinear,
    /// trilinear.
    Linear {
        /// Whether the centers of the first and last elements are aligned, instead of the edges of
        /// the grid.
        align_corners: bool,
    },
    /// The four nearest elements along each axis, weighted by Keys' cubic kernel with a = −¾:
    /// bicubic.
    Cubic {
        /// Whether the centers of the first and last elements are aligned, instead of the edges of
        /// the grid.
        align_corners: bool,
    },
    /// The mean of the elements that the new element covers, like [`Tensor::adaptive_avg_pool`].
    Area,
}

/// The largest size of an axis: its elements are listed while recording.
const MAX_SIZE: usize = 1 << 20;

/// A grid of `to` new elements over `from` old elements, with `step` old elements for each new one.
struct Grid {
    from: usize,
    to: usize,
    step: f64,
}

impl Grid {
    /// The position of each new element among the old ones.
    fn positions(&self, align_corners: bool) -> Vec<f64> {
        let aligned = if self.to > 1 { (self.from - 1) as f64 / (self.to - 1) as f64 } else { 0.0 };
        (0..self.to)
            .map(|i| {
                if align_corners { i as f64 * aligned } else { (i as f64 + 0.5) * self.step - 0.5 }
            })
            .collect()
    }

    /// The old element that each new one copies. It is computed in f32, like PyTorch: at an edge
    /// between two elements, rounding decides.
    fn nearest(&self, exact: bool) -> Vec<usize> {
        let shift = if exact { 0.5f32 } else { 0.0 };
        let index = |i: usize| ((i as f32 + shift) * self.step as f32).floor() as usize;
        (0..self.to).map(|i| index(i).min(self.from - 1)).collect()
    }

    /// The taps of a new element. `weights` apply to the old elements from `first` on; positions
    /// outside of the grid read the element at the edge.
    fn taps(&self, first: i64, weights: &[f64]) -> Taps {
        let mut taps: Taps = Vec::new();
        for (index, &weight) in (first..).zip(weights) {
            let index = index.clamp(0, self.from as i64 - 1) as usize;
            match taps.last_mut() {
                Some(last) if last.0 == index => last.1 += weight,
                _ => taps.push((index, weight)),
            }
        }
        taps.retain(|tap| tap.1 != 0.0);
        taps
    }
}

fn linear(position: f64) -> (i64, Vec<f64>) {
    let position = position.max(0.0);
    let fraction = position - position.floor();
    (position.floor() as i64, vec![1.0 - fraction, fraction])
}

fn cubic(position: f64) -> (i64, Vec<f64>) {
    const A: f64 = -0.75;
    let near = |t: f64| ((A + 2.0) * t - (A + 3.0)) * t * t + 1.0;
    let far = |t: f64| ((A * t - 5.0 * A) * t + 8.0 * A) * t - 4.0 * A;
    let t = position - position.floor();
    (position.floor() as i64 - 1, vec![far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)])
}

/// Maps a position to the first old element with a weight, and the weights from it on.
type Kernel = fn(f64) -> (i64, Vec<f64>);

impl Tensor {
    /// Resamples the last `sizes.len()` axes to the given sizes (PyTorch's
    /// `nn.functional.interpolate(size=…)`).
    ///
    /// Nearest-neighbor modes accept any dtype, the other modes only floating-point numbers. 16-bit
    /// floats are summed as f32.
    ///
    /// Poisoned if there are more sizes than axes, or if an old or new size is not from 1 to 2²⁰.
    ///
    /// ```
    /// use fulmen_tensor::{Interpolation, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 3.0], [1, 1, 2]);
    /// let y = x.interpolate(&[4], Interpolation::Linear { align_corners: false });
    /// assert_eq!(y.eval()?.to_vec::<f32>()?, [1.0, 1.5, 2.5, 3.0]);
    /// assert_eq!(x.interpolate(&[4], Interpolation::Nearest).eval()?.to_vec::<f32>()?, [1.0, 1.0, 3.0, 3.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn interpolate(&self, sizes: &[usize], mode: Interpolation) -> Tensor {
        Tensor::record("interpolate", || {
            self.live()?;
            let Some(first) = self.rank().checked_sub(sizes.len()) else {
                return Err(
                    format!("the sizes {sizes:?} name more axes than {} has", self.ty()).into()
                );
            };
            let steps: Vec<f64> = (0..sizes.len())
                .map(|i| self.shape()[first + i] as f64 / sizes[i] as f64)
                .collect();
            self.resample("interpolate", sizes, &steps, mode)
        })
    }

    /// Resamples the last `scales.len()` axes to `scales[i]` times as many elements, rounded down
    /// (PyTorch's `nn.functional.interpolate(scale_factor=…)`). The positions of the elements
    /// follow from the scales, not from the rounded sizes.
    ///
    /// Poisoned under the same conditions as [`Tensor::interpolate`], and if a scale is not a
    /// positive number.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Interpolation, Tensor};
    /// let x = Tensor::zeros(DType::F32, [8, 3, 10, 10]);
    /// assert_eq!(x.interpolate_by(&[2.0, 0.75], Interpolation::Nearest).ty().to_string(), "f32[8, 3, 20, 7]");
    /// ```
    #[track_caller]
    pub fn interpolate_by(&self, scales: &[f64], mode: Interpolation) -> Tensor {
        Tensor::record("interpolate_by", || {
            self.live()?;
            let Some(first) = self.rank().checked_sub(scales.len()) else {
                return Err(
                    format!("the scales {scales:?} name more axes than {} has", self.ty()).into()
                );
            };
            if scales.iter().any(|scale| !scale.is_finite() || *scale <= 0.0) {
                return Err(format!("the scales {scales:?} must be positive numbers").into());
            }
            let size = |(i, scale): (usize, &f64)| {
                (self.shape()[first + i] as f64 * scale).floor() as usize
            };
            let sizes: Vec<usize> = scales.iter().enumerate().map(size).collect();
            let steps: Vec<f64> = scales.iter().map(|scale| 1.0 / scale).collect();
            self.resample("interpolate_by", &sizes, &steps, mode)
        })
    }

    /// Resamples with `steps[i]` old elements for each new one.
    fn resample(
        &self,
        method: &'static str,
        sizes: &[usize],
        steps: &[f64],
        mode: Interpolation,
    ) -> Result<Tensor, Refusal> {
        let first = self.rank() - sizes.len();
        let copies = matches!(mode, Interpolation::Nearest | Interpolation::NearestExact);
        if !copies {
            DTypeSet::Floats.check(self.dtype())?;
        }
        let old = &self.shape()[first..];
        if old.iter().chain(sizes).any(|size| !(1..=MAX_SIZE).contains(size)) {
            return Err(
                format!("the sizes {old:?} and {sizes:?} must be from 1 to {MAX_SIZE}").into()
            );
        }
        if mode == Interpolation::Area {
            return Ok(self.adaptive_avg_pool(sizes));
        }
        let mut result = self.clone();
        for (i, (&to, &step)) in sizes.iter().zip(steps).enumerate() {
            let grid = Grid { from: old[i], to, step };
            let axis = first + i;
            let (corners, kernel): (bool, Kernel) = match mode {
                Interpolation::Linear { align_corners } => (align_corners, linear),
                Interpolation::Cubic { align_corners } => (align_corners, cubic),
                _ => {
                    let positions = grid.nearest(mode == Interpolation::NearestExact);
                    result = result.copied(method, axis, &positions);
                    continue;
                }
            };
            let begins = grid.positions(corners).into_iter().map(kernel);
            let taps: Vec<Taps> =
                begins.map(|(first, weights)| grid.taps(first, &weights)).collect();
            let keeps =
                grid.from == to && taps.iter().enumerate().all(|(i, taps)| taps == &[(i, 1.0)]);
            if !keeps {
                result = along_axis(method, &result, axis, &taps);
            }
        }
        Ok(result)
    }

    /// The elements at these positions, in ascending order, along an axis.
    fn copied(&self, method: &'static str, axis: usize, positions: &[usize]) -> Tensor {
        let from = self.shape()[axis];
        let to = positions.len();
        if to.is_multiple_of(from)
            && positions.iter().enumerate().all(|(i, &position)| position == i / (to / from))
        {
            return if to == from {
                self.clone()
            } else {
                self.repeat_interleave(to / from, axis as isize)
            };
        }
        let step = if to > 1 { positions[1] - positions[0] } else { 1 };
        if step > 0
            && positions
                .iter()
                .enumerate()
                .all(|(i, &position)| position == positions[0] + i * step)
        {
            let start = positions[0] as isize;
            let end = (positions[0] + (to - 1) * step) as isize;
            return self.slice_along(axis as isize, start..=end, step);
        }
        let indices = Tensor::from_slice(
            &positions.iter().map(|&position| position as i32).collect::<Vec<_>>(),
            [to],
        );
        let dimensions = Dimensions::along(axis, self.rank(), 1);
        Tensor::apply(Gather { method, dimensions }, &[self, &indices])
    }
}
