//! [`Rectangle`]: a part of a tensor, and its memory layout within another one.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// `extent` elements of a tensor along each axis, starting at `offset`.
///
/// ```
/// use fulmen_checkpoint::Rectangle;
///
/// let rows = Rectangle::new([2, 0], [2, 8]);
/// let columns = Rectangle::new([0, 6], [4, 2]);
/// assert_eq!(rows.intersection(&columns), Some(Rectangle::new([2, 6], [2, 2])));
/// assert_eq!(rows.to_string(), "[2:4, 0:8]");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rectangle {
    /// The first index along each axis.
    pub offset: Vec<u64>,
    /// The number of elements along each axis.
    pub extent: Vec<u64>,
}

impl Rectangle {
    /// Makes a rectangle with this first index and this number of elements along each axis.
    pub fn new(offset: impl Into<Vec<u64>>, extent: impl Into<Vec<u64>>) -> Rectangle {
        Rectangle { offset: offset.into(), extent: extent.into() }
    }

    /// The whole tensor.
    pub fn whole(shape: &[u64]) -> Rectangle {
        Rectangle { offset: vec![0; shape.len()], extent: shape.to_vec() }
    }

    /// The number of elements; `None` if it does not fit 64 bits.
    pub(crate) fn elements(&self) -> Option<u64> {
        elements(&self.extent)
    }

    /// Checks that the rectangle lies within a tensor of this shape.
    pub(crate) fn check_within(&self, shape: &[u64]) -> Result<()> {
        let axes_fit = || {
            let mut axes = self.offset.iter().zip(&self.extent).zip(shape);
            axes.all(|((offset, extent), size)| {
                offset.checked_add(*extent).is_some_and(|end| end <= *size)
            })
        };
        if self.offset.len() == shape.len() && self.extent.len() == shape.len() && axes_fit() {
            return Ok(());
        }
        Err(Error::usage(format!("{self} is not within a tensor of shape {shape:?}")))
    }

    /// The intersection of two rectangles of one tensor, unless it is empty.
    pub fn intersection(&self, other: &Rectangle) -> Option<Rectangle> {
        let ends = |rectangle: &Rectangle| -> Vec<(u64, u64)> {
            rectangle
                .offset
                .iter()
                .zip(&rectangle.extent)
                .map(|(offset, extent)| (*offset, offset.saturating_add(*extent)))
                .collect()
        };
        let a = ends(self);
        let b = ends(other);
        let axis = |((a, b), (c, d)): (&(u64, u64), &(u64, u64))| {
            let start = *a.max(c);
            let end = *b.min(d);
            (start < end).then(|| (start, end - start))
        };
        let axes = if a.len() == b.len() {
            a.iter().zip(&b).map(axis).collect::<Option<Vec<_>>>()?
        } else {
            return None;
        };
        let (offset, extent) = axes.into_iter().unzip();
        Some(Rectangle { offset, extent })
    }

    /// The position of the element at `index` in this rectangle, in row-major order.
    fn position(&self, index: &[u64]) -> u64 {
        let axes = index.iter().zip(&self.offset).zip(&self.extent);
        axes.fold(0, |position, ((index, offset), extent)| position * extent + (index - offset))
    }

    /// Calls `copy` for each run of elements of `common` that is contiguous both here and in
    /// `other`, in ascending order, with its position here, its position in `other`, and its
    /// length.
    pub(crate) fn runs(
        &self,
        other: &Rectangle,
        common: &Rectangle,
        mut copy: impl FnMut(u64, u64, u64) -> Result<()>,
    ) -> Result<()> {
        let rank = common.extent.len();
        // The remaining axes are whole in both.
        let whole = |axis: &usize| {
            common.extent[*axis] == self.extent[*axis]
                && common.extent[*axis] == other.extent[*axis]
        };
        let split = (0..rank).rev().find(|axis| !whole(axis)).unwrap_or(0);
        let run: u64 = common.extent[split.min(rank)..].iter().product();
        let mut index = common.offset.clone();
        loop {
            copy(self.position(&index), other.position(&index), run)?;
            // The next index along the axes before `split`.
            let mut axis = split;
            loop {
                if axis == 0 {
                    return Ok(());
                }
                axis -= 1;
                index[axis] += 1;
                if index[axis] < common.offset[axis] + common.extent[axis] {
                    break;
                }
                index[axis] = common.offset[axis];
            }
        }
    }

    /// Divides a tensor into rectangles of at most `max_elements` elements each, consecutive in
    /// row-major order.
    pub(crate) fn slabs(shape: &[u64], max_elements: u64) -> Vec<Rectangle> {
        if elements(shape) == Some(0) {
            return Vec::new();
        }
        // The first axis along which a single index is small enough.
        let inner = |axis: usize| shape[axis + 1..].iter().product::<u64>();
        let Some(axis) = (0..shape.len()).find(|axis| inner(*axis) <= max_elements.max(1)) else {
            return vec![Rectangle::whole(shape)];
        };
        let step = (max_elements / inner(axis)).max(1);
        let outer: u64 = shape[..axis].iter().product();
        let mut slabs = Vec::new();
        for mut number in 0..outer {
            let mut whole = Rectangle::whole(shape);
            for before in (0..axis).rev() {
                (whole.offset[before], whole.extent[before]) = (number % shape[before], 1);
                number /= shape[before];
            }
            let mut start = 0;
            while start < shape[axis] {
                let mut slab = whole.clone();
                (slab.offset[axis], slab.extent[axis]) = (start, step.min(shape[axis] - start));
                start += slab.extent[axis];
                slabs.push(slab);
            }
        }
        slabs
    }
}

/// The number of elements of a shape; `None` if it does not fit 64 bits.
pub(crate) fn elements(shape: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size))
}

impl fmt::Display for Rectangle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<String> = self
            .offset
            .iter()
            .zip(&self.extent)
            .map(|(offset, extent)| format!("{offset}:{}", offset.saturating_add(*extent)))
            .collect();
        write!(f, "[{}]", axes.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_follow_each_other_and_cover_a_tensor_once() {
        for shape in [Vec::new(), vec![7], vec![3, 5], vec![2, 3, 4], vec![1, 1, 9], vec![0, 4]] {
            for max_elements in [1, 2, 4, 5, 100] {
                let whole = Rectangle::whole(&shape);
                let mut next = 0;
                for slab in Rectangle::slabs(&shape, max_elements) {
                    assert!(slab.elements().is_some_and(|elements| elements <= max_elements));
                    assert_eq!(
                        whole.position(&slab.offset),
                        next,
                        "{shape:?} {max_elements} {slab}"
                    );
                    next += slab.elements().unwrap_or_default();
                }
                assert_eq!(Some(next), elements(&shape));
            }
        }
    }
}
