//! Mixed precision: which operations compute in a narrow dtype, and which in f32.
//!
//! Out of scope: type promotion without autocast; see [`DType::promote`].

use std::cell::Cell;

use crate::{DType, Tensor};

thread_local! {
    static DTYPE: Cell<Option<DType>> = const { Cell::new(None) };
}

/// The operations whose 16-bit operands become f32 under autocast, because their results can leave
/// the range or the precision of 16 bits. The list has every operation of PyTorch's list that
/// Fulmen has, plus `mean`, `var`, `std`, `logsumexp` and other functions made of exponentials and
/// logarithms.
const F32_METHODS: &[&str] = &[
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

/// Runs `record` with autocast to `dtype` (PyTorch's `torch.autocast`, Flax's `dtype`). `None`
/// turns autocast off within `record`.
///
/// - [`Tensor::matmul`], [`Tensor::dot_general`] and [`Tensor::convolution`] convert floating-point
///   operands to `dtype`, and the result has this dtype. XLA accumulates in f32. With an f64
///   operand the product stays in f64.
/// - Softmax, `sum`, `prod`, `mean`, `var`, `std`, `norm`, `cumsum`, `exp`, `log`, `pow`, `rsqrt`,
///   `reciprocal`, `tan`, `sinh`, `cosh`, `asin`, `acos` and similar functions convert 16-bit
///   floats to f32, and the result is f32.
/// - Every other operation computes in the dtype that its operands promote to.
///
/// Weights and their gradients keep their dtype: only the recorded expression converts them. Calls
/// nest, and the innermost setting applies. The setting is local to the thread, and ends with the
/// call, even by a panic.
///
/// If `dtype` is not floating-point, products are poisoned.
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
/// assert_eq!(grad(&p.max(1).sum_all(), &[&w])[0].dtype(), DType::F32);
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

/// Converts the operand of a product as autocast requires; `promoted` is the dtype that both
/// operands promote to.
pub(crate) fn product_operand(operand: &Tensor, promoted: DType) -> Result<Tensor, String> {
    match DTYPE.get() {
        Some(dtype) if !dtype.is_float() => {
            Err(format!("autocast to {dtype}: products need a floating-point dtype"))
        }
        Some(dtype) if promoted.is_float() && promoted != DType::F64 => Ok(operand.to_dtype(dtype)),
        _ => Ok(operand.to_dtype(promoted)),
    }
}

/// Converts the operand of `method` as autocast requires: a 16-bit float to f32 if the method
/// computes in f32.
pub(crate) fn method_operand(method: &str, operand: &Tensor) -> Tensor {
    if DTYPE.get().is_some() && F32_METHODS.contains(&method) {
        wide(operand)
    } else {
        operand.clone()
    }
}

/// Converts 16-bit floats to f32, in which long sums are exact enough, whether autocast is on or
/// not. Other dtypes stay.
pub fn wide(x: &Tensor) -> Tensor {
    if x.dtype().is_half() { x.to_dtype(DType::F32) } else { x.clone() }
}

/// The dtype of the result of `method` when its operand had `dtype` and it was computed [`wide`].
pub(crate) fn result_dtype(method: &str, dtype: DType) -> DType {
    let stays_wide = DTYPE.get().is_some() && F32_METHODS.contains(&method) && dtype.is_half();
    if stays_wide { DType::F32 } else { dtype }
}
