//! [`correct`]: 1 or 0 for each sample; the caller takes the mean.

use fulmen_tensor::{AsTensor, DType, Tensor};

use crate::library::{NN, live};

/// 1 for each sample whose largest logit is its target's, else 0: logits `[…, classes]` and
/// integers `[…]` give f32 `[…]`. Its mean is the accuracy. A sample with a NaN logit is never
/// correct.
///
/// ```
/// use fulmen_nn::metrics::correct;
/// use fulmen_tensor::Tensor;
/// let logits = Tensor::from_slice(&[0.1f32, 0.9, 0.8, 0.2], [2, 2]);
/// let right = correct(&logits, &Tensor::from_slice(&[1i32, 1], [2]));
/// assert_eq!(right.eval()?.to_vec::<f32>()?, [1.0, 0.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn correct(logits: impl AsTensor, target: impl AsTensor) -> Tensor {
    NN.record("correct", || {
        let logits = logits.as_tensor();
        let target = target.as_tensor();
        live(&[logits, target])?;
        let l = logits.ty();
        let t = target.ty();
        let samples = &l.shape[..l.shape.rank().saturating_sub(1)];
        if !l.dtype.is_float()
            || !t.dtype.is_integer()
            || l.shape.rank() == 0
            || samples != t.shape.dims()
        {
            return Err(format!(
                "needs logits [.., classes] and the integer index of each right class [..], \
                 got {l} and {t}"
            )
            .into());
        }
        let largest = logits.max(-1);
        // In i64, no index wraps around to a different one.
        let hit = logits.argmax(-1).to_dtype(DType::I64).eq(target.to_dtype(DType::I64));
        Ok(hit.and(largest.eq(&largest)).to_dtype(DType::F32))
    })
}
