//! Repeating the whole tensor, or each element, along axes.

use super::reshape::product;
use crate::Tensor;

impl Tensor {
    /// Repeats the tensor `copies[i]` times along each axis (NumPy's and PyTorch's `tile`). Axes
    /// are aligned from the last: if the tensor or the list is shorter, it gets leading ones.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1i32, 2], [2]);
    /// assert_eq!(x.tile(&[2, 2]).eval()?.to_vec::<i32>()?, [1, 2, 1, 2, 1, 2, 1, 2]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn tile(&self, copies: &[usize]) -> Tensor {
        Tensor::record("tile", || {
            self.live()?;
            let rank = self.rank().max(copies.len());
            let aligned = |sizes: &[usize]| [vec![1; rank - sizes.len()], sizes.to_vec()].concat();
            let sizes = aligned(self.shape());
            let copies = aligned(copies);
            // Each axis becomes two, [1, size], and the first is broadcast.
            let pairs = |first: &dyn Fn(usize) -> usize| {
                (0..rank).flat_map(|a| [first(a), sizes[a]]).collect::<Vec<_>>()
            };
            let result: Vec<usize> = (0..rank).map(|a| product(&[copies[a], sizes[a]])).collect();
            Ok(self.reshape(pairs(&|_| 1)).broadcast_to(pairs(&|a| copies[a])).reshape(result))
        })
    }

    /// Like [`Tensor::tile`], but `copies` must have at least as many entries as the tensor has
    /// axes (PyTorch's `repeat`). Additional entries are new leading axes.
    #[track_caller]
    pub fn repeat(&self, copies: &[usize]) -> Tensor {
        Tensor::record("repeat", || {
            if copies.len() < self.live()?.rank() {
                return Err(format!("{copies:?} names fewer axes than {} has", self.shape()).into());
            }
            Ok(self.tile(copies))
        })
    }

    /// Repeats each slice along `axis` `copies` times in a row (PyTorch's `repeat_interleave`,
    /// NumPy's `repeat`).
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1i32, 2], [2]);
    /// assert_eq!(x.repeat_interleave(3, 0).eval()?.to_vec::<i32>()?, [1, 1, 1, 2, 2, 2]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn repeat_interleave(&self, copies: usize, axis: isize) -> Tensor {
        Tensor::record("repeat_interleave", || {
            self.live()?;
            let axis = self.shape().axis(axis)?;
            let mut spread = self.shape().to_vec();
            let mut result = self.shape().to_vec();
            spread.insert(axis + 1, copies);
            result[axis] = product(&[result[axis], copies]);
            Ok(self.unsqueeze(axis as isize + 1).broadcast_to(spread).reshape(result))
        })
    }
}
