//! [`rms_norm_residual`]: a residual connection and the RMS norm of its sum, in one pass over memory,
//! forward and backward.

use fulmen_error::Result;
use fulmen_tensor::{AsTensor, DType, Refusal, Tensor, TensorType, custom_gradient};

use crate::rows::Rows;
use crate::{Index, KERNELS, Kernel, Tile};

/// The types of a call, whose rows are whole blocks.
struct Norm {
    rows: Rows,
    dtype: DType,
    weight: DType,
    eps: f64,
}

/// The RMS norm of the sum of `x` and a residual, and the sum: `y = s/√(mean(s²) + eps)·weight` with
/// `s = x + residual`, the means over the last axis (Zhang and Sennrich 2019, "Root Mean Square Layer
/// Normalization"). Sums are f32, or f64 if `x` is.
///
/// `x` and `residual` are `[…, width]` of one floating-point dtype, and `weight` is `[width]`. Both
/// results have the type of `x`. On several devices, each one computes all rows.
///
/// Poisoned if a type does not fit.
///
/// ```
/// use fulmen_kernels::rms_norm_residual;
/// use fulmen_tensor::Tensor;
///
/// let x = Tensor::from_slice(&[1.0f32, 2.0], [1, 2]);
/// let residual = Tensor::from_slice(&[2.0f32, 2.0], [1, 2]);
/// let weight = Tensor::from_slice(&[1.0f32, 10.0], [2]);
/// let [norm, sum] = rms_norm_residual(&x, &residual, &weight, 0.0);
/// assert_eq!(sum.eval()?.to_vec::<f32>()?, [3.0, 4.0]);
/// let norm = norm.eval()?.to_vec::<f32>()?; // √(mean(9, 16)) = √12.5
/// assert!((norm[0] - 3.0 / 12.5f32.sqrt()).abs() < 1e-6 && (norm[1] - 40.0 / 12.5f32.sqrt()).abs() < 1e-5);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn rms_norm_residual(
    x: impl AsTensor,
    residual: impl AsTensor,
    weight: impl AsTensor,
    eps: f64,
) -> [Tensor; 2] {
    KERNELS.record("rms_norm_residual", || {
        let inputs = [x.as_tensor(), residual.as_tensor(), weight.as_tensor()];
        for input in inputs {
            input.live()?;
        }
        let norm = Norm::new(inputs, eps)?;
        let shape = inputs[0].shape().clone();
        let backward_norm = Norm::new(inputs, eps)?;
        let forward = norm.forward_kernel().map_err(|error| error.to_string())?;
        let backward = norm.backward_kernel().map_err(|error| error.to_string())?;
        let shape_after = shape.clone();
        let results = custom_gradient(
            &inputs,
            move |inputs| {
                let rows = &norm.rows;
                let arguments = [rows.of(&inputs[0]), rows.of(&inputs[1]), inputs[2].unsqueeze(0)];
                let results = forward.call(&arguments);
                let cut = results.iter().map(|result| rows.cut(result).reshape(shape.dims()));
                cut.collect::<Vec<Tensor>>()
            },
            move |inputs, results, cotangents| {
                let rows = &backward_norm.rows;
                let [of_norm, of_sum] = [0, 1].map(|number| rows.of(&cotangents[number]));
                let arguments = [rows.of(&results[1]), inputs[2].unsqueeze(0), of_norm, of_sum];
                let results = backward.call(&arguments);
                let [of_x, of_weight] = &results[..] else { return results };
                let of_x = rows.cut(of_x).reshape(shape_after.dims());
                let of_weight = of_weight.squeeze(0).to_dtype(backward_norm.weight);
                vec![of_x.clone(), of_x, of_weight]
            },
        );
        let [norm, sum] = &results[..] else {
            return Err("the kernel has two results".into());
        };
        Ok([norm.clone(), sum.clone()])
    })
}

impl Norm {
    fn new([x, residual, weight]: [&Tensor; 3], eps: f64) -> Result<Norm, Refusal> {
        let width = x.size(-1);
        let fits = x.rank() > 0
            && x.ty() == residual.ty()
            && weight.shape().dims() == [width]
            && x.dtype().is_float()
            && weight.dtype().is_float();
        if !fits || x.shape().num_elements() == 0 {
            return Err(format!(
                "x must be floating-point [.., width] with elements, the residual of its type, and the weight [width]; \
                 got {}, {} and {}",
                x.ty(),
                residual.ty(),
                weight.ty()
            )
            .into());
        }
        let rows = Rows::new(x.shape().num_elements() / width, width);
        Ok(Norm { rows, dtype: x.dtype(), weight: weight.dtype(), eps })
    }

    /// The dtype of sums.
    fn wide(&self) -> DType {
        if self.dtype == DType::F64 || self.weight == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// `1/√(mean(s²) + eps)` for each row.
    fn scale(&self, sum: &Tile) -> Tile {
        ((sum * sum).sum(1) * (1.0 / self.rows.width as f64) + self.eps).rsqrt()
    }

    /// From x, the residual and the weight to the norm and the sum.
    fn forward_kernel(&self) -> Result<Kernel> {
        let Rows { padded, block, width, .. } = self.rows;
        let ty = TensorType::new(self.dtype, [padded, width]);
        let weight_ty = TensorType::new(self.weight, [1, width]);
        let wide = self.wide();
        Kernel::record("rms_norm_residual", &[padded / block], |k| {
            k.parallel(1);
            let of_step = || [k.program(0), Index::from(0)];
            let whole = || [Index::from(0), Index::from(0)];
            let x = k.input(&ty, &[block, width], of_step());
            let residual = k.input(&ty, &[block, width], of_step());
            let weight = k.input(&weight_ty, &[1, width], whole());
            let norm = k.output(&ty, &[block, width], of_step());
            let sum = k.output(&ty, &[block, width], of_step());
            let total = x.load().to_dtype(wide) + residual.load().to_dtype(wide);
            let rounded = total.to_dtype(self.dtype);
            sum.store(&rounded);
            let total = rounded.to_dtype(wide);
            let result = &total * self.scale(&total) * weight.load().to_dtype(wide);
            norm.store(&result.to_dtype(self.dtype));
        })
    }

    /// From the sum, the weight and the cotangents of both results to the cotangents of the sum and of
    /// the weight. With `n = s·r` and `g = weight·dy`, that of the sum is `r·(g − n·mean(g·n)) + ds`.
    fn backward_kernel(&self) -> Result<Kernel> {
        let Rows { padded, block, width, .. } = self.rows;
        let ty = TensorType::new(self.dtype, [padded, width]);
        let weight_ty = TensorType::new(self.weight, [1, width]);
        let wide = self.wide();
        let steps = padded / block;
        Kernel::record("rms_norm_residual_vjp", &[steps], |k| {
            let of_step = || [k.program(0), Index::from(0)];
            let whole = || [Index::from(0), Index::from(0)];
            let sum = k.input(&ty, &[block, width], of_step());
            let weight = k.input(&weight_ty, &[1, width], whole());
            let of_norm = k.input(&ty, &[block, width], of_step());
            let of_sum = k.input(&ty, &[block, width], of_step());
            let of_x = k.output(&ty, &[block, width], of_step());
            let of_weight = k.output(&TensorType::new(wide, [1, width]), &[1, width], whole());
            let total = k.scratch(wide, [1, width]);
            k.when(k.program(0).equals(0), || total.store(&k.full(wide, [1, width], 0.0)));
            let sum = sum.load().to_dtype(wide);
            let scale = self.scale(&sum);
            let normed = &sum * &scale;
            let of_norm = of_norm.load().to_dtype(wide);
            total.store(&(total.load() + (&of_norm * &normed).sum(0)));
            let scaled = of_norm * weight.load().to_dtype(wide);
            let mean = (&scaled * &normed).sum(1) * (1.0 / width as f64);
            let result = scale * (scaled - normed * mean) + of_sum.load().to_dtype(wide);
            of_x.store(&result.to_dtype(self.dtype));
            k.when(k.program(0).equals(steps as i32 - 1), || of_weight.store(&total.load()));
        })
    }
}

/// The kernels of a norm of several blocks.
pub(crate) fn examples() -> Result<Vec<Kernel>, Refusal> {
    let x = Tensor::zeros(DType::Bf16, [40, 8]);
    let weight = Tensor::zeros(DType::F32, [8]);
    let mut norm = Norm::new([&x, &x, &weight], 1e-6)?;
    norm.rows.block = 16;
    let kernels = [norm.forward_kernel(), norm.backward_kernel()];
    let kernels = kernels.into_iter().collect::<Result<Vec<Kernel>>>();
    Ok(kernels.map_err(|error| error.to_string())?)
}
