//! The losses of the two networks of a GAN.

use fulmen_tensor::{AsTensor, Tensor};

use super::Reduction;
use super::binary::minus_log_sigmoid;
use super::check::{same_floats, same_shape};
use crate::library::NN;
use crate::precision::wide;

/// The objective of the discriminator `D` and the generator, in terms of the logits that `D` gives
/// to real samples (`r`) and to generated ones (`f`).
///
/// | | discriminator | generator |
/// | --- | --- | --- |
/// | `NonSaturating` | `log(1 + e⁻ʳ) + log(1 + eᶠ)` | `log(1 + e⁻ᶠ)` |
/// | `Hinge` | `max(0, 1 − r) + max(0, 1 + f)` | `−f` |
/// | `LeastSquares` | `½(r − 1)² + ½f²` | `½(f − 1)²` |
/// | `Wasserstein` | `f − r` | `−f` |
///
/// ```
/// use fulmen_nn::loss::{GanLoss, Reduction};
/// use fulmen_tensor::Tensor;
/// let real = Tensor::from_slice(&[0.5f32, 2.0], [2]);
/// let fake = Tensor::from_slice(&[-2.0f32, 0.0], [2]);
/// let losses = GanLoss::Hinge.discriminator(&real, &fake, Reduction::None);
/// assert_eq!(losses.eval()?.to_vec::<f32>()?, [0.5, 1.0]);
/// assert_eq!(GanLoss::Hinge.generator(&fake, Reduction::Mean).eval()?.to_vec::<f32>()?, [1.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GanLoss {
    /// Goodfellow's, with a generator loss whose gradient does not vanish if the discriminator is
    /// certain.
    #[default]
    NonSaturating,
    /// Used by SAGAN and BigGAN.
    Hinge,
    /// LSGAN with the labels 0 and 1.
    LeastSquares,
    /// The difference between a critic's scores. Keep the critic Lipschitz by other means, such as
    /// a gradient penalty.
    Wasserstein,
}

impl GanLoss {
    /// The discriminator's loss. The mean (or sum) over the real samples is added to the mean (or
    /// sum) over the generated ones. The numbers of samples may differ, but with
    /// [`Reduction::None`] the two must have the same shape.
    ///
    /// Poisoned if the logits are not floating-point.
    #[track_caller]
    pub fn discriminator(
        self,
        real: impl AsTensor,
        fake: impl AsTensor,
        reduction: Reduction,
    ) -> Tensor {
        NN.record("gan_loss", || {
            let real = real.as_tensor();
            let fake = fake.as_tensor();
            for (name, logits) in
                [("logits of real samples", real), ("logits of generated samples", fake)]
            {
                same_floats(&[(name, logits)])?;
            }
            if reduction == Reduction::None {
                same_shape(&[("real", real), ("generated", fake)])?;
            }
            let r = wide(real);
            let f = wide(fake);
            let (r, f) = match self {
                GanLoss::NonSaturating => (minus_log_sigmoid(&r), minus_log_sigmoid(&-f)),
                GanLoss::Hinge => ((-r + 1.0).relu(), (f + 1.0).relu()),
                GanLoss::LeastSquares => (half_square(&(r - 1.0)), half_square(&f)),
                GanLoss::Wasserstein => (-r, f),
            };
            Ok(reduction.apply(&r) + reduction.apply(&f))
        })
    }

    /// The generator's loss. Poisoned if the logits are not floating-point.
    #[track_caller]
    pub fn generator(self, fake: impl AsTensor, reduction: Reduction) -> Tensor {
        NN.record("gan_loss", || {
            let fake = fake.as_tensor();
            same_floats(&[("logits of generated samples", fake)])?;
            let f = wide(fake);
            Ok(reduction.apply(&match self {
                GanLoss::NonSaturating => minus_log_sigmoid(&f),
                GanLoss::LeastSquares => half_square(&(f - 1.0)),
                GanLoss::Hinge | GanLoss::Wasserstein => -f,
            }))
        })
    }
}

fn half_square(x: &Tensor) -> Tensor {
    x * x * 0.5
}
