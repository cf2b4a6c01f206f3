//! [`Cyclic`]: alternates between two values.

use fulmen_tensor::{DType, Tensor};

use super::power::power;
use super::{Schedule, checked, not_finite, steps, zero};

/// How the height of the cycles of a [`Cyclic`] changes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum CyclicMode {
    /// All cycles have the same height.
    #[default]
    Triangular,
    /// Each cycle has half the height of the previous one.
    Triangular2,
    /// The height is multiplied by this factor in every step.
    ExpRange(f64),
}

/// Increases linearly from `base_lr` to `max_lr` and decreases again, repeatedly: PyTorch's
/// `CyclicLR`.
///
/// ```
/// use fulmen_nn::schedule::{Cyclic, CyclicMode, Schedule};
/// use fulmen_tensor::Tensor;
///
/// let cyclic = Cyclic::new(0.1, 0.5).step_size_up(4).mode(CyclicMode::Triangular2);
/// let rate = cyclic.value(&Tensor::from_slice(&[0i32, 4, 8, 12], [4])).eval()?.to_f64();
/// for (rate, expected) in rate.iter().zip([0.1, 0.5, 0.1, 0.3]) {
///     assert!((rate - expected).abs() < 1e-7);
/// }
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Cyclic {
    base_lr: f64,
    max_lr: f64,
    step_size_up: u64,
    step_size_down: Option<u64>,
    mode: CyclicMode,
}

impl Cyclic {
    /// PyTorch's defaults: 2000 steps up, 2000 down, all cycles with the same height.
    pub fn new(base_lr: f64, max_lr: f64) -> Cyclic {
        Cyclic {
            base_lr,
            max_lr,
            step_size_up: 2000,
            step_size_down: None,
            mode: CyclicMode::Triangular,
        }
    }

    /// The steps from `base_lr` to `max_lr`.
    pub fn step_size_up(mut self, steps: u64) -> Cyclic {
        self.step_size_up = steps;
        self
    }

    /// The number of steps back to `base_lr`. By default, it equals the number of steps up.
    pub fn step_size_down(mut self, steps: u64) -> Cyclic {
        self.step_size_down = Some(steps);
        self
    }

    /// How the height of the cycles changes.
    pub fn mode(mut self, mode: CyclicMode) -> Cyclic {
        self.mode = mode;
        self
    }
}

impl Schedule for Cyclic {
    #[track_caller]
    fn value(&self, step: &Tensor) -> Tensor {
        let up = self.step_size_up;
        let down = self.step_size_down.unwrap_or(self.step_size_up);
        let gamma = if let CyclicMode::ExpRange(gamma) = self.mode { gamma } else { 1.0 };
        let error = zero(&[("step_size_up", up), ("step_size_down", down)]).or_else(|| {
            not_finite(&[("base_lr", self.base_lr), ("max_lr", self.max_lr), ("gamma", gamma)])
        });
        checked("Cyclic", error, || {
            let cycle = steps(up.saturating_add(down));
            let up = steps(up);
            let position = step.remainder(cycle);
            let part = |count: &Tensor, total: f64| count.to_dtype(DType::F32) / total;
            let height = position
                .le(up)
                .select(&part(&position, up), &part(&(cycle - &position), cycle - up));
            let scale = match self.mode {
                CyclicMode::Triangular => height,
                CyclicMode::Triangular2 => height * power(0.5, &(step / cycle)),
                CyclicMode::ExpRange(gamma) => height * power(gamma, step),
            };
            scale * (self.max_lr - self.base_lr) + self.base_lr
        })
    }
}
