//! Evenly spaced numbers and grids, built on [`Tensor::iota`].

use super::constant::holds;
use crate::as_tensor::as_tensors;
use crate::tensor::all_live;
use crate::{AsTensor, DType, Tensor, TensorType};

impl Tensor {
    /// The `⌈(stop − start)/step⌉` numbers `start, start + step, start + 2·step, …` below `stop`,
    /// or above `stop` if `step` is negative (PyTorch's and NumPy's `arange(start, stop, step)`).
    /// To count from 0, use [`Tensor::arange`].
    ///
    /// Poisoned if `step` is 0, if a bound or `step` is not finite, if `dtype` cannot hold the
    /// numbers, or if it is `bool`.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor};
    /// let x = Tensor::arange_step(DType::I32, 7.0, 0.0, -3.0);
    /// assert_eq!(x.eval()?.to_vec::<i32>()?, [7, 4, 1]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn arange_step(dtype: DType, start: f64, stop: f64, step: f64) -> Tensor {
        Tensor::record("arange_step", || {
            let count = ((stop - start) / step).ceil().max(0.0);
            if step == 0.0 || !start.is_finite() || !count.is_finite() || !step.is_finite() {
                return Err(format!(
                    "{start} to {stop} in steps of {step} is not a finite sequence of numbers"
                )
                .into());
            }
            if !holds(dtype, start) || (!dtype.is_float() && step != step.trunc()) {
                return Err(
                    format!("{start} to {stop} in steps of {step} do not fit {dtype}").into()
                );
            }
            let last = start + step * (count - 1.0).max(0.0);
            if !holds(dtype, last) {
                return Err(format!("the last number, {last}, does not fit {dtype}").into());
            }
            // A narrow integer dtype cannot count the elements of its own range.
            let compute_dtype = match dtype {
                DType::I8 | DType::I16 | DType::U8 | DType::U16 => DType::I32,
                _ if dtype.is_half() => DType::F32,
                _ => dtype,
            };
            // The conversion saturates; a sequence that is too long is an error.
            let index = Tensor::try_iota(TensorType::new(compute_dtype, [count as usize]), 0)?;
            // Unsigned integers count down by subtraction.
            let offset = index * step.abs();
            let start = Tensor::full(compute_dtype, [], start);
            Ok(if step < 0.0 {
                (start - offset).to_dtype(dtype)
            } else {
                (start + offset).to_dtype(dtype)
            })
        })
    }

    /// `n` evenly spaced numbers from `start` to `stop`, inclusive: `start·(1 − t) + stop·t` with
    /// `t = i/(n − 1)` (PyTorch's and NumPy's `linspace`). If `n` is 1, the number is `start`.
    /// 16-bit floats are computed as f32.
    ///
    /// Poisoned if `dtype` is not a floating-point type.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor};
    /// assert_eq!(Tensor::linspace(DType::F32, 1.0, 2.0, 3).eval()?.to_vec::<f32>()?, [1.0, 1.5, 2.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn linspace(dtype: DType, start: f64, stop: f64, n: usize) -> Tensor {
        Tensor::record("linspace", || {
            if !dtype.is_float() {
                return Err(format!("gives floating-point numbers, not {dtype}").into());
            }
            let compute_dtype = if dtype.is_half() { DType::F32 } else { dtype };
            let index = Tensor::try_iota(TensorType::new(compute_dtype, [n]), 0)?;
            if n < 2 {
                return Ok((index + start).to_dtype(dtype));
            }
            let t = &index / (n - 1) as f64;
            let between = (1.0 - &t) * start + t * stop;
            // Rounding must not change the last number.
            Ok(index
                .eq((n - 1) as f64)
                .select(&Tensor::full(compute_dtype, [], stop), &between)
                .to_dtype(dtype))
        })
    }

    /// Coordinate grids of vectors with `n₀, n₁, …` elements: one tensor of shape `[n₀, n₁, …]` for
    /// each vector. Tensor `i` repeats vector `i` along all axes except `i` (NumPy's and PyTorch's
    /// `meshgrid` with `indexing="ij"`).
    ///
    /// All results are poisoned if any input is not a vector.
    #[track_caller]
    pub fn meshgrid(vectors: &[impl AsTensor]) -> Vec<Tensor> {
        Tensor::record_many("meshgrid", vectors.len(), || {
            let vectors = as_tensors(vectors);
            all_live(vectors.iter().copied())?;
            if let Some(i) = vectors.iter().position(|t| t.rank() != 1) {
                return Err(format!("takes vectors, but tensor {i} is {}", vectors[i].ty()).into());
            }
            let shape: Vec<usize> = vectors.iter().map(|t| t.shape()[0]).collect();
            Ok(vectors
                .iter()
                .enumerate()
                .map(|(axis, t)| t.broadcast_along(shape.clone(), &[axis]))
                .collect())
        })
    }
}
