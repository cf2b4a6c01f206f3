//! Products built on [`Tensor::dot_general`]: `einsum`, `tensordot` and `outer`.
//!
//! `equation.rs` parses the equation. This file multiplies the operands from left to right, two at
//! a time. An axis whose label is no longer needed is summed as early as possible.

mod equation;

use self::equation::{Equation, Label};
use super::common_dtype::common_dtype_of_all;
use super::reduce::Reducer;
use crate::as_tensor::as_tensors;
use crate::scope::Refusal;
use crate::tensor::all_live;
use crate::{AsAxes, AsTensor, Shape, Tensor};

/// A tensor with a label for each of its axes.
#[derive(Clone)]
struct LabeledTensor {
    tensor: Tensor,
    labels: Vec<Label>,
}

impl LabeledTensor {
    /// Reduces a repeated label to the diagonal, and removes axes of size 1 that broadcast to a
    /// larger size.
    fn new(tensor: &Tensor, labels: &[Label], sizes: &[usize]) -> Result<LabeledTensor, Refusal> {
        let mut labeled = LabeledTensor { tensor: tensor.clone(), labels: labels.to_vec() };
        let mut axis = 0;
        while axis < labeled.labels.len() {
            let label = labeled.labels[axis];
            if labeled.tensor.shape()[axis] == 1 && sizes[label] != 1 {
                labeled.tensor = labeled.tensor.squeeze(axis as isize);
                labeled.labels.remove(axis);
            } else if let Some(second) =
                (axis + 1..labeled.labels.len()).find(|&i| labeled.labels[i] == label)
            {
                if labeled.tensor.shape()[second] == 1 && sizes[label] != 1 {
                    labeled.tensor = labeled.tensor.squeeze(second as isize);
                    labeled.labels.remove(second);
                    continue;
                }
                labeled.tensor = labeled.tensor.diagonals(0, axis as isize, second as isize)?;
                labeled.labels.remove(second);
                labeled.labels.remove(axis);
                labeled.labels.push(label);
            } else {
                axis += 1;
            }
        }
        Ok(labeled)
    }

    /// Sums over the axes whose labels are not needed.
    fn keep(self, needed: &[Label]) -> LabeledTensor {
        let axes: Vec<isize> = (0..self.labels.len())
            .filter(|&i| !needed.contains(&self.labels[i]))
            .map(|i| i as isize)
            .collect();
        if axes.is_empty() {
            return self;
        }
        let tensor = self.tensor.reduce("einsum", Reducer::Sum, &axes, false);
        LabeledTensor {
            tensor,
            labels: self.labels.into_iter().filter(|l| needed.contains(l)).collect(),
        }
    }

    /// The product with `other`, summed over shared labels that are no longer needed.
    fn times(self, other: LabeledTensor, needed: &[Label]) -> LabeledTensor {
        let shared = |l: &Label| other.labels.contains(l);
        let is_kept = |l: &Label| needed.contains(l) || (self.labels.contains(l) && shared(l));
        let operand_labels: Vec<Label> =
            self.labels.iter().chain(&other.labels).copied().filter(is_kept).collect();
        let a = self.keep(&operand_labels);
        let b = other.keep(&operand_labels);
        let position = |labels: &[Label], l: Label| labels.iter().position(|&m| m == l);
        let mut batch = (Vec::new(), Vec::new());
        let mut contracted = (Vec::new(), Vec::new());
        let mut labels = Vec::new();
        for (i, &label) in a.labels.iter().enumerate() {
            if let Some(j) = position(&b.labels, label) {
                let pairs = if needed.contains(&label) { &mut batch } else { &mut contracted };
                pairs.0.push(i);
                pairs.1.push(j);
                if needed.contains(&label) {
                    labels.push(label);
                }
            }
        }
        labels.extend(a.labels.iter().filter(|&&l| position(&b.labels, l).is_none()));
        labels.extend(b.labels.iter().filter(|&&l| position(&a.labels, l).is_none()));
        let product = a.tensor.product(
            "einsum",
            &b.tensor,
            (&batch.0, &batch.1),
            (&contracted.0, &contracted.1),
        );
        LabeledTensor { tensor: product, labels }
    }
}

impl Tensor {
    /// The sum of products given by an equation in Einstein notation (NumPy's, PyTorch's and JAX's
    /// `einsum`). The equation has one list of labels (letters) for each operand, separated by
    /// commas, then `->` and the labels of the result.
    ///
    /// - A label names an axis. Axes with the same label share an index. A label that the result
    ///   lacks is summed over.
    /// - A label that occurs twice in one operand selects its diagonal.
    /// - `...` means the axes without a label, which are aligned from the last and broadcast. If
    ///   the result lacks it, they are summed.
    /// - Without `->`, the result has the axes of `...`, then each label that occurs once, in
    ///   alphabetical order.
    /// - An axis of size 1 broadcasts. Spaces are ignored.
    ///
    /// Operands are multiplied from left to right. Different dtypes are promoted by
    /// [`DType::promote`](crate::DType::promote) before any product or sum. Under
    /// [`autocast`](crate::autocast), products are computed like those of [`Tensor::matmul`].
    ///
    /// Poisoned if the equation is invalid or does not match the operands. The message points at
    /// the wrong character.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor};
    /// let q = Tensor::ones(DType::F32, [2, 5, 4, 8]);
    /// let k = Tensor::ones(DType::F32, [2, 7, 4, 8]);
    /// let scores = Tensor::einsum("bqhd,bkhd->bhqk", &[&q, &k]);
    /// assert_eq!(scores.ty().to_string(), "f32[2, 4, 5, 7]");
    ///
    /// let wrong = Tensor::einsum("bqhd,bkhe->bhqz", &[&q, &k]).fault().unwrap().to_string();
    /// assert!(wrong.contains("the label 'z' of the result does not occur in any operand"), "{wrong}");
    /// ```
    #[track_caller]
    pub fn einsum(equation: &str, operands: &[impl AsTensor]) -> Tensor {
        Tensor::record("einsum", || {
            let operands = as_tensors(operands);
            all_live(operands.iter().copied())?;
            let shapes: Vec<&Shape> = operands.iter().map(|t| t.shape()).collect();
            let equation = Equation::read(equation, &shapes)?;
            // Promote before any sum: a narrow integer may not hold it.
            let dtype = common_dtype_of_all(&operands)?;
            let mut parts = Vec::with_capacity(operands.len());
            for (operand, labels) in operands.iter().zip(&equation.operands) {
                parts.push(LabeledTensor::new(&operand.to_dtype(dtype), labels, &equation.sizes)?);
            }
            let mut parts = parts.into_iter();
            // An equation has at least one operand.
            let Some(mut product) = parts.next() else {
                return Err("there are no operands".into());
            };
            while let Some(next) = parts.next() {
                let later = parts.as_slice().iter().flat_map(|p| &p.labels);
                let needed: Vec<Label> = equation.result.iter().chain(later).copied().collect();
                product = product.times(next, &needed);
                product.tensor.live()?;
            }
            let product = product.keep(&equation.result);
            product.tensor.live()?;
            // Every label of the result still has an axis: only axes smaller than the size of their
            // label were removed.
            let order = equation
                .result
                .iter()
                .filter_map(|l| product.labels.iter().position(|m| m == l))
                .collect();
            Ok(product.tensor.permute_axes(order))
        })
    }

    /// Contracts the axes `axes.0` of this tensor with the axes `axes.1` of `other` (NumPy's and
    /// PyTorch's `tensordot`). The result has the remaining axes of this tensor, then those of
    /// `other`.
    ///
    /// Poisoned if the two lists differ in length, if paired sizes differ, or if there is no such
    /// axis.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor};
    /// let x = Tensor::ones(DType::F32, [2, 3, 4]);
    /// let w = Tensor::ones(DType::F32, [4, 3, 5]);
    /// assert_eq!(x.tensordot(&w, ([1, 2], [1, 0])).ty().to_string(), "f32[2, 5]");
    /// ```
    #[track_caller]
    pub fn tensordot(&self, other: impl AsTensor, axes: (impl AsAxes, impl AsAxes)) -> Tensor {
        Tensor::record("tensordot", || {
            let other = other.as_tensor();
            all_live([self, other])?;
            let left = self.shape().indices(axes.0.as_axes())?;
            let right = other.shape().indices(axes.1.as_axes())?;
            Ok(self.product("tensordot", other, (&[], &[]), (&left, &right)))
        })
    }

    /// The outer product of two vectors: `[n]` and `[m]` give `[n, m]` (PyTorch's and NumPy's
    /// `outer`).
    ///
    /// Poisoned if either operand is not a vector.
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
