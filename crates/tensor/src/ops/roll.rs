//! Rolling elements along axes.

use crate::{AsAxes, Tensor};

impl Tensor {
    /// Shifts the elements by `shifts[i]` positions along `axes[i]`. Elements that leave at one end
    /// enter at the other (PyTorch's and NumPy's `roll`). An axis may be named more than once. Like
    /// `axes`, `shifts` is one integer or a list.
    ///
    /// Poisoned if there is not one shift for each axis, or if there is no such axis.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1i32, 2, 3], [3]);
    /// assert_eq!(x.roll(1, 0).eval()?.to_vec::<i32>()?, [3, 1, 2]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn roll(&self, shifts: impl AsAxes, axes: impl AsAxes) -> Tensor {
        Tensor::record("roll", || {
            let shifts = shifts.as_axes();
            let axes = axes.as_axes();
            self.live()?;
            if shifts.len() != axes.len() {
                return Err(format!(
                    "{shifts:?} and {axes:?} differ in length; pass one shift for each axis"
                )
                .into());
            }
            let mut rolled = self.clone();
            for (&shift, &axis) in shifts.iter().zip(axes) {
                let size = match self.shape().axis(axis) {
                    Ok(index) => self.shape()[index],
                    Err(message) => return Err(message.into()),
                };
                // A size of an axis fits an isize.
                let shift = if size == 0 { 0 } else { shift.rem_euclid(size as isize) as usize };
                if shift != 0 {
                    let head = rolled.narrow(axis, 0, size - shift);
                    let tail = rolled.narrow(axis, size - shift, shift);
                    rolled = Tensor::concatenate(&[&tail, &head], axis);
                }
            }
            Ok(rolled)
        })
    }
}
