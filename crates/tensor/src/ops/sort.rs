//! Sorting along an axis, of one tensor or several together, and `argsort`, `kthvalue` and
//! `median`, which are built on it.
//!
//! A sort also returns the original index of each element, which moves with it: no element is
//! compared with a result that XLA computed from the same expression in another loop. Its
//! derivative is a second sort, by these indices, which moves the cotangents back without a scatter.

use std::fmt::Write as _;

use fulmen_durable::messages::quantity;

use super::reduce::{Reducer, reductions};
use super::unary::methods;
use crate::as_tensor::as_tensors;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp};
use crate::scope::Refusal;
use crate::tensor::all_live;
use crate::{AsTensor, DType, Tensor, TensorType};

/// Sorts tensors of one shape together by the first `keys` of them. The last input holds the
/// indices along the axis.
#[derive(Debug)]
struct Sort {
    method: &'static str,
    axis: usize,
    keys: usize,
    descending: bool,
    /// The dtypes of the inputs.
    dtypes: Vec<DType>,
}

impl Operation for Sort {
    fn name(&self) -> &'static str {
        self.method
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        if let Some(i) = inputs.iter().position(|ty| ty.shape != inputs[0].shape) {
            return Err(format!(
                "tensor {i} is {} and the first is {}: the shapes differ",
                inputs[i], inputs[0]
            ));
        }
        if self.keys == 0 || self.keys >= inputs.len() {
            return Err(format!(
                "{} cannot have {}",
                quantity(inputs.len() - 1, "tensor"),
                quantity(self.keys, "key")
            ));
        }
        if let Some(ty) = inputs[..self.keys].iter().find(|ty| ty.dtype.is_complex()) {
            return Err(format!(
                "the complex numbers of {ty} have no order; sort by real(), imag() or abs()"
            ));
        }
        Ok(inputs.iter().map(|&ty| ty.clone()).collect())
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let original_index = &cx.outputs[cx.outputs.len() - 1];
        let with_cotangent: Vec<usize> =
            (0..cx.inputs.len()).filter(|&i| cx.cotangents[i].is_some()).collect();
        let cotangents: Vec<&Tensor> = cx.cotangents.iter().flatten().collect();
        let tensors = [&[original_index], cotangents.as_slice()].concat();
        let restored = Tensor::record_many("sort", tensors.len() + 1, || {
            sort_all("sort", &tensors, 1, self.axis, false)
        });
        let mut gradients = vec![None; cx.inputs.len()];
        for (&i, gradient) in with_cotangent.iter().zip(&restored[1..]) {
            gradients[i] = Some(gradient.clone());
        }
        gradients
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let mut arguments = Vec::new();
        for (i, &dtype) in self.dtypes.iter().enumerate() {
            let scalar = TensorType::scalar(dtype).stablehlo();
            arguments.push(format!("%a{i}: {scalar}, %b{i}: {scalar}"));
        }
        let (comparator, before) = self.comparator();
        format!(
            "\"stablehlo.sort\"({}) ({{ ^bb0({}): {comparator}\"stablehlo.return\"({before}) : (tensor<i1>) -> () }}) \
             {{dimension = {} : i64, is_stable = true}} : {}",
            cx.operands(),
            arguments.join(", "),
            self.axis,
            cx.signature()
        )
    }
}

impl Sort {
    /// The statements that compare the elements `a` and `b` by the first key, then by the next
    /// where they are equal, and the name of their result: whether `a` comes first.
    fn comparator(&self) -> (String, String) {
        let direction = if self.descending { "GT" } else { "LT" };
        let mut text = String::new();
        for (i, &dtype) in self.dtypes[..self.keys].iter().enumerate() {
            let scalar = TensorType::scalar(dtype).stablehlo();
            let mut a = format!("%a{i}");
            let mut b = format!("%b{i}");
            let mut kind = "";
            if let Some(nan) = nan(dtype) {
                // The total order distinguishes −0 from 0, and NaNs from each other. So every zero
                // becomes 0, and every NaN the same NaN.
                let _ = write!(text, "%z{i} = stablehlo.constant dense<0.0> : {scalar} ");
                let _ = write!(text, "%n{i} = stablehlo.constant dense<{nan}> : {scalar} ");
                for side in ["a", "b"] {
                    let x = format!("%{side}{i}");
                    let _ = write!(
                        text,
                        "{x}z = stablehlo.compare EQ, {x}, %z{i}, FLOAT : ({scalar}, {scalar}) -> tensor<i1> \
                         {x}y = stablehlo.select {x}z, %z{i}, {x} : tensor<i1>, {scalar} \
                         {x}n = stablehlo.compare NE, {x}, {x}, FLOAT : ({scalar}, {scalar}) -> tensor<i1> \
                         {x}x = stablehlo.select {x}n, %n{i}, {x}y : tensor<i1>, {scalar} "
                    );
                }
                (a, b, kind) = (format!("{a}x"), format!("{b}x"), ", TOTALORDER");
            }
            let signature = format!("({scalar}, {scalar}) -> tensor<i1> ");
            let _ = write!(
                text,
                "%first{i} = stablehlo.compare {direction}, {a}, {b}{kind} : {signature}"
            );
            let _ = write!(text, "%same{i} = stablehlo.compare EQ, {a}, {b}{kind} : {signature}");
        }
        // From the last key to the first: an earlier key decides unless it is equal.
        let last = self.keys - 1;
        let mut before = format!("%first{last}");
        for i in (0..last).rev() {
            let _ = write!(
                text,
                "%also{i} = stablehlo.and %same{i}, {before} : tensor<i1> \
                 %before{i} = stablehlo.or %first{i}, %also{i} : tensor<i1> "
            );
            before = format!("%before{i}");
        }
        (text, before)
    }
}

/// NaN in MLIR's syntax, if the dtype has one.
pub(super) fn nan(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F32 => Some("0x7FC00000"),
        DType::F64 => Some("0x7FF8000000000000"),
        DType::Bf16 => Some("0x7FC0"),
        DType::F16 => Some("0x7E00"),
        _ => None,
    }
}

/// Sorts tensors together. The last result holds the original index (i32) of each element along the
/// axis.
fn sort_all(
    method: &'static str,
    tensors: &[&Tensor],
    keys: usize,
    axis: usize,
    descending: bool,
) -> Result<Vec<Tensor>, Refusal> {
    all_live(tensors.iter().copied())?;
    let index = Tensor::iota(DType::I32, tensors[0].shape(), axis as isize);
    let inputs = [tensors, &[&index]].concat();
    let dtypes = inputs.iter().map(|t| t.dtype()).collect();
    let sorted = Tensor::apply_all(Sort { method, axis, keys, descending, dtypes }, &inputs);
    all_live(&sorted)?;
    Ok(sorted)
}

/// The index of `axis`, after a check that an i32 can count its elements.
fn sortable(t: &Tensor, axis: isize) -> Result<usize, String> {
    match t.shape().axis(axis)? {
        a if t.shape()[a] > i32::MAX as usize => {
            Err(format!("axis {axis} of {} has more elements than an i32 can count", t.shape()))
        }
        a => Ok(a),
    }
}

methods! {
    /// The elements sorted along `axis`, and the index (i32) of each before the sort:
    /// `(values, indices)` (PyTorch's `sort`). The sort is stable, and ascending unless
    /// `descending`. NaN counts as larger than all other elements; −0 and 0 count as equal.
    /// Gradients flow to the original elements.
    ///
    /// Poisoned for complex numbers, if there is no such axis, or if it has more elements than an
    /// i32 can count.
    sort(axis: isize, descending: bool) -> (Tensor, Tensor), |x| x.sorted("sort", axis, descending);

    /// The indices (i32) that sort the elements along `axis`: the second result of [`Tensor::sort`]
    /// (PyTorch's and NumPy's `argsort`).
    argsort(axis: isize, descending: bool) -> Tensor, |x| Ok(x.sorted("argsort", axis, descending)?.1);
}

impl Tensor {
    fn sorted(
        &self,
        method: &'static str,
        axis: isize,
        descending: bool,
    ) -> Result<(Tensor, Tensor), Refusal> {
        let axis = sortable(self.live()?, axis)?;
        let sorted = sort_all(method, &[self], 1, axis, descending)?;
        Ok((sorted[0].clone(), sorted[1].clone()))
    }

    /// Sorts tensors of one shape together along `axis` (JAX's `lax.sort` with `num_keys`). The
    /// first `keys` tensors are the keys: the second decides where the first is equal, and so on.
    /// The others are reordered along with them. The order is the same as in [`Tensor::sort`], and
    /// gradients flow to the original elements.
    ///
    /// Returns one tensor for each input. All are poisoned if the shapes differ, if `keys` is not
    /// from 1 to the number of tensors, if a key is complex, or if there is no such axis.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let lengths = Tensor::from_slice(&[3i32, 1, 2], [3]);
    /// let scores = Tensor::from_slice(&[0.3f32, 0.1, 0.2], [3]);
    /// let sorted = Tensor::sort_together(&[&lengths, &scores], 1, 0, false);
    /// assert_eq!(sorted[1].eval()?.to_vec::<f32>()?, [0.1, 0.2, 0.3]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn sort_together(
        tensors: &[impl AsTensor],
        keys: usize,
        axis: isize,
        descending: bool,
    ) -> Vec<Tensor> {
        Tensor::record_many("sort_together", tensors.len(), || {
            let tensors = as_tensors(tensors);
            all_live(tensors.iter().copied())?;
            let Some(first) = tensors.first() else { return Ok(Vec::new()) };
            let mut sorted =
                sort_all("sort_together", &tensors, keys, sortable(first, axis)?, descending)?;
            sorted.truncate(tensors.len());
            Ok(sorted)
        })
    }

    fn kth(
        &self,
        method: &'static str,
        k: usize,
        axis: isize,
        keepdim: bool,
    ) -> Result<(Tensor, Tensor), Refusal> {
        let (values, indices) = self.sorted(method, axis, false)?;
        if !(1..=self.size(axis)).contains(&k) {
            return Err(format!(
                "there is no element number {k} along axis {axis} of {}",
                self.shape()
            )
            .into());
        }
        let value = values.narrow(axis, k - 1, 1);
        let index = indices.narrow(axis, k - 1, 1);
        Ok(if keepdim { (value, index) } else { (value.squeeze(axis), index.squeeze(axis)) })
    }
}

reductions! {
    /// The `k`-th smallest element along `axis`, which is removed, and its index (i32):
    /// `(value, index)` (PyTorch's `kthvalue`). `k` counts from 1. NaN counts as larger than all
    /// other elements.
    ///
    /// Poisoned if `k` is not in `1..=n`, where `n` is the size of the axis.
    kthvalue, kthvalue_keepdim(k: usize, axis: isize) -> (Tensor, Tensor), |x, keepdim| x.kth("kthvalue", k, axis, keepdim);

    /// The median along `axis`, which is removed, and its index (i32): `(value, index)`, as in
    /// PyTorch. For an even number of elements, it is the smaller of the two in the middle. If
    /// elements are NaN, it is the first NaN.
    ///
    /// Poisoned if the axis is empty.
    median, median_keepdim(axis: isize) -> (Tensor, Tensor), |x, keepdim| median(x, axis, keepdim);
}

fn median(x: &Tensor, axis: isize, keepdim: bool) -> Result<(Tensor, Tensor), Refusal> {
    let n = x.shape()[x.shape().axis(axis)?];
    if n == 0 {
        return Err(format!("{} has no element along axis {axis}", x.shape()).into());
    }
    let (value, index) = x.kth("median", n.div_ceil(2), axis, keepdim)?;
    if !x.dtype().is_float() {
        return Ok((value, index));
    }
    let nan = x.ne(x);
    let first = nan.argmax_keepdim(axis);
    // A sum reads the first NaN, so that the gradient flows to it.
    let is_first_nan = Tensor::iota(DType::I32, x.shape(), axis).eq(&first);
    let not_a_number =
        is_first_nan.select(x, &x.zeros_like()).reduce("median", Reducer::Sum, &[axis], keepdim);
    let has_nan = nan.reduce("any", Reducer::Or, &[axis], keepdim);
    let nan_index = first.reshape(has_nan.shape().to_vec());
    Ok((has_nan.select(&not_a_number, &value), has_nan.select(&nan_index, &index)))
}
