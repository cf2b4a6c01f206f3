//! The loss scale of f16: small gradients vanish in 16 bits, so the loss is multiplied before it is differentiated, and
//! the gradients are divided afterwards. The factor is part of the training state; a step whose gradients overflowed
//! changes no parameter, is none for the optimizer and halves it, and many good steps double it (PyTorch's `GradScaler`,
//! with its numbers; the factor stays between 2⁻²⁴ and 2²⁴).

use fulmen_tensor::{DType, Tensor};

/// The scale before the first step.
pub(crate) const FIRST: f32 = 65536.0;

/// Good steps after which the scale doubles.
const GROWTH_INTERVAL: f64 = 2000.0;

/// The scale as a step finds it.
pub(crate) struct LossScale {
    scale: Tensor,
    good_steps: Tensor,
}

impl LossScale {
    /// Of the scale, f32, and the number of good steps since it changed, i32.
    pub(crate) fn new([scale, good_steps]: [Tensor; 2]) -> LossScale {
        LossScale { scale, good_steps }
    }

    /// The loss to differentiate.
    pub(crate) fn scaled(&self, loss: &Tensor) -> Tensor {
        loss.to_dtype(DType::F32) * &self.scale
    }

    /// A gradient of the scaled loss as one of the loss.
    pub(crate) fn unscaled(&self, gradient: &Tensor) -> Tensor {
        (gradient.to_dtype(DType::F32) / &self.scale).to_dtype(gradient.dtype())
    }

    /// Whether no gradient overflowed: a boolean scalar.
    pub(crate) fn all_finite<'a>(&self, gradients: impl Iterator<Item = &'a Tensor>) -> Tensor {
        // Zero times what is finite is zero; times the rest it is NaN.
        let zeros = gradients.map(|gradient| (gradient.to_dtype(DType::F32) * 0.0).sum_all());
        zeros.fold(Tensor::full(DType::F32, [], 0.0), |sum, zero| sum + zero).eq(0.0)
    }

    /// What it is for the next step; where `due` says that this one is none, what it is now.
    pub(crate) fn next(&self, finite: &Tensor, due: Option<&Tensor>) -> [Tensor; 2] {
        let good = &self.good_steps + 1.0;
        let grows = good.ge(GROWTH_INTERVAL);
        let grown = grows.select(&(&self.scale * 2.0), &self.scale);
        let (least, most) = (2f64.powi(-24), 2f64.powi(24));
        let scale = finite.select(&grown, &(&self.scale * 0.5)).maximum(least).minimum(most);
        let zero = good.zeros_like();
        let good = finite.select(&grows.select(&zero, &good), &zero);
        match due {
            Some(due) => [due.select(&scale, &self.scale), due.select(&good, &self.good_steps)],
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
            let state = LossScale { scale: Tensor::scalar(1024.0f32), good_steps: Tensor::scalar(good) };
            let gradients = [Tensor::scalar(1.0f32), Tensor::from_slice(&[0.0, gradient], [2])];
            let [scale, good] = state.next(&state.all_finite(gradients.iter()), None);
            let number = |t: Tensor| t.eval().unwrap().to_f64()[0];
            (number(scale), number(good))
        };
        assert_eq!(check(5, 1.0), (1024.0, 6.0));
        assert_eq!(check(1999, 1.0), (2048.0, 0.0));
        assert_eq!(check(5, f32::INFINITY), (512.0, 0.0));
        assert_eq!(check(1999, f32::NAN), (512.0, 0.0));
    }
}
