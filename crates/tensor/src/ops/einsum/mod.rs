//! Products by Einstein's notation, and others that [`Tensor::dot_general`] is under: `einsum`, `tensordot`, `outer`.
//!
//! The equation is read in `equation.rs`. Here the operands are brought together from left to right, two at a time: an
//! axis whose label is no longer needed is summed as early as can be.

mod equation;

use self::equation::{Equation, Label};
use super::promote::common_dtype_of_all;
use super::reduce::Reducer;
use crate::scope::Refusal;
use crate::tensor::all_live;
use crate::{AsTensor, Shape, Tensor};

/// A tensor with a label for each of its axes.
#[derive(Clone)]
struct Labelled {
    tensor: Tensor,
    labels: Vec<Label>,
}

impl Labelled {
    /// An axis that occurs twice becomes its diagonal; one whose size broadcasts to a larger one vanishes.
    fn new(tensor: &Tensor, labels: &[Label], sizes: &[usize]) -> Result<Labelled, Refusal> {
        let mut this = Labelled { tensor: tensor.clone(), labels: labels.to_vec() };
        let mut axis = 0;
        while axis < this.labels.len() {
            let label = this.labels[axis];
            if this.tensor.shape()[axis] == 1 && sizes[label] != 1 {
                this.tensor = this.tensor.squeeze(axis as isize);
                this.labels.remove(axis);
            } else if let Some(second) = (axis + 1..this.labels.len()).find(|&i| this.labels[i] == label) {
                if this.tensor.shape()[second] == 1 && sizes[label] != 1 {
                    this.tensor = this.tensor.squeeze(second as isize);
                    this.labels.remove(second);
                    continue;
                }
                this.tensor = this.tensor.diagonals(0, axis as isize, second as isize)?;
                this.labels.remove(second);
                this.labels.remove(axis);
                this.labels.push(label);
            } else {
                axis += 1;
            }
        }
        Ok(this)
    }

    /// Sums over the axes whose label is not among those that are needed.
    fn keep(self, needed: &[Label]) -> Labelled {
        let gone: Vec<isize> =
            (0..self.labels.len()).filter(|&i| !needed.contains(&self.labels[i])).map(|i| i as isize).collect();
        if gone.is_empty() {
            return self;
        }
        let tensor = self.tensor.reduce("einsum", Reducer::Sum, &gone, false);
        Labelled { tensor, labels: self.labels.into_iter().filter(|l| needed.contains(l)).collect() }
    }

    /// The product with another, summed over the shared labels that are no longer needed.
    fn times(self, other: Labelled, needed: &[Label]) -> Labelled {
        let shared = |l: &Label| other.labels.contains(l);
        let of_either = |l: &Label| needed.contains(l) || (self.labels.contains(l) && shared(l));
        let wanted: Vec<Label> = self.labels.iter().chain(&other.labels).copied().filter(of_either).collect();
        let (a, b) = (self.keep(&wanted), other.keep(&wanted));
        let place = |labels: &[Label], l: Label| labels.iter().position(|&m| m == l);
        let (mut batch, mut contracted) = ((vec![], vec![]), (vec![], vec![]));
        let mut labels = vec![];
        for (i, &label) in a.labels.iter().enumerate() {
            if let Some(j) = place(&b.labels, label) {
                let pairs = if needed.contains(&label) { &mut batch } else { &mut contracted };
                pairs.0.push(i);
                pairs.1.push(j);
                if needed.contains(&label) {
                    labels.push(label);
                }
            }
        }
        labels.extend(a.labels.iter().filter(|&&l| place(&b.labels, l).is_none()));
        labels.extend(b.labels.iter().filter(|&&l| place(&a.labels, l).is_none()));
        let product = a.tensor.product("einsum", &b.tensor, (&batch.0, &batch.1), (&contracted.0, &contracted.1));
        Labelled { tensor: product, labels }
    }
}

impl Tensor {
    /// The sum of products that an equation in Einstein's notation names: one list of labels (letters) for each operand,
    /// with commas between them, then `->` and the labels of the result.
    ///
    /// - A label is an axis. Axes with one label run together, and a label that the result lacks is summed over.
    /// - A label twice in one operand is its diagonal.
    /// - `...` are the axes without a label, which broadcast from the last; it may be left out of the result,
    ///   which sums them.
    /// - Without `->` the result has the axes of `...` and then each label that occurs once, in alphabetical order.
    /// - An axis of size 1 broadcasts. Blanks mean nothing.
    ///
    /// Operands are taken together from left to right. Different dtypes meet by [`DType::promote`](crate::DType::promote)
    /// before anything is multiplied or summed, and under [`autocast`](crate::autocast) products are computed as those of [`Tensor::matmul`].
    ///
    /// Poisoned if the equation cannot be read or does not fit the operands: the message points into it.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor};
    /// let (q, k) = (Tensor::ones(DType::F32, [2, 5, 4, 8]), Tensor::ones(DType::F32, [2, 7, 4, 8]));
    /// let scores = Tensor::einsum("bqhd,bkhd->bhqk", &[&q, &k]);
    /// assert_eq!(scores.ty().to_string(), "f32[2, 4, 5, 7]");
    ///
    /// let wrong = Tensor::einsum("bqhd,bkhe->bhqz", &[&q, &k]).fault().unwrap().to_string();
    /// assert!(wrong.contains("the label 'z' of the result does not occur in any operand"), "{wrong}");
    /// ```
    #[track_caller]
    pub fn einsum(equation: &str, operands: &[&Tensor]) -> Tensor {
        Tensor::record("einsum", || {
            all_live(operands.iter().copied())?;
            let shapes: Vec<&Shape> = operands.iter().map(|t| t.shape()).collect();
            let equation = Equation::read(equation, &shapes)?;
            // Before anything is summed: a narrow integer may not hold the sum.
            let dtype = common_dtype_of_all(operands)?;
            let mut parts = Vec::with_capacity(operands.len());
            for (operand, labels) in operands.iter().zip(&equation.operands) {
                parts.push(Labelled::new(&operand.to_dtype(dtype), labels, &equation.sizes)?);
            }
            let mut parts = parts.into_iter();
            // An equation has at least one operand.
            let Some(mut product) = parts.next() else { return Err("there are no operands".into()) };
            while let Some(next) = parts.next() {
                let later = parts.as_slice().iter().flat_map(|p| &p.labels);
                let needed: Vec<Label> = equation.result.iter().chain(later).copied().collect();
                product = product.times(next, &needed);
                product.tensor.live()?;
            }
            let product = product.keep(&equation.result);
            product.tensor.live()?;
            // Labels whose axes of size 1 all vanished are axes of size 1 still: there are none, since sizes are the largest.
            let order = equation.result.iter().filter_map(|l| product.labels.iter().position(|m| m == l)).collect();
            Ok(product.tensor.permuted(order))
        })
    }

    /// The product over pairs of axes: `axes.0` of this tensor with `axes.1` of the other; the result has the other axes
    /// of this tensor, then the other's (NumPy's and PyTorch's `tensordot`).
    ///
    /// Poisoned if there are not as many axes on both sides, if their sizes differ, or if there is no such axis.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor};
    /// let (x, w) = (Tensor::ones(DType::F32, [2, 3, 4]), Tensor::ones(DType::F32, [4, 3, 5]));
    /// assert_eq!(x.tensordot(&w, (&[1, 2], &[1, 0])).ty().to_string(), "f32[2, 5]");
    /// ```
    #[track_caller]
    pub fn tensordot(&self, other: impl AsTensor, axes: (&[isize], &[isize])) -> Tensor {
        Tensor::record("tensordot", || {
            let other = other.as_tensor();
            all_live([self, other])?;
            let found =
                |t: &Tensor, axes: &[isize]| axes.iter().map(|&a| t.shape().axis(a)).collect::<Result<Vec<_>, _>>();
            let (left, right) = (found(self, axes.0)?, found(other, axes.1)?);
            Ok(self.product("tensordot", other, (&[], &[]), (&left, &right)))
        })
    }

    /// The outer product of two vectors: `[n]` and `[m]` give `[n, m]`, each element by each other.
    ///
    /// Poisoned if one is not a vector.
    #[track_caller]
    pub fn outer(&self, other: impl AsTensor) -> Tensor {
        Tensor::record("outer", || {
            let other = other.as_tensor();
            all_live([self, other])?;
            if let Some(t) = [self, other].into_iter().find(|t| t.rank() != 1) {
                return Err(format!("takes two vectors, but one is {}", t.ty()).into());
            }
            Ok(self.product("outer", other, (&[], &[]), (&[], &[])))
        })
    }
}
