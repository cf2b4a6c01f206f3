//! [`InverseSqrt`]: linear warmup, then decay with the inverse square root of the step; the
//! schedule of the original transformer.

use fulmen_tensor::{DType, Tensor};

use super::{Schedule, checked, not_finite, steps, zero};

/// With `t` counted from 1: `lr·min(t/warmup_steps, √(warmup_steps/t))`.
///
/// ```
/// use fulmen_nn::schedule::{InverseSqrt, Schedule};
/// use fulmen_tensor::Tensor;
///
/// let rate = InverseSqrt::new(0.8, 4).value(&Tensor::from_slice(&[0i32, 3, 15], [3]));
/// assert_eq!(rate.eval()?.to_vec::<f32>()?, [0.2, 0.8, 0.4]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct InverseSqrt {
    lr: f64,
    warmup_steps: u64,
}

impl InverseSqrt {
    /// Increases to `lr` over `warmup_steps` steps, then decreases.
    pub fn new(lr: f64, warmup_steps: u64) -> InverseSqrt {
        InverseSqrt { lr, warmup_steps }
    }

    /// The schedule of Vaswani et al. 2017 (<https://arxiv.org/abs/1706.03762>) for a model with
    /// `d_model` features: it increases to `1/√(d_model·warmup_steps)`.
    pub fn transformer(d_model: u64, warmup_steps: u64) -> InverseSqrt {
        let lr = ((d_model.max(1) as f64) * (warmup_steps.max(1) as f64)).powf(-0.5);
        InverseSqrt { lr, warmup_steps }
    }
}

impl Schedule for InverseSqrt {
    #[track_caller]
    fn value(&self, step: &Tensor) -> Tensor {
        let error =
            zero(&[("warmup_steps", self.warmup_steps)]).or_else(|| not_finite(&[("lr", self.lr)]));
        checked("InverseSqrt", error, || {
            let share = (step + 1.0).to_dtype(DType::F32) / steps(self.warmup_steps);
            share.minimum(1.0 / share.sqrt()) * self.lr
        })
    }
}
