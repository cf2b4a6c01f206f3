//! Mixed precision while recording: which operations compute in a narrow dtype and which in f32.
//!
//! Not here: which dtypes meet without autocast; see [`DType::promote`].

use std::cell::Cell;

use crate::{DType, Tensor};

thread_local! {
    static DTYPE: Cell<Option<DType>> = const { Cell::new(None) };
}

/// The operations whose 16-bit operands become f32 under autocast: sums and powers of many elements leave the range or
/// the precision of 16 bits. The list is PyTorch's, where Fulmen has the operation, with `mean`, `var`, `std`,
/// `logsumexp` and what else is made of exponentials and logarithms.
const IN_F32: &[&str] = &[
    "acos",
    "asin",
    "cosh",
    "sinh",
    "tan",
    "reciprocal",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logaddexp2",
    "xlogy",
    "erf_inv",
    "rsqrt",
    "pow",
    "sum",
    "mean",
    "var",
    "softmax",
    "log_softmax",
    "logsumexp",
    "prod",
    "cumsum",
    "cumprod",
    "logcumsumexp",
    "norm",
    "var_corrected",
    "std",
    "std_corrected",
];

/// Runs `record`, in which products are computed in `dtype` (PyTorch's `torch.autocast`, Flax's `dtype`); with `None`,
/// each operation in the dtype of its operands, as outside.
///
/// - [`Tensor::matmul`], [`Tensor::dot_general`] and [`Tensor::convolution`] convert floating-point operands to `dtype`
///   and give a result of it; XLA sums in f32. An f64 operand keeps the product in f64.
/// - Softmax, `sum`, `prod`, `mean`, `var`, `std`, `norm`, `cumsum`, `exp`, `log`, `pow`, `rsqrt`, `reciprocal`, `tan`,
///   `sinh`, `cosh`, `asin`, `acos` and their kin take 16-bit floats as f32 and give f32.
/// - Every other operation computes in the dtype that its operands promote to.
///
/// Weights stay what they are: only the recorded expression converts them, so their gradients have their dtype. Calls
/// nest, the innermost rules, and the setting ends with the call, by a panic too. It is that of this thread.
///
/// A `dtype` that is not floating-point poisons the products.
///
/// ```
/// use fulmen_tensor::{DType, Tensor, autocast, grad};
///
/// let w = Tensor::from_slice(&[1.0f32, -2.0, 0.5, 3.0], [2, 2]);
/// let x = Tensor::from_slice(&[1.0f32, 2.0], [1, 2]);
/// let (y, p) = autocast(Some(DType::Bf16), || {
///     let y = x.matmul(&w);
///     let p = y.softmax(-1);
///     (y, p)
/// });
/// assert_eq!((y.dtype(), p.dtype()), (DType::Bf16, DType::F32));
/// assert_eq!(grad(&p.max(&[1]).sum_all(), &[&w])[0].dtype(), DType::F32);
/// ```
pub fn autocast<T>(dtype: Option<DType>, record: impl FnOnce() -> T) -> T {
    struct Restore(Option<DType>);
    impl Drop for Restore {
        fn drop(&mut self) {
            DTYPE.set(self.0);
        }
    }
    let _restore = Restore(DTYPE.replace(dtype));
    record()
}

/// The operand of a product as autocast wants it, given the dtype that both operands promote to.
pub(crate) fn for_product(operand: &Tensor, promoted: DType) -> Result<Tensor, String> {
    match DTYPE.get() {
        Some(dtype) if !dtype.is_float() => {
            Err(format!("autocast to {dtype}: products are computed in a floating-point dtype"))
        }
        Some(dtype) if promoted.is_float() && promoted != DType::F64 => Ok(operand.to_dtype(dtype)),
        _ => Ok(operand.to_dtype(promoted)),
    }
}

/// The operand of `method` as autocast wants it: f32 instead of a 16-bit float where the method computes in f32.
pub(crate) fn for_method(method: &str, operand: &Tensor) -> Tensor {
    if DTYPE.get().is_some() && IN_F32.contains(&method) { wide(operand) } else { operand.clone() }
}

/// A 16-bit float as f32, in which long sums are exact enough, whatever autocast says; anything else as it is.
pub(crate) fn wide(x: &Tensor) -> Tensor {
    if x.dtype().is_half() { x.to_dtype(DType::F32) } else { x.clone() }
}

/// The dtype that the result of `method`, computed [`wide`], has when its operand had `dtype`.
pub(crate) fn result_of(method: &str, dtype: DType) -> DType {
    let stays_wide = DTYPE.get().is_some() && IN_F32.contains(&method) && dtype.is_half();
    if stays_wide { DType::F32 } else { dtype }
}
