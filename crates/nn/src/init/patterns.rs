//! Initial values with many zeros: the identity as a matrix and as a convolution, and sparse
//! matrices.

use fulmen_tensor::{DType, Refusal, Tensor, TensorType, random};

/// Ones on the diagonal.
pub(super) fn eye(ty: &TensorType) -> Result<Tensor, Refusal> {
    let [rows, columns] = *ty.shape.dims() else {
        return Err(format!("Eye is for a matrix [rows, columns], not for {ty}").into());
    };
    let row = Tensor::iota(DType::I64, [rows, 1], 0);
    Ok(row.eq(Tensor::iota(DType::I64, [1, columns], 1)).to_dtype(ty.dtype))
}

/// One at the center of the kernel from input `i` to output `i` of each group.
pub(super) fn dirac(ty: &TensorType, groups: usize) -> Result<Tensor, Refusal> {
    let dims = ty.shape.dims();
    let [out, inputs, kernel @ ..] = dims else {
        return Err(format!(
            "Dirac is for a convolution's weight [out, in, kernel, ..], not for {ty}"
        )
        .into());
    };
    if kernel.is_empty() || kernel.contains(&0) {
        return Err(format!(
            "Dirac is for a convolution's weight [out, in, kernel, ..], not for {ty}"
        )
        .into());
    }
    if groups == 0 || out % groups != 0 {
        return Err(format!("{groups} groups do not divide the {out} outputs of {ty}").into());
    }
    let axis_shape = |axis: usize, size: usize| {
        let mut shape = vec![1; dims.len()];
        shape[axis] = size;
        shape
    };
    let output = Tensor::iota(DType::I64, axis_shape(0, *out), 0);
    let output_in_group =
        if groups == 1 { output } else { output.remainder((out / groups) as f64) };
    let mut is_one = output_in_group.eq(Tensor::iota(DType::I64, axis_shape(1, *inputs), 1));
    for (i, &size) in kernel.iter().enumerate() {
        is_one = is_one.and(
            Tensor::iota(DType::I64, axis_shape(i + 2, size), i as isize + 2).eq((size / 2) as f64),
        );
    }
    Ok(is_one.to_dtype(ty.dtype))
}

/// Normal numbers, with zeros at random positions of each column.
pub(super) fn sparse(
    key: &Tensor,
    dtype: DType,
    ty: &TensorType,
    sparsity: f64,
    std: f64,
) -> Result<Tensor, Refusal> {
    let [rows, _] = *ty.shape.dims() else {
        return Err(format!("Sparse is for a matrix [rows, columns], not for {ty}").into());
    };
    if !((0.0..=1.0).contains(&sparsity) && std.is_finite() && std >= 0.0) {
        let message = format!(
            "the fraction of zeros {sparsity} must be between 0 and 1, and the standard deviation {std} >= 0"
        );
        return Err(message.into());
    }
    let zeros = (sparsity * rows as f64).ceil();
    let values = random::normal(&random::fold_in(key, 0), dtype, &ty.shape) * std;
    // The rank of each element among the random numbers of its column.
    let order = random::bits(&random::fold_in(key, 1), &ty.shape).argsort(0, false);
    Ok(order.argsort(0, false).ge(zeros).select(&values, &values.zeros_like()))
}
