//! [`GradScaler`]: the loss scale for f16.

use fulmen_tensor::{DType, Tensor};

use crate::library::NN;
use crate::precision::precision;

/// The number of good steps after which the scale doubles.
const GROWTH_INTERVAL: f64 = 2000.0;

/// The loss scale for f16 during one step. Small gradients underflow in 16 bits, so the loss is
/// multiplied by the scale before it is differentiated, and the gradients are divided by it
/// afterwards.
///
/// This is PyTorch's `GradScaler` with its constants, as expressions: a step whose gradients
/// overflowed halves the scale, and 2000 good steps double it. It stays between 2⁻²⁴ and 2²⁴. With
/// f16 precision, the Trainer keeps it in the training state and skips the steps that overflowed.
///
/// ```
/// use fulmen_nn::optim::GradScaler;
/// use fulmen_tensor::Tensor;
///
/// let scaler = GradScaler::new(Tensor::scalar(GradScaler::INIT_SCALE), Tensor::scalar(0i32));
/// let gradient = scaler.unscale(&Tensor::scalar(f32::INFINITY));
/// let [scale, good_steps] = scaler.update(&scaler.all_finite([&gradient].into_iter()), None);
/// assert_eq!(scale.eval()?.to_vec::<f32>()?, [32768.0]);
/// assert_eq!(good_steps.eval()?.to_vec::<i32>()?, [0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GradScaler {
    scale: Tensor,
    good_steps: Tensor,
}

impl GradScaler {
    /// The scale before the first step.
    pub const INIT_SCALE: f32 = 65536.0;

    /// Creates a scaler from two scalars: the scale (f32) and the number of good steps since it
    /// changed (i32).
    pub fn new(scale: Tensor, good_steps: Tensor) -> GradScaler {
        GradScaler { scale, good_steps }
    }

    /// The loss to differentiate: an f32 scalar.
    #[track_caller]
    pub fn scale(&self, loss: &Tensor) -> Tensor {
        let _scope = NN.open();
        loss.to_dtype(DType::F32) * &self.scale
    }

    /// Divides a gradient of the scaled loss by the scale.
    #[track_caller]
    pub fn unscale(&self, gradient: &Tensor) -> Tensor {
        let _scope = NN.open();
        let dtype = precision(gradient.dtype());
        (gradient.to_dtype(dtype) / self.scale.to_dtype(dtype)).to_dtype(gradient.dtype())
    }

    /// Whether no gradient overflowed: a boolean scalar.
    #[track_caller]
    pub fn all_finite<'a>(&self, gradients: impl Iterator<Item = &'a Tensor>) -> Tensor {
        let _scope = NN.open();
        // Zero times a finite number is zero; times anything else it is NaN.
        let zero = |part: Tensor| (part * 0.0).sum_all().to_dtype(DType::F32);
        let mut sum = Tensor::full(DType::F32, [], 0.0);
        for gradient in gradients {
            let wide = gradient.to_dtype(precision(gradient.dtype()));
            sum = sum + zero(wide.real());
            if wide.dtype().is_complex() {
                sum = sum + zero(wide.imag());
            }
        }
        sum.eq(0.0)
    }

    /// The scale and the number of good steps for the next step, as [`GradScaler::new`] takes them.
    /// If `updates` is false, the optimizer makes no step, and they do not change.
    #[track_caller]
    pub fn update(&self, finite: &Tensor, updates: Option<&Tensor>) -> [Tensor; 2] {
        let _scope = NN.open();
        let good = &self.good_steps + 1.0;
        let grows = good.ge(GROWTH_INTERVAL);
        let grown = grows.select(&(&self.scale * 2.0), &self.scale);
        let min = 2f64.powi(-24);
        let max = 2f64.powi(24);
        let scale = finite.select(&grown, &(&self.scale * 0.5)).maximum(min).minimum(max);
        let zero = good.zeros_like();
        let good = finite.select(&grows.select(&zero, &good), &zero);
        match updates {
            Some(updates) => {
                [updates.select(&scale, &self.scale), updates.select(&good, &self.good_steps)]
            }
            None => [scale, good],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_halves_after_an_overflow_and_doubles_after_many_good_steps() {
        let check = |good: i32, gradient: f32| {
            let state =
                GradScaler { scale: Tensor::scalar(1024.0f32), good_steps: Tensor::scalar(good) };
            let gradients = [Tensor::scalar(1.0f32), Tensor::from_slice(&[0.0, gradient], [2])];
            let [scale, good] = state.update(&state.all_finite(gradients.iter()), None);
            let number = |t: Tensor| t.eval().unwrap().to_f64()[0];
            (number(scale), number(good))
        };
        assert_eq!(check(5, 1.0), (1024.0, 6.0));
        assert_eq!(check(1999, 1.0), (2048.0, 0.0));
        assert_eq!(check(5, f32::INFINITY), (512.0, 0.0));
        assert_eq!(check(1999, f32::NAN), (512.0, 0.0));
    }
}
