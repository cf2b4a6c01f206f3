//! Moving elements along axes, those that leave at one end coming in at the other.

use crate::Tensor;

impl Tensor {
    /// The elements moved by `shifts[i]` places along `axes[i]`; what leaves at the end comes in at the beginning
    /// (PyTorch's and NumPy's `roll`). An axis may be named more than once.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1i32, 2, 3], [3]);
    /// assert_eq!(x.roll(&[1], &[0]).eval()?.to_vec::<i32>()?, [3, 1, 2]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn roll(&self, shifts: &[isize], axes: &[isize]) -> Tensor {
        Tensor::record("roll", || {
            self.live()?;
            if shifts.len() != axes.len() {
                return Err(format!("{shifts:?} and {axes:?} differ in length; give one shift for each axis").into());
            }
            let mut rolled = self.clone();
            for (&shift, &axis) in shifts.iter().zip(axes) {
                let size = match self.shape().axis(axis) {
                    Ok(at) => self.shape()[at],
                    Err(message) => return Err(message.into()),
                };
                // A size is at most the address space, so that it is an isize.
                let shift = if size == 0 { 0 } else { shift.rem_euclid(size as isize) as usize };
                if shift != 0 {
                    let (head, tail) = (rolled.narrow(axis, 0, size - shift), rolled.narrow(axis, size - shift, shift));
                    rolled = Tensor::concatenate(&[&tail, &head], axis);
                }
            }
            Ok(rolled)
        })
    }
}
