//! [`RunningStats`]: the running statistics of normalization layers.

use fulmen_tensor::{DType, Tensor};

use crate::{Buffer, Module};

/// The statistics of all batches so far, with PyTorch's names.
#[derive(Clone, Debug, Module)]
pub(super) struct RunningStats {
    #[module(rename = "running_mean")]
    pub(super) mean: Buffer,
    #[module(rename = "running_var")]
    pub(super) var: Buffer,
    num_batches_tracked: Buffer,
}

impl RunningStats {
    pub(super) fn new(features: usize) -> RunningStats {
        RunningStats {
            mean: Buffer::new(Tensor::zeros(DType::F32, [features])),
            var: Buffer::new(Tensor::ones(DType::F32, [features])),
            num_batches_tracked: Buffer::new(Tensor::zeros(DType::I64, [])),
        }
    }

    /// Mean and variance, converted to this dtype and shape.
    pub(super) fn statistics(&self, dtype: DType, shape: &[usize]) -> (Tensor, Tensor) {
        let value = |buffer: &Buffer| buffer.get().to_dtype(dtype).reshape(shape);
        (value(&self.mean), value(&self.var))
    }

    /// Counts one more batch.
    pub(super) fn count_batch(&self) {
        self.num_batches_tracked.set(self.num_batches_tracked.get() + 1.0);
    }

    /// Moves the running statistics towards those of a batch with `count` values for each
    /// statistic: by `momentum` or, without one, so that they are the means over all batches.
    pub(super) fn track(&self, mean: &Tensor, var: &Tensor, count: usize, momentum: Option<f64>) {
        let unbiased = var * (count as f64 / (count as f64 - 1.0));
        for (buffer, new) in [(&self.mean, mean), (&self.var, &unbiased)] {
            let ty = buffer.ty();
            // Computed in the precision of the batch statistics, even if the running ones have
            // fewer bits.
            let new = new.detach().reshape(&ty.shape);
            let old = buffer.get().to_dtype(new.dtype());
            let moved = match momentum {
                Some(momentum) => old * (1.0 - momentum) + new * momentum,
                None => &old + (new - &old) / self.num_batches_tracked.get().to_dtype(old.dtype()),
            };
            buffer.set(moved.to_dtype(ty.dtype));
        }
    }
}
