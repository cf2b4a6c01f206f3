//! Slices with strides, at positions that are known while recording.

use std::ops::{Bound, RangeBounds};

use crate::Mesh;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::shape::within_reach;
use crate::tensor::Kind;
use crate::whole_axes::WholeAxes;
use crate::{Tensor, TensorType};

#[derive(Debug)]
pub(crate) struct Slice {
    pub(crate) start: Vec<usize>,
    pub(crate) limit: Vec<usize>,
    pub(crate) stride: Vec<usize>,
}

impl Slice {
    /// The number of elements along axis `i` of the result.
    fn count(&self, i: usize) -> usize {
        (self.limit[i] - self.start[i]).div_ceil(self.stride[i])
    }
}

impl Operation for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let from = &inputs[0].shape;
        let rank = from.rank();
        if [&self.start, &self.limit, &self.stride].iter().any(|v| v.len() != rank) {
            return Err(format!(
                "start, limit and stride must have one entry for each of the {rank} axes of {from}"
            ));
        }
        for axis in 0..rank {
            let start = self.start[axis];
            let limit = self.limit[axis];
            let stride = self.stride[axis];
            if start > limit || limit > from[axis] || stride == 0 {
                return Err(format!(
                    "{start}..{limit} in steps of {stride} is not within axis {axis} of {from}"
                ));
            }
            within_reach("stride", axis, stride as i128)?;
        }
        let shape: Vec<usize> = (0..rank).map(|i| self.count(i)).collect();
        one(TensorType::new(inputs[0].dtype, shape))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let from = cx.input(0).shape();
        let low: Vec<i64> = self.start.iter().map(|&s| s as i64).collect();
        let interior: Vec<usize> = self.stride.iter().map(|s| s - 1).collect();
        let high: Vec<i64> = (0..from.rank())
            .map(|i| {
                let covered = match self.count(i) {
                    0 => 0,
                    n => (n - 1) * self.stride[i] + 1,
                };
                (from[i] - self.start[i] - covered) as i64
            })
            .collect();
        let zero = Tensor::full(cx.output().dtype(), [], 0.0);
        vec![Some(cx.cotangent().pad(&zero, &low, &high, &interior))]
    }
    fn check(&self, _: &Mesh, inputs: &[&TensorType]) -> Result<WholeAxes, String> {
        let axes = 0..self.stride.len();
        let is_start = |axis| self.start[axis] == 0 && self.limit[axis] < inputs[0].shape[axis];
        let whole = axes.clone().filter(|&axis| self.stride[axis] > 1).collect();
        Ok(WholeAxes { are_copies: axes.into_iter().any(is_start), ..WholeAxes::of_both(whole) })
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let ranges: Vec<String> = (0..self.start.len())
            .map(|i| format!("{}:{}:{}", self.start[i], self.limit[i], self.stride[i]))
            .collect();
        format!("stablehlo.slice {} [{}] : {}", cx.operand(0), ranges.join(", "), cx.signature())
    }
}

impl Tensor {
    /// The elements `start[i], start[i] + stride[i], …` below `limit[i]` along each axis `i` (JAX's
    /// `lax.slice`). Poisoned if a list does not have one entry for each axis, if a range is out of
    /// bounds, or if a stride is 0.
    #[track_caller]
    pub fn slice(&self, start: &[usize], limit: &[usize], stride: &[usize]) -> Tensor {
        Tensor::apply(
            Slice { start: start.into(), limit: limit.into(), stride: stride.into() },
            &[self],
        )
    }

    /// The `length` elements from `start` on along one axis (PyTorch's `narrow`). Poisoned if they
    /// are not within the axis.
    #[track_caller]
    pub fn narrow(&self, axis: isize, start: usize, length: usize) -> Tensor {
        Tensor::record("narrow", || {
            self.live()?;
            let axis = self.shape().axis(axis)?;
            let mut from = vec![0; self.rank()];
            let mut limit = self.shape().to_vec();
            let size = limit[axis];
            from[axis] = start;
            limit[axis] = start.saturating_add(length);
            if limit[axis] > size {
                return Err(format!(
                    "{length} elements from {start} on are not within axis {axis} of {}",
                    self.shape()
                )
                .into());
            }
            Ok(self.slice(&from, &limit, &vec![1; self.rank()]))
        })
    }

    /// Every `step`-th element of a range along one axis, like Python's `x[start:end:step]`.
    /// Negative bounds count from the end of the axis, and bounds beyond it are clamped. Poisoned
    /// if `step` is 0.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor};
    /// let x = Tensor::arange(DType::I32, 6);
    /// assert_eq!(x.slice_along(0, 1..-1, 2).eval()?.to_vec::<i32>()?, [1, 3]);
    /// assert_eq!(x.slice_along(0, -2.., 1).eval()?.to_vec::<i32>()?, [4, 5]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn slice_along(&self, axis: isize, range: impl RangeBounds<isize>, step: usize) -> Tensor {
        Tensor::record("slice_along", || {
            self.live()?;
            let axis = self.shape().axis(axis)?;
            let size = self.shape()[axis];
            // A size of an axis fits an isize.
            let edge =
                |i: isize| if i < 0 { i.saturating_add(size as isize).max(0) } else { i.min(size as isize) } as usize;
            // The index after -1 is the end of the axis, not 0.
            let after = |i: isize| if i == -1 { size } else { edge(i.saturating_add(1)) };
            let start = match range.start_bound() {
                Bound::Unbounded => 0,
                Bound::Included(&i) => edge(i),
                Bound::Excluded(&i) => after(i),
            };
            let end = match range.end_bound() {
                Bound::Unbounded => size,
                Bound::Included(&i) => after(i),
                Bound::Excluded(&i) => edge(i),
            };
            let mut from = vec![0; self.rank()];
            let mut limit = self.shape().to_vec();
            let mut stride = vec![1; self.rank()];
            (from[axis], limit[axis], stride[axis]) = (start, end.max(start), step);
            Ok(self.slice(&from, &limit, &stride))
        })
    }

    /// The slice at one index along `axis`, which is removed (PyTorch's `select(dim, index)`,
    /// `x[index]`). A negative index counts from the end. Poisoned if there is no such index.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1i32, 2, 3, 4], [2, 2]);
    /// assert_eq!(x.index(0, -1).eval()?.to_vec::<i32>()?, [3, 4]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn index(&self, axis: isize, index: isize) -> Tensor {
        Tensor::record("index", || {
            self.live()?;
            let checked_axis = self.shape().axis(axis)?;
            let size = self.shape()[checked_axis] as isize;
            let position = if index < 0 { index.saturating_add(size) } else { index };
            if !(0..size).contains(&position) {
                return Err(format!(
                    "there is no index {index} along axis {checked_axis} of {}",
                    self.shape()
                )
                .into());
            }
            Ok(self.narrow(axis, position as usize, 1).squeeze(axis))
        })
    }

    /// If this tensor is the result of [`Tensor::index`] along the first axis, returns the indexed
    /// tensor and the index. A loop over rows of one tensor uses this to read that tensor, instead
    /// of a stack of its rows.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor};
    /// let layers = Tensor::zeros(DType::F32, [3, 4]);
    /// let row = layers.index(0, 2);
    /// let (whole, index) = row.row_of().unwrap();
    /// assert!(whole.is(&layers) && index == 2 && layers.row_of().is_none());
    /// ```
    pub fn row_of(&self) -> Option<(&Tensor, usize)> {
        let operation = |tensor: &Tensor| match &tensor.node.kind {
            Kind::Operation(operation) => Some(operation.clone()),
            _ => None,
        };
        operation(self).filter(|operation| operation.name() == "reshape")?;
        let cut = self.node.inputs.first()?;
        let index = *operation(cut)?.downcast::<Slice>()?.start.first()?;
        let whole = cut.node.inputs.first()?;
        let is_row = cut.shape()[0] == 1 && whole.shape()[1..] == self.shape()[..];
        is_row.then_some((whole, index))
    }
}

/// The positions of windows along a list of axes, with one number for each axis.
pub(crate) struct WindowGrid<'a> {
    /// The number of windows.
    pub(crate) counts: &'a [usize],
    /// The distance from one window to the next.
    pub(crate) stride: &'a [usize],
    /// The number of elements of a window.
    pub(crate) sizes: &'a [usize],
    /// The distance from one element of a window to the next.
    pub(crate) dilation: &'a [usize],
}

/// The windows of a tensor along these axes, the last axis fastest.
pub(crate) fn windows(t: &Tensor, axes: &[usize], grid: &WindowGrid<'_>) -> Vec<Tensor> {
    let WindowGrid { counts, stride: window_stride, sizes, dilation } = grid;
    (0..counts.iter().product())
        .map(|window: usize| {
            let mut start = vec![0; t.rank()];
            let mut limit = t.shape().to_vec();
            let mut stride = vec![1; t.rank()];
            let mut rest = window;
            for (i, &axis) in axes.iter().enumerate().rev() {
                start[axis] = rest % counts[i] * window_stride[i];
                limit[axis] = start[axis] + (sizes[i] - 1) * dilation[i] + 1;
                stride[axis] = dilation[i];
                rest /= counts[i];
            }
            t.slice(&start, &limit, &stride)
        })
        .collect()
}
