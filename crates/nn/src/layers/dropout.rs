//! [`Dropout`]: random zeros while training.

use fulmen_tensor::{Tensor, random};

use crate::{Forward, Module, RandomStream, TrainingMode};

/// While training, each element is 0 with probability `p` and else divided by `1 − p`; otherwise nothing happens. As
/// PyTorch's `nn.Dropout`.
///
/// The Trainer gives it a fresh random key each step; outside of one, call [`Module::set_random_key`].
///
/// ```
/// use fulmen_nn::{Dropout, Module};
/// use fulmen_tensor::{DType, Tensor, random};
///
/// let (dropout, x) = (Dropout::new(0.5), Tensor::ones(DType::F32, [1000]));
/// dropout.set_random_key(&random::key(0));
/// let kept = dropout.forward(&x).eval()?.to_vec::<f32>()?.into_iter().filter(|&y| y == 2.0).count();
/// assert!((400..600).contains(&kept));
///
/// dropout.eval();
/// assert!(dropout.forward(&x).is(&x));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
pub struct Dropout {
    p: f64,
    mode: TrainingMode,
    random: RandomStream,
}

impl Dropout {
    /// Drops each element with probability `p`.
    pub fn new(p: f64) -> Dropout {
        Dropout { p, mode: TrainingMode::new(), random: RandomStream::new() }
    }

    /// The input with its zeros.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        if x.fault().is_some() {
            return x.clone();
        }
        if !(0.0..=1.0).contains(&self.p) {
            return Tensor::poison("Dropout", format!("a probability lies between 0 and 1, not {}", self.p));
        }
        if !self.mode.is_training() || self.p == 0.0 {
            return x.clone();
        }
        if self.p == 1.0 {
            return x * 0.0;
        }
        let kept = random::bernoulli(&self.random.next_key(), 1.0 - self.p, x.shape());
        kept.select(&(x / (1.0 - self.p)), &x.zeros_like())
    }
}

impl Forward for Dropout {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        Dropout::forward(self, x)
    }
}
