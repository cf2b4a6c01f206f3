//! Padding modes that repeat or mirror elements.
//!
//! Out of scope: StableHLO's `pad` with a single value (`pad.rs`).

use crate::Tensor;
use crate::shape::within_reach;

/// The mode of [`Tensor::pad_mode`]. These are PyTorch's modes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum PadMode {
    /// A constant number.
    Constant(f64),
    /// The elements mirrored at the edge: `c b | a b c | b a`. The padding must be less than the
    /// size of the axis.
    Reflect,
    /// The element at the edge: `a a | a b c | c c`.
    Replicate,
    /// The elements at the other end: `b c | a b c | a b`. The padding must not exceed the size of
    /// the axis.
    Circular,
    /// 0, or `false`.
    #[default]
    Zeros,
}

impl PadMode {
    /// Checks that an axis of this size can be padded by up to `most` elements on a side.
    fn check(self, axis: usize, size: usize, most: i64) -> Result<(), String> {
        let most = i128::from(most);
        let size = size as i128;
        let problem = match self {
            _ if most <= 0 => return Ok(()),
            PadMode::Reflect if most >= size => {
                "reflect padding must be less than the number of elements"
            }
            PadMode::Circular if most > size => {
                "circular padding must not exceed the number of elements"
            }
            PadMode::Replicate if size == 0 => "there is no element to repeat",
            _ => return Ok(()),
        };
        Err(format!("{problem}: padding {most} of axis {axis}, which has {size}"))
    }
}

impl Tensor {
    /// Pads the last `padding.len()` axes by `padding[i]` elements before and after (PyTorch's
    /// `nn.functional.pad`, which lists the last axis first). The entries are in the order of the
    /// axes. Negative amounts cut elements off.
    ///
    /// Poisoned if an axis has too few elements for the mode.
    ///
    /// ```
    /// use fulmen_tensor::{PadMode, Tensor};
    /// let x = Tensor::from_slice(&[1i32, 2, 3], [3]);
    /// assert_eq!(x.pad_mode(&[(2, 1)], PadMode::Reflect).eval()?.to_vec::<i32>()?, [3, 2, 1, 2, 3, 2]);
    /// assert_eq!(x.pad_mode(&[(2, 1)], PadMode::Circular).eval()?.to_vec::<i32>()?, [2, 3, 1, 2, 3, 1]);
    /// assert_eq!(x.pad_mode(&[(-1, 1)], PadMode::Constant(9.0)).eval()?.to_vec::<i32>()?, [2, 3, 9]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn pad_mode(&self, padding: &[(i64, i64)], mode: PadMode) -> Tensor {
        Tensor::record("pad_mode", || {
            self.live()?;
            let Some(first) = self.rank().checked_sub(padding.len()) else {
                return Err(format!(
                    "padding {padding:?} names more axes than {} has",
                    self.shape()
                )
                .into());
            };
            let mut padded = self.clone();
            for (i, &(low, high)) in padding.iter().enumerate() {
                let axis = first + i;
                let size = self.shape()[first + i];
                within_reach("padding", axis, low.into())?;
                within_reach("padding", axis, high.into())?;
                mode.check(axis, size, low.max(high))?;
                if size as i128 + i128::from(low) + i128::from(high) < 0 {
                    return Err(format!(
                        "cutting {} and {} off axis {axis} of {} leaves a negative size",
                        -low,
                        -high,
                        self.shape()
                    )
                    .into());
                }
                padded = match mode {
                    PadMode::Constant(_) | PadMode::Zeros => padded,
                    _ => padded.extended(
                        axis as isize,
                        low.max(0) as usize,
                        high.max(0) as usize,
                        mode,
                    ),
                };
            }
            // Elements are cut off last, since the padding may copy them.
            let rank = self.rank();
            let mut low = vec![0; rank];
            let mut high = vec![0; rank];
            for (i, &(before, after)) in padding.iter().enumerate() {
                let is_constant = matches!(mode, PadMode::Constant(_) | PadMode::Zeros);
                (low[first + i], high[first + i]) =
                    if is_constant { (before, after) } else { (before.min(0), after.min(0)) };
            }
            if low.iter().chain(&high).all(|&amount| amount == 0) {
                return Ok(padded);
            }
            let value = match mode {
                // This rejects a number that the dtype cannot hold, as operators do.
                PadMode::Constant(value) => crate::Operand::to_tensor_like(&value, self),
                _ => Tensor::full(self.dtype(), [], 0.0),
            };
            Ok(padded.pad(&value, &low, &high, &vec![0; rank]))
        })
    }

    /// Pads one axis by `low` elements before and `high` after. The caller has checked that the
    /// axis has enough elements.
    fn extended(&self, axis: isize, low: usize, high: usize, mode: PadMode) -> Tensor {
        let size = self.size(axis);
        let before = || match mode {
            PadMode::Reflect => self.narrow(axis, 1, low).flip(axis),
            PadMode::Circular => self.narrow(axis, size - low, low),
            _ => self.narrow(axis, 0, 1).repeat_interleave(low, axis),
        };
        let after = || match mode {
            PadMode::Reflect => self.narrow(axis, size - 1 - high, high).flip(axis),
            PadMode::Circular => self.narrow(axis, 0, high),
            _ => self.narrow(axis, size - 1, 1).repeat_interleave(high, axis),
        };
        let before = (low > 0).then(before);
        let after = (high > 0).then(after);
        let parts: Vec<Tensor> = before.into_iter().chain([self.clone()]).chain(after).collect();
        if parts.len() == 1 { self.clone() } else { Tensor::concatenate(&parts, axis) }
    }
}
